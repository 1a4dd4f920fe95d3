"""A pool played at random, with faults, beside a model that knows what each env owes, and all that a row may be."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from reference import MODES

import shmenv

MakePool = Callable[..., shmenv.Pool]
Command = tuple[str, int, int]  # ("step", what, token) or ("reset", mark, 0)
STRESS_SEEDS = int(os.environ.get("SHMENV_STRESS_SEEDS", "40"))
OK, RAISE, KILL, EXIT, MISFIT, TERMINATE, TRUNCATE, LONG_INFO = range(8)
FAILURES = (RAISE, KILL, EXIT, MISFIT)
WEIGHTS = (20, 1.5, 1, 0.7, 1.5, 3, 2, 3)
BAD_MARK = 13
PADDING = b"p" * 40_000  # longer than a side area


class PlayedEnv(gymnasium.Env[Any, Any]):
    """Does `action % 8`; obs = [action // 8, which step of its episode it is], [-1 - mark, 0] after a reset."""

    observation_space = Box(-(2**60), 2**60, (2,), np.int64)
    action_space = Discrete(2**60)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        mark = (options or {}).get("mark", 0)
        if mark == BAD_MARK:
            raise ValueError("no such mark")
        return np.array([-1 - mark, 0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        token, what = divmod(int(action), 8)
        self.count += 1
        if what == RAISE:
            raise ValueError("as told")
        if what == KILL:
            os.kill(os.getpid(), 9)
        if what == EXIT:
            os._exit(3)
        obs = np.zeros(3, np.int64) if what == MISFIT else np.array([token, self.count])
        info = {"token": token, "pad": PADDING if what == LONG_INFO else b""}
        return obs, float(self.count), what == TERMINATE, what == TRUNCATE, info

    def size(self, padding: bytes) -> int:
        return len(padding)


class Play:
    """Plays a pool, and compares what comes with what the model allows."""

    def __init__(self, pool: shmenv.Pool, mode: str, policy: str, rng: random.Random) -> None:
        self.pool, self.mode, self.policy, self.rng, self.n = pool, mode, policy, rng, pool.num_envs
        self.token = 0
        self.owed: dict[int, Command] = {}
        self.to_reset = set(range(self.n))
        self.unsure: set[int] = set()  # idle envs of a worker that has ended: perhaps they need a reset
        self.last: dict[int, list[int]] = {}
        self.over = dict.fromkeys(range(self.n), False)
        self.views: list[tuple[shmenv.Batch, shmenv.Batch]] = []

    def run(self, moves: int) -> None:
        choices = [
            self.step, self.step, self.send, self.send, self.recv, self.recv, self.recv, self.reset, self.reset_some,
            self.reset_some, self.call,
        ]  # fmt: skip
        for _ in range(moves):
            self.rng.choice(choices)()
            assert self.pool.pending == len(self.owed)
            assert set(self.pool.pending_ids) <= set(self.owed)
            self.check_views()
        while self.owed:
            self.take(lambda: self.pool.recv(min_envs=1, timeout=20))
        assert self.pool.pending == 0

    # -- moves

    def some(self) -> list[int]:
        return sorted(self.rng.sample(range(self.n), self.rng.randint(1, self.n)))

    def step(self) -> None:
        self.play(
            list(range(self.n)), lambda actions: self.pool.step(actions), (OK, RAISE, MISFIT, TERMINATE, TRUNCATE)
        )

    def send(self) -> None:
        ids = [i for i in self.some() if self.rng.random() < 0.2 or (i not in self.owed and i not in self.to_reset)]
        self.rng.shuffle(ids)
        if ids:
            self.play(ids, lambda actions: self.pool.send(actions, env_id=ids), range(8))

    def play(self, ids: list[int], command: Callable[[list[int]], shmenv.Batch | None], faults: Iterable[int]) -> None:
        commands: dict[int, Command] = {}
        for i in ids:
            self.token += 1
            commands[i] = "step", self.rng.choices(list(faults), [WEIGHTS[what] for what in faults])[0], self.token
        wrong = [i for i in ids if i in self.owed or i in self.to_reset]
        before = dict(self.owed)
        self.owed.update(commands)
        try:
            batch = command([token * 8 + what for _, what, token in commands.values()])
            assert not wrong
            self.check(batch)
        except shmenv.EnvError as error:
            assert not wrong
            self.blame(error)
        except shmenv.WorkerDiedError as error:  # one from before, so nothing was sent
            self.owed = before
            self.blame(error)
        except shmenv.UsageError as error:
            self.owed = before
            lost = {i for i in ids if f"env {i} cannot be stepped: it needs a reset" in str(error)}
            assert wrong or (lost and self.unsure >= lost)
            self.to_reset |= lost

    def recv(self) -> None:
        if not self.owed:
            with pytest.raises(shmenv.UsageError, match="no env is pending"):
                self.pool.recv(timeout=0)
            return
        need = self.rng.randint(1, len(self.owed))
        width = (need,)
        how = self.rng.choice(["default", "some", "poll", "out"])
        if how == "out":
            arrays = np.zeros((need, 2), np.int64), np.zeros(width), np.zeros(width, bool), np.zeros(width, bool)
            none = shmenv.Infos.empty(need)
            out = shmenv.Batch(np.zeros(width, np.int32), *arrays, none, np.zeros((need, 2), np.int64), none)
            self.take(lambda: self.pool.recv(min_envs=need, out=out, timeout=20))
        elif how == "poll":
            self.take(lambda: self.pool.recv(min_envs=need, timeout=0))
        else:
            self.take(lambda: self.pool.recv(min_envs=need if how == "some" else None, timeout=20))

    def options(self) -> tuple[dict[str, Any], Command]:
        mark = self.rng.choice([0, 1, 2, BAD_MARK])
        return {"mark": mark, "pad": PADDING if self.rng.random() < 0.3 else b""}, ("reset", mark, 0)

    def reset(self) -> None:
        options, command = self.options()
        self.owed, self.unsure = dict.fromkeys(range(self.n), command), set()
        self.take(lambda: self.pool.reset(options=options))

    def reset_some(self) -> None:
        ids, (options, command), before = self.some(), self.options(), dict(self.owed)
        reset = self.rng.choice([self.pool.reset, self.pool.send_reset])
        self.owed.update(dict.fromkeys(ids, command))
        try:
            batch = reset(options=options, env_id=ids)
            assert not before.keys() & set(ids)
            self.unsure -= set(ids)
            self.check(batch)
        except shmenv.EnvError as error:
            self.blame(error)
        except shmenv.WorkerDiedError as error:
            self.owed = before
            self.blame(error)
        except shmenv.UsageError:
            assert before.keys() & set(ids)
            self.owed = before

    def call(self) -> None:
        ids, padding = self.some(), self.rng.choice([b"", PADDING])
        try:
            assert self.pool.call("size", padding, env_id=ids) == (len(padding),) * len(ids)
        except shmenv.WorkerDiedError as error:
            self.blame(error)

    # -- what comes of them

    def take(self, receive: Callable[[], shmenv.Batch]) -> None:
        try:
            self.check(receive())
        except shmenv.RecvTimeoutError:
            assert self.pool.pending == len(self.owed)
        except (shmenv.EnvError, shmenv.WorkerDiedError) as error:
            self.blame(error)
        except shmenv.UsageError as error:  # more than still can come, for some is lost, which this call has found
            assert "min_envs" in str(error) and len(self.pool.pending_ids) < len(self.owed)

    def blame(self, error: shmenv.EnvError | shmenv.WorkerDiedError) -> None:
        if isinstance(error, shmenv.EnvError):
            kind, what, _ = self.owed.pop(error.env_id)
            assert what == BAD_MARK if kind == "reset" else what in (RAISE, MISFIT) and self.policy == "raise"
            self.to_reset.add(error.env_id)
            return
        pending = set(self.pool.pending_ids)
        gone = {i for i in error.env_ids if i in self.owed and i not in pending}
        for i in gone:
            del self.owed[i]
        self.to_reset |= gone
        self.unsure |= set(error.env_ids) - gone

    def check(self, batch: shmenv.Batch | None) -> None:
        if batch is None:
            return
        for k, i in enumerate(batch.env_id.tolist()):
            kind, what, token = self.owed.pop(i)  # a KeyError: a row that nobody asked for
            obs, final = batch.obs[k].tolist(), batch.final_obs[k].tolist()
            ended = bool(batch.terminated[k] or batch.truncated[k])
            if "abnormal" in batch.info[k]:
                assert (kind, self.policy) == ("step", "restart") and batch.truncated[k] and batch.reward[k] == 0
                assert final == self.last[i] and obs == ([-1, 0] if self.mode == "same_step" else self.last[i])
            elif kind == "reset" or (self.mode == "next_step" and self.over[i]):
                assert obs == [-1 - (what if kind == "reset" else 0), 0] and batch.reward[k] == 0 and not ended
            else:
                played = [token, self.last[i][1] + 1]
                assert what not in FAILURES and ended == (what in (TERMINATE, TRUNCATE))
                assert (final if ended else obs) == played and batch.reward[k] == played[1]
                assert not (ended and self.mode == "same_step") or obs == [-1, 0]
                info = (batch.final_info if ended else batch.info)[k]
                assert info == {"token": token, "pad": PADDING if what == LONG_INFO else b""}
            self.last[i], self.over[i] = obs, ended
            self.to_reset.discard(i)
            if ended and self.mode == "disabled":
                self.to_reset.add(i)
        if batch.is_view:
            self.views.append((batch, batch.copy()))

    def check_views(self) -> None:
        self.views = [(view, copy) for view, copy in self.views if view.valid()]
        for view, copy in self.views:
            assert (view.obs == copy.obs).all() and (view.reward == copy.reward).all()


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 8 + STRESS_SEEDS), marks=pytest.mark.stress)])
@pytest.mark.parametrize("policy", ["raise", "restart"])
@pytest.mark.parametrize("mode", MODES)
def test_whatever_is_asked_of_a_pool_each_command_is_answered_or_reported_once(
    mode: str, policy: str, seeds: range, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred moves a seed, for two policies in three modes."""
    caplog.set_level(logging.CRITICAL, "shmenv")
    for seed in seeds:
        rng = random.Random(f"{mode} {policy} {seed}")
        n = rng.choice([1, 3, 5])
        pool = make_pool(
            [PlayedEnv] * n, num_workers=rng.randint(1, min(3, n)), batch_size=rng.randint(1, n), autoreset=mode,
            on_error=policy, slots=rng.choice([2, 4]), copy=rng.random() < 0.2, debug=rng.random() < 0.5,
            restart_period=0.0,
        )  # fmt: skip
        print(f"seed {seed}: {pool!r}")
        Play(pool, mode, policy, rng).run(100)
        pool.close()
