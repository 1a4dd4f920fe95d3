"""How does shmenv compare with the libraries that do the same, on this machine?

Each contestant is a process of its own, with its library's environment (tools/peers.py makes them), started once and
driven by this one. In each workload all take turns for some rounds, in an order that rotates; who isn't at rest between
its turns is stopped. Before its clock starts, each has the first values of env 0 compared with a plain loop's. What can
be set and isn't a matter of taste (workers, batches, copies) is tried, and the fastest is measured.

The limit is one process a core that steps its share of the same envs and never talks; a library whose environment
has another numpy is measured by the limit of that environment.

    make compare                                              all: writes docs/performance.md with its plots
    make compare ARGS=--loops                                 the loops with a policy, and their part of the page
    make compare ARGS="--only cartpole64 idle64 --rounds 3"   prints only
    make compare ARGS="--only loop-c64 --rounds 3"            the same, for a loop with a policy
"""

import argparse
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psutil

import report
from contestants import CONTESTANTS, LOOPERS, ROOT, Contestant
from drive import RESTLESS, Broken, Driven
from machine import describe
from shmenv.cli.cores import two_against_one, words
from workloads import WORKLOADS

CACHE = ROOT / ".cache"  # not kept
START = 180.0  # seconds that a contestant may take to try its settings and start
SETTLED = 0.2  # seconds that CPU use is watched after a contestant's turn
FIRSTS = 3  # pauses


class Field:
    """All contestants, as far as they are installed."""

    def __init__(self, names: list[str], everyone: list[Contestant]) -> None:
        self.log = CACHE / "compare.log"
        self.told: dict[str, dict[str, Any]] = {}
        self.seats: dict[str, Driven] = {}
        first = everyone[0]  # the limit of the others
        chosen = [one for one in everyone if not names or one.called in names or one == first]
        for contestant in chosen:
            self._seat(contestant)
        limits: dict[tuple[str, str], str] = {}
        for contestant in chosen:
            told = self.told[contestant.name]
            if "missing" in told:
                continue
            key = told["numpy"], told["gymnasium"]
            if key not in limits:
                limits[key] = first.name if not limits else f"{first.name}, numpy {key[0]}, gymnasium {key[1]}"
                if limits[key] != first.name:
                    self._seat(replace(first, name=limits[key], venv=contestant.venv))
            told["limit"] = limits[key]

    def _seat(self, contestant: Contestant) -> None:
        told = self.told[contestant.name] = {"package": contestant.package}
        try:
            driven = Driven(contestant, self.log)
            told |= driven.order("versions", packages=[contestant.package, "gymnasium", "numpy"])
            self.seats[contestant.name] = driven
        except Broken as reason:
            told["missing"] = str(reason)

    @contextmanager
    def playing(self, name: str) -> Iterator[tuple[dict[str, list[Driven]], dict[str, Any]]]:
        """Those that can do the workload, started, each with its copies; and the first entries about all."""
        able: dict[str, list[Driven]] = {}
        about: dict[str, Any] = {}
        for contestant, first in list(self.seats.items()):
            about[contestant] = self._enter(able, name, first)
        try:
            yield able, about
        finally:
            for driven in able.values():
                for number, one in enumerate(driven):
                    self._leave(one, stays=number == 0)

    def _enter(self, able: dict[str, list[Driven]], name: str, first: Driven) -> dict[str, Any]:
        group = [first]
        try:
            if first.ended:
                first = self.seats[first.name] = Driven(first.contestant, self.log)
                group = [first]
            answer = first.order("start", START, name=name, settings=None)
            if not answer["able"]:
                return {}
            for _ in range(WORKLOADS[name].copies - 1):
                group.append(Driven(first.contestant, self.log))
                group[-1].order("start", START, name=name, settings=answer["settings"])
            for one in group:
                watch(one)
        except Broken as reason:
            for number, one in enumerate(group):
                self._leave(one, stays=number == 0)
            return {"failed": str(reason)}
        able[first.name] = group
        return {key: answer[key] for key in ("settings", "checked", "start")}

    @staticmethod
    def _leave(driven: Driven, stays: bool) -> None:
        """The workload is over; who can't even end it doesn't stay."""
        driven.proceed()
        driven.restless = False
        if driven.ended:
            return
        try:
            if stays:
                driven.order("stop")
                return
        except Broken:
            pass
        driven.end()

    def close(self) -> None:
        for driven in self.seats.values():
            if not driven.ended:
                driven.end()


def watch(driven: Driven) -> None:
    """Finds out whether it rests now that it has nothing to do."""
    driven.look()
    used = driven.cpu()
    time.sleep(SETTLED)
    driven.restless = (driven.cpu() - used) / SETTLED > RESTLESS
    driven.rest()


