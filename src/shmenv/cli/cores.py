"""Is the machine itself? Two processes that have nothing to do with one another should do twice the work of one."""

from __future__ import annotations

import statistics
import subprocess
import sys
from contextlib import ExitStack

WHOLE = 1.8  # of 2, from which on two processes count as having a core each
ROUNDS = 5

_WORK = """
import sys, time
for line in sys.stdin:
    count, end = 0, time.perf_counter() + float(line)
    while time.perf_counter() < end:
        for number in range(1000):
            count += number & 1
    print(count, flush=True)
"""


def two_against_one(seconds: float = 0.1) -> float:
    """The work of two free processes over that of one, the median of some rounds; about 2 on two idle cores."""
    with ExitStack() as stack:
        both = []
        for _ in range(2):
            # A group of its own: Ctrl-C is for the caller, which ends this one.
            process = subprocess.Popen(
                [sys.executable, "-ISc", _WORK],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            both.append(process)

        def work(*those: subprocess.Popen[str]) -> int:
            for process in those:
                assert process.stdin
                process.stdin.write(f"{seconds}\n")
                process.stdin.flush()
            return sum(int(process.stdout.readline()) for process in those if process.stdout)

        work(*both)  # they have started
        return statistics.median(work(*both) / work(both[number % 2]) for number in range(ROUNDS))


def words(quotient: float) -> str:
    """What the quotient means for everything that is measured beside it."""
    told = f"Two free processes do {quotient:.2f} times the work of one"
    if quotient >= WHOLE:
        return f"{told}: this machine gives them a core each."
    return f"{told}: this machine gives two processes less than two cores, so the figures of this run do not count."
