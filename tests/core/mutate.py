"""Tries the explorer on every mutant of the core's headers: does it notice each missing ordering, fence and step?

usage: python tests/core/mutate.py [--full | name...]

Each mutant is tried with the explorer's short bounds. With --full, the unchanged headers are explored first, with the
full bounds, and so is a mutant that survives though it is not listed as equivalent. Names choose mutants by a part of
their name. Exit code 0: every mutant is caught, but for those listed as equivalent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build import HEADERS, build_explorer, build_model, explore
from mutants import EQUIVALENT, TOPICS_OF, Mutant, all_mutants

SECONDS = 40  # watchdog of one exploration; the longest takes a fraction of it


def try_mutant(mutant: Mutant, directory: Path, model: Sequence[Path], full: bool) -> str | None:
    """Run the explorer over one changed header. Returns the scenario that noticed, and what; None if none did."""
    headers = Path(tempfile.mkdtemp(dir=directory))
    for header in TOPICS_OF:
        shutil.copy(HEADERS / header, headers)
    (headers / mutant.header).write_text(mutant.text)
    programs = [build_explorer(headers, topic, model, headers) for topic in TOPICS_OF[mutant.header]]
    for arguments in ([], ["--full"]) if full and mutant.name not in EQUIVALENT else ([],):
        for program in programs:
            run = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=SECONDS)
            for line in run.stdout.splitlines():
                if line.startswith("BAD"):
                    scenario, bounds_and_finding = line[5:].split("preemptions<=")
                    return f"{scenario.strip()}: {bounds_and_finding.split(': ', 1)[1]}"
            if run.returncode:
                raise RuntimeError(f"{program} failed on {mutant.name}: {run.stderr}")
    return None


def score(mutants: Sequence[Mutant], directory: Path, full: bool) -> int:
    """Try the mutants on all cores and print what came out; the number of those that came out wrong."""
    model = build_model(directory)
    wrong = caught = equivalent = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda mutant: try_mutant(mutant, directory, model, full), mutants)
        for mutant, finding in zip(mutants, found, strict=True):
            reason = EQUIVALENT.get(mutant.name)
            if finding and reason is None:
                caught += 1
                print(f"caught      {mutant.header} {mutant.name}\n            by {finding}", flush=True)
            elif finding is None and reason:
                equivalent += 1
                print(f"equivalent  {mutant.header} {mutant.name}\n            {reason}", flush=True)
            elif finding:
                wrong += 1
                print(f"NOT EQUIVALENT {mutant.header} {mutant.name}\n            caught by {finding}", flush=True)
            else:
                wrong += 1
                print(f"SURVIVED    {mutant.header} {mutant.name}", flush=True)
    print(f"{len(mutants)} mutants: {caught} caught, {equivalent} equivalent, {wrong} survived or wrongly listed")
    return wrong


def main(arguments: list[str]) -> int:
    """Run the command line."""
    full = arguments == ["--full"]
    names = [] if full else arguments
    mutants = [m for m in all_mutants(HEADERS) if not names or any(name in f"{m.header} {m.name}" for name in names)]
    start = time.monotonic()
    if full and explore(full=True):
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        wrong = score(mutants, Path(scratch), full)
    print(f"{time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
