"""The processor time that this process may use: usable cores, worker placement, thread limits."""

from __future__ import annotations

import math
import operator
import os
import time
from collections import Counter
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from shmenv.errors import UsageError

# What numerical libraries read when they are loaded. All but the first fall back to the first: OpenBLAS, MKL, BLIS and
# numexpr by themselves; torch takes its number from OpenMP or MKL.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Nanoseconds; bench/waits.py measures what they do.
SPIN_NS = 200_000  # what a wait is spun through at least, while it is expected to be short enough
PATIENCE_NS = 5_000_000  # what it is spun through at most, by expectation: a policy's work, mostly
LATE_NS = 30_000  # a spin that notices so late was not alone on its core
HEARTBEAT_NS = 100_000_000  # longest single sleep of any wait

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 1.0  # seconds between two moves of workers; a move costs some 20 us
CALM = 20  # moves are not repeated for so many pauses: the last one held


def usable_cores(root: str | Path = "/") -> int:
    """How many cores this process can keep busy: its affinity mask, cut by the CPU quota of its cgroups.

    Never the machine's number of cores, which a container or a batch system usually does not grant.

    Args:
        root: where /proc and /sys are found; tests put their own there.

    Returns:
        At least 1. A quota is rounded up: one and a half cores are used better by two workers than by one.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota(root: str | Path = "/") -> float | None:
    """The smallest CPU quota, in cores, of this process's cgroups (v1 and v2) and all their visible ancestors.

    Returns:
        None if there is no quota, or nothing about cgroups can be read.
    """
    root = Path(root)
    quotas: list[float] = []
    for mount, group in _cpu_groups(root):
        for folder in (group, *group.parents):
            quota = _folder_quota(folder)
            if quota is not None:
                quotas.append(quota)
            if folder == mount:
                break
    return min(quotas, default=None)


def _cpu_groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Each hierarchy that limits CPU time here: where it is mounted, and this process's folder in it."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths: dict[str, str] = {}  # file system type to this process's group
    for line in groups:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for line in mounts:
        # proc(5): id, parent, device, root, mount point, options, any optional fields, "-", type, source, super options
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in paths or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        top, point = left.split(" ")[3:5]
        mount = root / point.lstrip("/")
        # Without a cgroup namespace, a container's path starts at the machine's top, its mount at its own part, `top`.
        inside = paths[kind] if top == "/" else paths[kind].removeprefix(top)
        group = mount / inside.lstrip("/")
        yield mount, group if group.is_dir() else mount


def _folder_quota(folder: Path) -> float | None:
    try:  # v2
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:  # v1
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    # "max" in v2 and -1 in v1 mean none
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Give each numerical library one thread, unless the user chose a number.

    With a process a core, every further thread only takes time from another worker. Libraries read these variables
    once, when they are loaded, so this comes before that.

    Args:
        environ: the environment to change.

    Returns:
        The variables that were set; none of them was there before.
    """
    # Who set OpenMP's number meant the others too: they all fall back to it.
    names = [] if "OMP_NUM_THREADS" in environ else [name for name in THREAD_VARIABLES if name not in environ]
    environ.update(dict.fromkeys(names, "1"))
    return names


@contextmanager
def limited_threads(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """`limit_threads` while the block runs: the processes started in it inherit the limits, the caller keeps none."""
    names = limit_threads(environ)
    try:
        yield
    finally:
        for name in names:
            environ.pop(name, None)


def pin_plan(affinity: Literal["spread"] | Sequence[int] | None, num_workers: int) -> list[set[int] | None]:
    """Which cores each worker may run on.

    Args:
        affinity: None leaves placement to the kernel, which is right unless the machine is all yours. "spread" gives
            each worker one core, in turn over those this process may use. A sequence names the cores to take in turn.
        num_workers: length of the plan.

    Returns:
        One entry a worker: the set of core numbers for `os.sched_setaffinity`, or None for no change.

    Raises:
        UsageError: affinity is none of these, is empty, or names a core that this process may not use.
    """
    if affinity is None:
        return [None] * num_workers
    allowed = sorted(os.sched_getaffinity(0))
    if isinstance(affinity, str):
        if affinity != "spread":
            raise UsageError(f'affinity is {affinity!r}; it must be None, "spread", or a sequence of core numbers')
        cores = allowed
    else:
        try:
            cores = [operator.index(core) for core in affinity]
        except TypeError:
            raise UsageError(
                f'affinity is {affinity!r}; it must be None, "spread", or a sequence of core numbers'
            ) from None
        if not cores:
            raise UsageError("affinity names no core; None leaves placement to the kernel")
        refused = sorted(set(cores) - set(allowed))
        if refused:
            raise UsageError(f"affinity names cores {refused}, but this process may run on {allowed} only")
    return [{cores[worker % len(cores)]} for worker in range(num_workers)]


class Waits(NamedTuple):
    """How both sides of a pool wait, in nanoseconds. core/atomic.h says what they do, where `shm_wait` has them."""

    spin_ns: int = SPIN_NS
    patience_ns: int = PATIENCE_NS
    late_ns: int = LATE_NS
    heartbeat_ns: int = HEARTBEAT_NS


def choose_waits(num_workers: int) -> Waits:
    """How the caller and so many workers wait for each other here.

    Workers that share a core wait for each other's turns, so they spin for longer, but not through a policy. Nor does
    anybody where a cgroup grants less CPU time than all of them spinning would use: they would be throttled for it.
    """
    if num_workers > usable_cores():
        return Waits(2 * SPIN_NS, 0)
    quota = cpu_quota()
    return Waits() if quota is None or quota >= num_workers + 1 else Waits(patience_ns=0)


class Spreader:
    """Moves workers apart that the kernel keeps on one core while another has fewer. Nothing is pinned by it.

    The kernel does so to processes that hand over to one another often: each is woken where the waker runs, and a core
    that is idle for microseconds only fetches no work. Who moves back is left alone for longer each time, so that a
    machine on which the kernel knows better is not disturbed.

    Called by: the manager's thread, while the workers are at work.
    """

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._next = self._calm_at = 0.0  # time.monotonic

    def spread(self, pids: Sequence[int], cores: Sequence[int]) -> None:
        """Have as many workers on each core that this process may use, or one more or less.

        Args:
            pids: the workers; 0 for one that is not running.
            cores: where each of them is.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if now < self._calm_at else FIRST_PAUSE
        self._next, self._calm_at = now + self._pause, now + CALM * self._pause
        count = Counter(cores)
        allowed = sorted(os.sched_getaffinity(0))
        fair = -(-len(cores) // len(allowed))
        for pid, core in zip(pids, cores, strict=True):
            emptiest = min(allowed, key=count.__getitem__)
            if pid and count[core] > fair and count[emptiest] < fair:
                _move(pid, emptiest)
                count[core] -= 1
                count[emptiest] += 1


def _move(pid: int, core: int) -> None:
    """Have a process go on on another core, from which it may go where it might before."""
    try:
        allowed = os.sched_getaffinity(pid)
        if core in allowed:
            try:
                os.sched_setaffinity(pid, {core})
            finally:
                os.sched_setaffinity(pid, allowed)
    except OSError:  # it has just ended
        pass
