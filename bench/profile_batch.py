"""Where does every microsecond of a lock-step batch go, with 8 and with 64 CartPole envs in two workers?

The caller's part is `Pool.step` line by line, with the time between the lines. In each worker the first and the last
env note when they begin and end (one clock for all processes), so what the caller waits for splits into start, envs
and end of the worker that ends last. The parts of a batch add up to it. In turn with that, in the same run: a pool that
notes nothing, and processes that never talk, for what env.step costs.

    .venv/bin/python bench/profile_batch.py            writes docs/performance.md
    .venv/bin/python bench/profile_batch.py --print    prints only
"""

import argparse
import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import shmenv
from cases import CASES, Case
from machine import describe
from shmenv import _port

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- written by bench/profile_batch.py -->", "<!-- end of the profile -->"
WORKERS = 2
TURNS, SECONDS, WARM = 150, 0.02, 16  # turns of each, their length, batches before each that do not count
KEPT = 0.2  # of the turns, the fastest, with all their batches: what the others lost is other programs' doing
now = time.perf_counter_ns  # CLOCK_MONOTONIC: the same in every process

CALLER = ("caller: takes its turn, checks", "caller: writes the actions", "caller: gives the commands, rings the bells")
TAKEN, ENVS = "worker: from the bells to its first env.step", "worker: env.step and resets, as where nobody talks"
LOOP = "worker: around env.step (take, check, write and publish each row), mean of both workers"
UNEVEN = "the last worker's envs take longer than the mean (they reset more often)"
SEEN, MADE = (
    "from the end of the last env.step until the caller sees it",
    "caller: makes the batch, gives its turn back",
)


def make_noting(path: str, worker: int, first: bool, last: bool) -> Any:
    """A CartPole that notes when its steps begin, if it is its worker's first env, and end, if it is the last."""
    env: Any = gymnasium.make("CartPole-v1")
    cells = memoryview(np.memmap(path, np.int64, "r+", shape=(WORKERS, 2))[worker])
    step, reset = env.step, env.reset

    def noting_step(action: Any) -> Any:
        if first:
            cells[0] = now()
        result = step(action)
        if last:
            cells[1] = now()
        return result

    def noting_reset(**options: Any) -> Any:
        result = reset(**options)
        if last:
            cells[1] = now()
        return result

    env.step, env.reset = noting_step, noting_reset
    return env


def noting_fns(case: Case, path: str) -> list[Any]:
    share = case.num_envs // WORKERS
    places = [divmod(i, share) for i in range(case.num_envs)]
    return [partial(make_noting, path, worker, k == 0, k == share - 1) for worker, k in places]


def timed_step(pool: shmenv.Pool, action: Any, notes: Any) -> list[int]:
    """`Pool.step`, line by line: nanoseconds of each part, in their order."""
    begin = now()
    with pool._turn:
        exchange = pool._own_exchange()
        exchange.check_all_ready()
        checked = now()
        payloads = exchange.actions.write(action, None)
        written = now()
        exchange.command(None, _port.STEP, payloads, exchange.next_plane(), whole=True)
        rung = now()
        exchange._await_whole(None, pool.num_envs)
        seen = now()
        assert exchange._collect_plane() is not None
    end = now()
    first, last = max(notes.tolist(), key=lambda note: note[1])  # of the worker that ends last
    mean = int((notes[:, 1] - notes[:, 0]).mean())
    caller = [checked - begin, written - checked, rung - written]
    return [*caller, first - rung, mean, last - first - mean, seen - last, end - seen]


def plain_step(pool: shmenv.Pool, action: Any) -> list[int]:
    """Nanoseconds of a whole step, as one part."""
    begin = now()
    pool.step(action)
    return [now() - begin]