@contextmanager
def hog(wanted: bool) -> Iterator[None]:
    """A process that computes all the time."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def busy() -> float:
    """Seconds that all cores together have computed until now, for whatever process, or were taken from the machine."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def turn(group: list[Driven], seconds: float) -> dict[str, float]:
    """One measurement: the mean of the copies' speeds, and the CPU time of them all."""
    own, all_cores, begin = sum(one.cpu() for one in group), busy(), time.monotonic()
    for one in group:
        one.ask("run", seconds=seconds)
    answers = [one.answer(60 + 10 * seconds) for one in group]
    cpu = sum(one.cpu() for one in group) - own
    foreign = (busy() - all_cores - cpu) / (time.monotonic() - begin) / psutil.cpu_count()
    for one in group:
        one.rest()
    told = {"speed": statistics.mean(answer["speed"] for answer in answers), "cpu": cpu, "foreign": max(0.0, foreign)}
    told["steps"] = sum(answer["steps"] for answer in answers)
    return told | {key: answers[0][key] for key in ("median", "p99") if key in answers[0]}


def play(field: Field, name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """All rounds of a workload; an entry a contestant."""
    with field.playing(name) as (able, about), hog(WORKLOADS[name].hog):
        order = list(able)
        for number in range(rounds):
            for contestant in order[number % len(order) :] + order[: number % len(order)]:
                entry = about[contestant]
                if "failed" in entry:
                    continue
                try:
                    entry.setdefault("rounds", []).append(turn(able[contestant], seconds))
                except Broken as reason:
                    entry["failed"] = str(reason)
    return about


def pause(field: Field, name: str, seconds: float) -> dict[str, Any]:
    """The CPU time that a pause costs each contestant, and its first batch after it."""
    with field.playing(name) as (able, about):
        resting = [group[0] for group in able.values()]

        def once(driven: Driven) -> float:
            """Seconds of one batch; what fails is told, and gets no more turns."""
            try:
                return float(driven.order("once")["seconds"])
            except Broken as reason:
                about[driven.name]["failed"] = str(reason)
                resting.remove(driven)
                return 0.0

        for _ in range(FIRSTS):
            for driven in tuple(resting):
                once(driven)
            before = {driven.name: driven.cpu() for driven in resting}
            time.sleep(seconds)
            used = {driven.name: driven.cpu() - before[driven.name] for driven in resting}
            for driven in resting:
                driven.rest()
            for driven in tuple(resting):
                entry = {"cpu": used[driven.name] / seconds, "first": once(driven)}
                driven.rest()
                about[driven.name].setdefault("pauses", []).append(entry)
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="workload", choices=WORKLOADS, help=", ".join(WORKLOADS))
    names = list(dict.fromkeys(contestant.called for contestant in [*CONTESTANTS, *LOOPERS]))
    parser.add_argument(
        "--contestants",
        "--names",
        dest="contestants",
        nargs="+",
        metavar="name",
        choices=names,
        default=[],
        help=", ".join(names),
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--pause", type=float, default=10.0, help="length of the pauses, in seconds")
    parser.add_argument("--again", action="store_true", help="only write the page anew, from what was measured last")
    parser.add_argument("--loops", action="store_true", help="only the loops with a policy")
    chosen = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    for loops in (True,) if chosen.loops else (False, True):
        if chosen.again:
            report.publish(report.load(report.STORED[loops].read_text()), loops)
            continue
        wanted = [name for name in chosen.only or WORKLOADS if bool(WORKLOADS[name].loop) == loops]
        if not wanted:
            continue
        result = measure(chosen, wanted, LOOPERS if loops else CONTESTANTS)
        report.print_all(result)
        if chosen.only or chosen.contestants:
            path = CACHE / "compare.json"
            path.write_text(report.compact(result))
            print(f"\nwrote {path}; docs/performance.md is written by a run of everything")
        else:
            report.STORED[loops].write_text(report.compact(result))
            report.publish(result, loops)


def measure(chosen: argparse.Namespace, wanted: list[str], contestants: list[Contestant]) -> dict[str, Any]:
    """These workloads, all contestants in turn."""
    result: dict[str, Any] = {
        "machine": describe(),
        "cores": [two_against_one()],
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"make compare{' ARGS=' + shlex.quote(shlex.join(sys.argv[1:])) if sys.argv[1:] else ''}",
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "pause": chosen.pause,
    }
    print(words(result["cores"][0]))
    print(result["machine"])
    begin = time.monotonic()
    workloads: dict[str, Any] = {}
    field = Field(chosen.contestants, contestants)
    result["contestants"], result["workloads"] = field.told, workloads
    report.print_missing(result)
    try:
        for name in wanted:
            if WORKLOADS[name].pause:
                workloads[name] = pause(field, name, chosen.pause)
            else:
                workloads[name] = play(field, name, chosen.rounds, chosen.seconds)
            report.print_workload(result, name)
            result["cores"].append(two_against_one())
    finally:
        field.close()
    result["minutes"] = round((time.monotonic() - begin) / 60, 1)
    return result


if __name__ == "__main__":
    main()
