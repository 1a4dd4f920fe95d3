"""Has SPIN prove the model of the semaphore, and refute it with each step taken away.

usage: python tests/spin/check.py

Exit code 0: the model holds in every configuration, and not one of its faults passes. Needs spin and a C compiler.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "semaphore.pml"
LIMIT = 600  # seconds of one run: a watchdog
DEADLOCK = ("-DSAFETY", "-DNOCLAIM"), ("-m200000", "-w22")
LIVENESS = ("-DNFAIR=8",), ("-a", "-f", "-Nends", "-m400000", "-w22")
# What each configuration costs grows by a factor of fifty a poster, post or kill.
PROOFS = (
    ("any two killed, 2 posters, 1 post each: no deadlock", "-DPOSTERS=2 -DPOSTS=1 -DKILLS=1 -DSUCCESSOR", DEADLOCK),
    ("2 posters, 2 posts each: the waiter ends", "-DPOSTERS=2 -DPOSTS=2 -DKILLS=0", LIVENESS),
    ("2 posters, 2 posts each: no deadlock", "-DPOSTERS=2 -DPOSTS=2 -DKILLS=0", DEADLOCK),
    ("a poster killed, 3 posters, 1 post each: no deadlock", "-DPOSTERS=3 -DPOSTS=1 -DKILLS=1", DEADLOCK),
    ("a poster killed, 2 posters, 1 post each: the waiter ends", "-DPOSTERS=2 -DPOSTS=1 -DKILLS=1", LIVENESS),
    ("the waiter killed, 2 posters, 1 post each: its successor ends", "-DPOSTS=1 -DKILLS=0 -DSUCCESSOR", LIVENESS),
)
FAULTS = {
    1: "no last look before sleeping",
    2: "the hint after the truth",
    3: "an alert wakes, then opens the gate",
    4: "a death alerts nobody",
    5: "a result is posted, then published",
    6: "the k-th post wakes nobody",
}


def verify(options: str, how: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[bool, str]:
    """Whether the model holds, and how many states were looked at or what was found instead."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            ["spin", "-a", *options.split(), MODEL], cwd=scratch, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT
        )
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, "-O2", "-w", "-DCOLLAPSE", *how[0], "pan.c", "-o", "pan"], cwd=scratch, check=True)
        run = subprocess.run(["./pan", *how[1]], cwd=scratch, capture_output=True, text=True, timeout=LIMIT)
    errors, states = re.search(r"errors: (\d+)", run.stdout), re.search(r"(\d+) states, stored", run.stdout)
    if errors is None or states is None or "max search depth too small" in run.stdout:
        raise RuntimeError(f"SPIN did not get to the end of {options}:\n{run.stdout}{run.stderr}")
    found = re.search(r"pan:1: ([^(]*)", run.stdout)
    return errors[1] == "0", f"{states[1]} states" if found is None else found[1].strip()


def main() -> int:
    """Print a line for each proof and each refutation."""
    start, wrong = time.monotonic(), 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        proofs = threads.map(lambda proof: verify(*proof[1:]), PROOFS)
        refutations = threads.map(lambda fault: verify(f"-DFAULT={fault} -DPOSTERS=2 -DPOSTS=2", DEADLOCK), FAULTS)
        for (name, _, _), (holds, what) in zip(PROOFS, proofs, strict=True):
            wrong += not holds
            print(f"{'proved ' if holds else 'REFUTED'}  {name}: {what}", flush=True)
        for name, (holds, what) in zip(FAULTS.values(), refutations, strict=True):
            wrong += holds
            print(f"{'PASSED ' if holds else 'refuted'}  {name}: {what}", flush=True)
    print(f"{time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