def step_alone(share: int) -> list[list[int]]:
    """Nanoseconds of some envs' steps and resets, as in a process that never talks: one part, for each batch.

    Called by: a process of each core.
    """
    envs = [CASES["cartpole"].make() for _ in range(share)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    batches: list[list[int]] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(batches) <= WARM:
        actions = list(np.random.default_rng(len(batches)).integers(2, size=share))
        begin = now()
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        batches.append([now() - begin])
    return batches[WARM:]


def microseconds(turns: list[list[list[int]]]) -> list[float]:
    """The mean of each part of a batch, over the fastest turns."""
    kept = sorted((np.mean(turn, axis=0) for turn in turns), key=sum)[: int(KEPT * len(turns))]
    means: list[float] = (np.mean(kept, axis=0) / 1000).tolist()
    return means


class Profile:
    """A batch of one size, in microseconds."""

    def __init__(self, num_envs: int) -> None:
        case = Case(f"{num_envs} CartPole", CASES["cartpole"].make, num_envs)
        actions, share = case.actions(), num_envs // WORKERS
        noted: list[list[list[int]]] = []
        plain: list[list[list[int]]] = []
        alone: list[list[list[int]]] = []
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.NamedTemporaryFile())
            notes = np.memmap(file.name, np.int64, "w+", shape=(WORKERS, 2))
            processes = stack.enter_context(multiprocessing.get_context("spawn").Pool(WORKERS))
            pools = [
                stack.enter_context(shmenv.Pool(env_fns, num_workers=WORKERS))
                for env_fns in (noting_fns(case, file.name), case.env_fns)
            ]
            for pool in pools:
                pool.reset(seed=0)
            counters = np.zeros(2)
            for _ in range(TURNS):
                alone += processes.map(step_alone, [share] * WORKERS, chunksize=1)
                for pool, turns, step in (
                    (pools[0], noted, partial(timed_step, notes=notes)),
                    (pools[1], plain, plain_step),
                ):
                    for action in actions[:WARM]:
                        pool.step(action)
                    turns.append([])
                    before, until = own_counters(pool), time.perf_counter() + SECONDS
                    while time.perf_counter() < until:
                        turns[-1].append(step(pool, actions[len(turns[-1]) % len(actions)]))
                    if pool is pools[1]:
                        counters += own_counters(pool) - before
        parts = microseconds(noted)
        (self.plain,), (self.alone,) = microseconds(plain), microseconds(alone)
        taken, mean, uneven, seen, made = parts[3:]
        self.parts = dict(zip(CALLER, parts, strict=False))
        self.parts |= {TAKEN: taken, ENVS: self.alone, LOOP: mean - self.alone, UNEVEN: uneven, SEEN: seen, MADE: made}
        self.whole = sum(parts)
        self.busy, self.idle = counters / sum(map(len, plain)) / WORKERS * 1e6


def own_counters(pool: shmenv.Pool) -> Any:
    """Seconds that its workers, all together, have been busy, and waited for commands."""
    workers = pool.stats()["workers"]
    return np.array([sum(worker[f"{what}_seconds"] for worker in workers) for what in ("busy", "wait")])


def table(profiles: dict[int, Profile]) -> list[str]:
    """The lines of a Markdown table, a column a profile."""

    def row(label: str, values: list[str]) -> str:
        return f"| {label} | {' | '.join(values)} |"

    each = list(profiles.values())
    lines = [row("microseconds a batch", [f"{count} envs" for count in profiles]), row("---", ["---"] * len(each))]
    for part in each[0].parts:
        shares = [f"{profile.parts[part]:.2f} ({100 * profile.parts[part] / profile.whole:.0f} %)" for profile in each]
        lines.append(row(part, shares))
    lines.append(row("**all of these: one batch**", [f"**{profile.whole:.1f}**" for profile in each]))
    beside = {
        "a batch of a pool that notes nothing": "plain",
        "its workers by their own counters, in all turns: busy": "busy",
        "the same: waiting for commands": "idle",
    }
    for label, name in beside.items():
        lines.append(row(label, [f"{getattr(profile, name):.1f}" for profile in each]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="leave docs/performance.md as it is")
    chosen = parser.parse_args()
    machine = describe()
    profiles = {count: Profile(count) for count in (8, 64)}
    lines = [
        f"`.venv/bin/python bench/profile_batch.py`, {datetime.now(UTC):%Y-%m-%d}, {WORKERS} workers: means over the"
        f" fastest {100 * KEPT:.0f} % of {TURNS} turns of {1000 * SECONDS:g} ms each.",
        f"{machine}.",
        "",
        *table(profiles),
    ]
    print("\n".join(lines))
    if not chosen.print:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        told = "\n".join(lines)
        PAGE.write_text(f"{before}{BEGIN}\n\n{told}\n\n{END}{after}")
        print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
