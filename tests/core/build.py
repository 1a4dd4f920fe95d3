"""Builds and runs what tests the core in C: the explorer, and threads over the real atomics.

usage: python tests/core/build.py explore [--full] | threads | tsan | aarch64

`explore` runs every scenario of the explorer; the bounds of each stand in its line, what no bound covers stands in
model.h. `threads` runs threads.c as it is, `tsan` under ThreadSanitizer, `aarch64` by a cross compiler and an emulator:
that shows that the core builds and works there, and nothing about memory orders, for the emulator keeps the host's.
Exit code 0 means that all went well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent.parent / "src" / "shmenv" / "core"
TOPICS = ("litmus", "ring", "cells", "semaphore", "clock", "pool")
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def compile_c(output: Path, sources: Iterable[Path], *flags: str) -> None:
    """Compile and link `sources` (or only compile, with -c among the flags). Raises CalledProcessError."""
    command = [os.environ.get("CC", "gcc"), *WARNINGS, *flags, *map(str, sources), "-o", str(output)]
    subprocess.run(command, check=True)


def build_model(directory: Path) -> list[Path]:
    """Compile the parts of the explorer that do not depend on the core's headers."""
    objects = []
    for name in ("model", "state", "explorer"):
        objects.append(directory / f"{name}.o")
        compile_c(objects[-1], [HERE / f"{name}.c"], "-O3", "-c", f"-I{HERE}")
    return objects


def build_explorer(directory: Path, topic: str, model: Sequence[Path], headers: Path = HEADERS) -> Path:
    """Build the explorer of one topic over `headers`, which may be a changed copy."""
    source = HERE / (f"{topic}.c" if topic == "litmus" else f"scenario_{topic}.c")
    program = directory / f"explore_{topic}"
    strict = () if headers == HEADERS else ("-w",)  # a mutant may well leave something unused
    compile_c(program, [source, *model], "-O1", "-DSHM_MODEL", f"-I{headers}", f"-I{HERE}", *strict)
    return program


def build_threads(directory: Path, *flags: str) -> Path:
    """Build threads.c over the real atomics, by the compiler in CC."""
    program = directory / "threads"
    compile_c(program, [HERE / "threads.c"], "-O2", "-g", f"-I{HEADERS}", "-pthread", *flags)
    return program


def explore(full: bool) -> int:
    """Run every scenario; 0 if each came out as it should."""
    arguments = ["--full"] if full else []
    worst = 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as threads:
        directory = Path(scratch)
        model = build_model(directory)
        programs = [build_explorer(directory, topic, model) for topic in TOPICS]
        commands = [[program, "--trace", *arguments] for program in programs]
        for run in threads.map(lambda command: subprocess.run(command, stdout=subprocess.PIPE, text=True), commands):
            print(run.stdout, end="", flush=True)
            worst = max(worst, abs(run.returncode))
    return worst


def run_threads(*flags: str) -> int:
    """Run threads.c, built with `flags`."""
    # ThreadSanitizer's runtime up to gcc 13 cannot start where a kernel randomises addresses by more than 28 bits.
    plain = ["setarch", "-R"]
    if not shutil.which("setarch") or subprocess.run([*plain, "true"], capture_output=True).returncode:
        plain = []
    with tempfile.TemporaryDirectory() as scratch:
        return subprocess.run([*plain, build_threads(Path(scratch), *flags)]).returncode


def run_aarch64() -> int:
    """Run threads.c as an aarch64 program."""
    os.environ["CC"] = "aarch64-linux-gnu-gcc"
    with tempfile.TemporaryDirectory() as scratch:
        return subprocess.run(["qemu-aarch64", build_threads(Path(scratch), "-static")]).returncode


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["explore", *rest] if rest in ([], ["--full"]):
            return explore(full=bool(rest))
        case ["threads"]:
            return run_threads()
        case ["tsan"]:
            return run_threads("-fsanitize=thread", "-Wno-tsan")  # it knows no fences, and says so
        case ["aarch64"]:
            return run_aarch64()
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
