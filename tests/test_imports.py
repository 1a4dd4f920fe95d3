import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmenv

PACKAGE = Path(shmenv.__file__).parent

# An import may only point upward in this list. `shmenv` is the package itself, so what stands below it (adapters,
# commands) sees the public names, and nothing above it can.
ORDER = [
    *(
        "errors",
        "codec",
        "_channel",
        "_memory",
        "_ring",
        "_info",
        "_mail",
        "_steps",
        "_turn",
        "_port",
        "segment",
        "primitives",
        "fit",
        "layout",
        "buffer",
    ),
    *("info", "starting"),
    *("observation", "action", "kinds", "cpu", "batch", "arguments", "plan", "_loop", "worker", "limits", "handle"),
    *(
        "failures",
        "supervisor",
        "rows",
        "seeds",
        "whereabouts",
        "policy",
        "substitutes",
        "recovery",
        "exchange",
        "preloaded",
        "pool",
        "wrappers",
        "unbroken",
        "timestep",
        "managed",
        "manager_config",
    ),
    *("manager_env", "manager_base", "manager", "registry"),
    *("shmenv", "adapters", "cli", "__main__"),
]
CYTHON_IMPORT = re.compile(r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?c?import[ \t]+(?:\([^)]*\)|[\w., \t]+))", re.MULTILINE)


def module_of(path: Path) -> str:
    """The entry in ORDER that a file belongs to."""
    top = path.relative_to(PACKAGE).parts[0].partition(".")[0]
    return "shmenv" if top == "__init__" else top


def imports_of(path: Path) -> Iterator[str]:
    """The entries in ORDER that a file imports, at its top or inside a function."""
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):  # Cython is no Python for ast: keep its import statements alone
        text = "\n".join(" ".join(found.split()).replace("cimport", "import") for found in CYTHON_IMPORT.findall(text))
    package = ("shmenv", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], node.module] if node.level else [node.module]
            names = [".".join(filter(None, [*base, alias.name])) for alias in node.names]
        else:
            continue
        for first, *rest in (name.split(".") for name in names):
            if first == "shmenv":
                yield rest[0] if rest and rest[0] in ORDER else "shmenv"


FILES = sorted(path for suffix in ("py", "pyx", "pxd", "pyi") for path in PACKAGE.rglob(f"*.{suffix}"))


def test_every_module_has_its_place_in_the_order() -> None:
    assert {module_of(path) for path in FILES} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_an_import_points_only_upward(path: Path) -> None:
    own = module_of(path)  # the files of one folder may use each other
    wrong = [name for name in imports_of(path) if name != own and ORDER.index(name) > ORDER.index(own)]
    assert not wrong


def run_python(source: str) -> None:
    """Runs a program with this package on the path, and nothing written for being imported."""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE.parent), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_import_shmenv_loads_no_optional_package() -> None:
    run_python("""
        import sys
        import shmenv
        optional = {"gymnasium", "torch", "jax", "rich", "ale_py", "psutil", "pettingzoo", "stable_baselines3",
                    "tianshou", "ding", "pytest", "Cython"}
        assert not optional & set(sys.modules), optional & set(sys.modules)
    """)


def test_adapters_need_no_import_of_their_own() -> None:
    run_python("""
        import shmenv, sys
        assert shmenv.adapters and "gymnasium" not in sys.modules
        assert shmenv.adapters.gymnasium.ShmVectorEnv.__name__ == "ShmVectorEnv"
        for module in (shmenv, shmenv.adapters):
            assert not hasattr(module, "nope")
    """)


def test_import_shmenv_has_no_side_effect() -> None:
    run_python("""
        import logging, multiprocessing, os, signal, sys
        import numpy, cloudpickle

        def state():
            return {
                "environment": dict(os.environ),
                "threads": os.listdir("/proc/self/task"),
                "descriptors": os.listdir("/proc/self/fd"),
                "start method": multiprocessing.get_start_method(allow_none=True),
                "signal handlers": {s: signal.getsignal(s) for s in signal.valid_signals()},
                "affinity": os.sched_getaffinity(0),
                "working folder": os.getcwd(),
                "logging": (logging.root.level, list(logging.root.handlers)),
                "random state": numpy.random.get_state()[1].tolist(),
            }

        def watch(event, arguments):
            if event in ("subprocess.Popen", "os.fork", "os.exec", "os.mkdir", "socket.__new__"):
                raise AssertionError(event)
            if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
                raise AssertionError(f"opened for writing: {arguments[0]}")

        before = state()
        sys.addaudithook(watch)
        import shmenv
        after = state()
        assert after == before, [name for name in before if after[name] != before[name]]
    """)


@pytest.mark.parametrize(
    ("adapter", "package"),
    [
        ("gymnasium", "gymnasium"),
        ("sb3", "stable_baselines3"),
        ("ding", "ding"),
        ("pettingzoo", "pettingzoo"),
        ("tianshou", "tianshou"),
    ],
)
def test_an_adapter_without_its_framework_says_what_to_install(adapter: str, package: str) -> None:
    run_python(f"""
        import sys
        sys.modules[{package!r}] = None  # not to be imported
        try:
            import shmenv.adapters.{adapter}
        except ImportError as error:
            assert "pip install 'shmenv[{adapter}]'" in str(error), error
        else:
            raise AssertionError("imported")
    """)
