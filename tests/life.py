"""A pool beside a plain loop over the same envs, some of which fail: what must come out of either, row by row."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from envs import FAULTS, NAMES, ScriptedEnv
from reference import Loop, Row, same
from seeded import WalkEnv

import shmenv

SEED = 5
RAISING = {"raise": "KeyError", "raise_odd": "OddError", "raise_held": "HeldError", "sys_exit": "SystemExit",
           "interrupt": "KeyboardInterrupt"}  # fmt: skip
ENDING = {"kill": -9, "exit": 3, "segfault": -11, "crash": -11}  # exit codes
LATE = ("hang", "hang_native", "stop")
LIMIT = 0.25  # seconds for a step, where it is limited


class FaultyWalkEnv(WalkEnv):
    """A seeded random walk that fails before its step does anything if the action says so (100 + the fault's number),
    and in resets with `options["fault"]`.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options and "fault" in options:
            FAULTS[options["fault"]](self)  # type: ignore[arg-type]
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action >= 100:
            FAULTS[NAMES[int(action) - 100]](self)  # type: ignore[arg-type]
        return super().step(action)


def rows_of(batch: shmenv.Batch) -> dict[int, Row]:
    """The rows of a batch, copied."""
    return {i: one_row(batch, k) for k, i in enumerate(batch.env_id.tolist())}


def one_row(batch: shmenv.Batch, k: int) -> Row:
    """Row k of a batch, copied."""
    terminated, truncated = bool(batch.terminated[k]), bool(batch.truncated[k])
    ended = terminated or truncated
    return Row(
        batch.obs[k].copy(), float(batch.reward[k]), terminated, truncated, dict(batch.info[k]),
        batch.final_obs[k].copy() if ended else None, dict(batch.final_info[k]),
    )  # fmt: skip


def assert_same(got: Row, wanted: Row, where: str) -> None:
    """Equal in all that a row holds."""
    assert same(got.obs, wanted.obs), where
    assert got.reward == np.float64(wanted.reward), where
    assert (got.terminated, got.truncated) == (wanted.terminated, wanted.truncated), where
    assert same(got.info, wanted.info) and same(got.final_info, wanted.final_info), where
    assert same(got.final_obs, wanted.final_obs if wanted.ended else None), where


class World:
    """n walks in a pool and in a loop, stepped alike."""

    def __init__(
        self,
        make_pool: Callable[..., shmenv.Pool],
        n: int,
        num_workers: int,
        mode: str,
        lock_step: bool,
        **options: Any,
    ) -> None:
        self.n, self.mode, self.lock_step = n, mode, lock_step
        self.pool = make_pool([FaultyWalkEnv] * n, num_workers=num_workers, autoreset=mode, **options)
        self.loop = Loop([WalkEnv] * n, mode)
        self.rng = np.random.default_rng(1)
        self.last: dict[int, Any] = {}  # observations delivered
        self.restarts = dict.fromkeys(range(n), 0)
        self.new_process: set[int] = set()  # envs whose next reset is the first in a new process

    def reset(self) -> None:
        """All, with seeds."""
        rows = rows_of(self.pool.reset(seed=SEED))
        wanted = self.loop.reset({i: SEED + i for i in range(self.n)})
        for i, row in rows.items():
            assert_same(row, wanted[i], f"reset of env {i}")
            self.last[i] = row.obs
        assert len(rows) == self.n

    def reset_some(self, ids: Iterable[int], seed: int | None = None) -> None:
        """These envs, without a seed if not said otherwise: a new process then begins with a seed of its own."""
        ids = sorted(ids)
        if not ids:
            return
        seeds = None if seed is None else [seed + i for i in ids]
        rows = rows_of(self.pool.reset(seed=seeds, env_id=ids))
        assert sorted(rows) == ids
        for i, row in rows.items():
            assert_same(row, self.fresh(i, None if seed is None else seed + i), f"reset of env {i}")
            self.last[i] = row.obs

    def fresh(self, i: int, seed: int | None = None) -> Row:
        """The reset row that env i must give next: of a new process, if it lost its old one."""
        if i in self.new_process:
            self.new_process.discard(i)
            self.loop.envs[i] = WalkEnv()
            seed = SEED + i + self.restarts[i] * self.n if seed is None else seed
        return self.loop.reset({i: seed}, env_id=[i])[i]

    def lose(self, ids: Iterable[int]) -> None:
        """Their worker has ended."""
        for i in ids:
            self.restarts[i] += 1
            self.new_process.add(i)

    def actions(self, faults: Mapping[int, str] | None = None) -> np.ndarray[Any, Any]:
        """Random ones, but for the envs that shall fail."""
        actions = self.rng.integers(4, size=self.n)
        for i, fault in (faults or {}).items():
            actions[i] = 100 + NAMES.index(fault)
        return actions

    def play(self, actions: np.ndarray[Any, Any]) -> tuple[dict[int, Row], list[shmenv.ShmenvError]]:
        """Step all envs, and take everything that comes of it: rows and errors, each env once."""
        rows: dict[int, Row] = {}
        errors: list[shmenv.ShmenvError] = []

        def take(ask: Callable[[], shmenv.Batch]) -> None:
            try:
                found = rows_of(ask())
            except (shmenv.EnvError, shmenv.WorkerDiedError, shmenv.WorkerTimeoutError) as error:
                errors.append(error)
                return
            assert not found.keys() & rows.keys(), "a row came twice"
            rows.update(found)

        if self.lock_step:
            take(lambda: self.pool.step(actions))
        else:
            self.pool.send(actions)
        while self.pool.pending:
            take(lambda: self.pool.recv(min_envs=1, timeout=30))
        self.last.update({i: row.obs for i, row in rows.items()})
        return rows, errors

    def step(self) -> None:
        """One good step of all envs, each as in the loop; then those are reset that need it."""
        actions = self.actions()
        resets = {i: self.fresh(i) for i in sorted(self.new_process) if self.mode == "next_step" and self.loop.ended[i]}
        rows, errors = self.play(actions)
        assert not errors
        wanted = resets | self.loop.step({i: int(actions[i]) for i in range(self.n) if i not in resets})
        assert sorted(rows) == list(range(self.n))
        for i, row in rows.items():
            assert_same(row, wanted[i], f"env {i}")
        if self.mode == "disabled":
            self.reset_some(i for i, row in rows.items() if row.ended)

    def warm_up(self) -> None:
        """Until no episode is just over."""
        self.reset()
        self.step()
        self.step()
        while any(self.loop.ended):
            self.step()

    def check_loss(self, i: int, row: Row, before: Any, says: str) -> None:
        """Env i's row is what stands in place of a lost one; `before` is the last observation delivered."""
        assert (row.reward, row.terminated, row.truncated) == (0.0, False, True)
        assert row.info["abnormal"] is True and row.final_info["abnormal"] is True
        assert says in row.info["error"] and says in row.final_info["error"]
        assert same(row.final_obs, before)
        if self.mode == "same_step":
            wanted = self.fresh(i)
            assert same(row.obs, wanted.obs)
            assert same({**wanted.info, "abnormal": True, "error": row.info["error"]}, row.info)
        else:
            assert same(row.obs, before)
            self.loop.ended[i] = True


class CountedEnv(ScriptedEnv):
    """Keeps account of its constructions and resets in a file that outlives its process, and fails by their number.

    `resets[k]` is what the k-th reset does first, counted over all its processes; `constructs[k]` likewise.
    """

    def __init__(self, log: str, resets: Sequence[str] = (), constructs: Sequence[str] = (), **kwargs: Any) -> None:
        self.log, self.resets = log, resets
        count = len(entries(log, "construct"))
        self.note("construct", None, None)
        FAULTS[constructs[count] if count < len(constructs) else "ok"](self)
        super().__init__(**kwargs)

    def note(self, what: str, seed: int | None, options: dict[str, Any] | None) -> None:
        with open(self.log, "a") as log:
            log.write(json.dumps({"what": what, "pid": os.getpid(), "seed": seed, "options": options,
                                  "time": time.monotonic()}) + "\n")  # fmt: skip

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        count = len(entries(self.log, "reset"))
        self.note("reset", seed, options)
        FAULTS[self.resets[count] if count < len(self.resets) else "ok"](self)
        return super().reset(seed=seed, options=options)


def entries(log: str, what: str) -> list[dict[str, Any]]:
    """What a CountedEnv has noted."""
    if not os.path.exists(log):
        return []
    with open(log) as lines:
        return [entry for entry in map(json.loads, lines) if entry["what"] == what]
