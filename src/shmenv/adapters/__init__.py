"""Drop-ins for other frameworks' vectorised environments, a file each; imported only on demand."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import TYPE_CHECKING


def require(package: str, at_least: str, extra: str) -> ModuleType:
    """Import the framework that an adapter is for.

    Args:
        package: the name it is imported by.
        at_least: the oldest version that will do, numbers with dots.
        extra: shmenv's extra that installs it.

    Raises:
        ImportError: it is missing or too old. The text says what to install.
    """
    hint = f"pip install 'shmenv[{extra}]'"
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"shmenv's adapter needs {package} {at_least} or newer ({error}): {hint}") from error
    found = getattr(module, "__version__", "of unknown version")
    if _numbers(found) < _numbers(at_least):
        raise ImportError(f"shmenv's adapter needs {package} {at_least} or newer, not {found}: {hint}")
    return module


def _numbers(version: str) -> list[int]:
    """What a version starts with, to compare: "1.4.0a1" and "v1.4.0" are [1, 4, 0]."""
    leading = re.match(r"v?(\d+(\.\d+)*)", version)
    return [int(number) for number in leading[1].split(".")] if leading else []


if not TYPE_CHECKING:  # for whom any attribute would be one

    def __getattr__(name: str) -> ModuleType:
        """An adapter, imported only when it is asked for, and its framework with it."""
        if name in ("ding", "gymnasium", "pettingzoo", "sb3", "tianshou"):
            return importlib.import_module(f"shmenv.adapters.{name}")
        raise AttributeError(f"module 'shmenv.adapters' has no attribute {name!r}")
