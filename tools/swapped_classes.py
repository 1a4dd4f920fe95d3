"""Pytest plugin: a framework's own tests find shmenv's class where they look for the framework's.

    SHMENV_SWAP="package.module:Theirs=module:Ours ..." python -m pytest -p swapped_classes ...

It does so when it is imported, and that is before pytest imports any test or conftest.
"""

import importlib
import os
import sys
from typing import Any


def named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def swap(theirs: str, ours: str) -> None:
    """Put one class in the other's place, in every module of its package that is loaded and has it."""
    old, new, name = named(theirs), named(ours), theirs.rpartition(":")[2]
    package = theirs.partition(".")[0]
    for module in [each for key, each in sys.modules.items() if key.partition(".")[0] == package]:
        if vars(module).get(name) is old:
            setattr(module, name, new)


for pair in os.environ.get("SHMENV_SWAP", "").split():
    swap(*pair.split("="))
