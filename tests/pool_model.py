"""What a pool of fated envs owes: the account of commands, kept beside it, and all that may come of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from fated_env import CONSTRUCT, ENDS, KINDS, PADDING, RESET, WORDS, Fates

import shmenv

RAISING = ("raise", "raise_odd", "raise_held", "sys_exit", "interrupt", "bad_shape", "bad_type", "bad_none")
DEADLY = ("kill", "exit", "segfault", "crash")
MANY = 99
LATE = ("hang", "hang_native", "stop")  # deadly where there is a timeout, else for ever


@dataclasses.dataclass
class Command:
    """What an env was asked last."""

    kind: str  # "step" or "reset"
    what: str  # a step: in the words of WORDS
    token: int  # of a step, or the mark of a reset
    seed: int | None
    clean: bool  # nothing was under way then that could end its worker
    fates: int  # resets that were to fail
    armed: bool  # something was to fail
    time: int = 0


Commands = dict[int, Command]


@dataclasses.dataclass
class Known:
    """What is known of an env.

    Attributes:
        last: the observation delivered last, None before the first.
        over: it ended an episode.
        danger: when something was done that may have ended its worker, since it was known to live; 0: nothing.
        needs_reset: for certain.
        untold: an error comes with its next step or call.
        lost: for good.
        labels: what its attribute may be.
        seed: the last one given.
    """

    last: list[int] | None = None
    over: bool = False
    danger: int = 0
    needs_reset: bool = True
    untold: bool = False
    lost: bool = False
    labels: list[Any] = dataclasses.field(default_factory=lambda: [None])
    seed: int | None = None


class Account:
    """Compares what a pool does with what it may."""

    def __init__(
        self, pool: shmenv.Pool, fates: Fates, mode: str, restarts: bool, recycles: bool, limited: bool
    ) -> None:
        self.pool, self.fates, self.mode = pool, fates, mode
        self.restarts, self.recycles, self.limited = restarts, recycles, limited
        self.envs = [Known() for _ in range(pool.num_envs)]
        self.worker_of = {i: w["worker_id"] for w in pool.stats()["workers"] for i in w["env_ids"]}
        self.owed: dict[int, Command] = {}
        self.time = self.token = self.losses = 0
        self.told: set[int | None] = set()  # process ids of workers whose end was told
        self.discarded = False
        self.views: list[tuple[shmenv.Batch, shmenv.Batch]] = []
        self.sent = [0] * pool.num_envs  # commands since it began
        self.shown: list[list[int]] = []  # `sent`, when each view was handed out

    # -- what is done

    def siblings(self, env_id: int) -> list[int]:
        return [i for i, worker_id in self.worker_of.items() if worker_id == self.worker_of[env_id]]

    def endanger(self, env_id: int) -> None:
        """Something may end the worker of this env, now or later."""
        self.time += 1
        for i in self.siblings(env_id):
            self.envs[i].danger = self.time
            self.envs[i].labels.append(None)

    def arm(self, where: int, env_id: int, fault: str, times: int) -> None:
        """The next resets or constructors of this env fail."""
        self.fates.arm(where, env_id, fault, times)
        self.endanger(env_id)
        if env_id in self.owed:
            self.owed[env_id].fates = MANY

    def is_armed(self, env_id: int) -> bool:
        return bool(self.fates.left(RESET, env_id) or self.fates.left(CONSTRUCT, env_id))

    def is_doomed(self, env_id: int, owed: Mapping[int, Command]) -> bool:
        """Whether something is still to come that may end the worker of this env."""
        return any(self.is_armed(i) or (i in owed and owed[i].what in DEADLY + LATE) for i in self.siblings(env_id))

    def commands(self, kind: str, asked: Mapping[int, tuple[str, int, int | None]], whole: bool = False) -> Commands:
        """What is about to be asked. asked: what, token or mark, and seed; whole: what is owed is dropped before."""
        owed = {} if whole else self.owed
        return {
            i: Command(kind, *what, not self.is_doomed(i, owed), self.fates.left(RESET, i), self.is_armed(i))
            for i, what in asked.items()
        }

    def note_sent(self, commands: Commands) -> None:
        """It was asked, just now."""
        self.time += 1
        self.owed |= commands
        for i, command in commands.items():
            self.sent[i] += 1
            command.time = self.time
            if command.kind == "reset":
                self.envs[i].untold = False
                self.envs[i].seed = self.envs[i].seed if command.seed is None else command.seed
        for i, command in commands.items():
            if command.armed or command.what in DEADLY + LATE:
                self.endanger(i)

    def steps(self, words: Mapping[int, str]) -> tuple[Commands, list[int]]:
        """Commands for these steps, and the actions."""
        asked = {}
        for i, word in words.items():
            self.token += 1
            asked[i] = word, self.token, None
        return self.commands("step", asked), [token * KINDS + WORDS.index(word) for word, token, _ in asked.values()]

    # -- what comes of it

    def blame(self, error: shmenv.ShmenvError, in_call: bool = False) -> None:
        if isinstance(error, shmenv.EnvError):
            self.blame_env(error)
        else:
            assert isinstance(error, shmenv.WorkerError)
            self.blame_worker(error, in_call)

    def blame_env(self, error: shmenv.EnvError) -> None:
        i, command = error.env_id, self.owed.pop(error.env_id, None)
        env = self.envs[i]
        assert error.worker_id == self.worker_of[i] and f"env {i}" in str(error)
        if command is None:  # of the reset after a row that came before
            assert env.untold and error.command == "reset"
        elif error.command == "reset":
            assert command.kind == "reset" or (self.mode == "next_step" and env.over)
            assert command.fates > self.fates.left(RESET, i)
        else:
            assert (command.kind, error.command) == ("step", "step") and command.what in RAISING and not self.restarts
            assert not (self.mode == "next_step" and env.over)
        env.untold, env.needs_reset = False, True

    def blame_worker(self, error: shmenv.WorkerError, in_call: bool) -> None:
        for_good = "lost for good" in str(error)
        assert error.env_ids == tuple(i for i in self.worker_of if self.worker_of[i] == error.worker_id)
        assert any(self.envs[i].danger or self.envs[i].untold for i in error.env_ids), "a death for no reason"
        if not for_good:
            assert error.pid not in self.told, "an end that is told twice"
            self.told.add(error.pid)
        pending, needy = set(self.pool.pending_ids), set(self.pool.needs_reset_ids)
        for i in error.env_ids:
            env = self.envs[i]
            env.untold, env.lost = False, env.lost or for_good
            if i in self.owed and i not in pending:
                command = self.owed.pop(i)
                is_reset = command.kind == "reset" or (self.mode == "next_step" and env.over)
                assert not self.restarts or for_good or is_reset, "a step that no loss row stands for"
                env.needs_reset = True
                assert i in needy, "not said to need a reset"

    def check(self, batch: shmenv.Batch) -> None:
        ids = batch.env_id.tolist()
        assert ids == sorted(set(ids)) and len(batch.obs) == len(ids)
        for k, i in enumerate(ids):
            self.check_row(i, self.owed.pop(i), batch, k)  # a KeyError: a row that nobody asked for
        if batch.is_view:
            assert batch.valid()
            self.views.append((batch, batch.copy()))
            self.shown.append(self.sent.copy())

    def check_row(self, i: int, command: Command, batch: shmenv.Batch, k: int) -> None:
        env, info, final_info = self.envs[i], dict(batch.info[k]), dict(batch.final_info[k])
        obs, final, reward = batch.obs[k].tolist(), np.asarray(batch.final_obs[k]).tolist(), batch.reward[k]
        terminated, truncated = bool(batch.terminated[k]), bool(batch.truncated[k])
        ended = terminated or truncated
        was_over = self.mode == "next_step" and env.over
        played = final
        if "abnormal" in info or "abnormal" in final_info:
            failed = command.what in RAISING or env.danger
            assert command.kind == "step" and not was_over and ((self.restarts and failed) or self.recycles)
            assert (terminated, truncated, reward, final) == (False, True, 0, env.last)
            assert info.pop("abnormal") and info.pop("error") == final_info["error"]
            self.losses += 1
            if command.what in DEADLY and env.seed is not None and "mark" in info:
                assert info["seed"] is not None, "a new process without its seed"
        elif command.kind == "reset" or was_over:
            mark = command.token if command.kind == "reset" else 0
            assert (obs, ended, reward, info["mark"]) == ([-1 - mark, 0], False, 0, mark)
            self.check_seed(env, info["seed"], command)
        else:
            assert env.last is not None and command.what not in RAISING + DEADLY + LATE
            assert (terminated, truncated) == tuple(command.what == end for end in ENDS)
            played = final if ended else obs
            assert played == [command.token, env.last[1] + 1] and reward == played[1]
            pad = PADDING if command.what == "long_info" else b""
            assert (final_info if ended else info) == {"token": command.token, "pad": pad}
        if command.clean and env.danger < command.time:
            env.danger = 0
        env.needs_reset = env.untold = False
        if ended and self.mode == "same_step" and "mark" not in info:  # the reset after it has failed
            assert obs == played and not info and (env.danger or env.lost or command.fates > self.fates.left(RESET, i))
            env.needs_reset = env.untold = True
        elif ended and self.mode == "same_step":
            assert (obs, info["mark"]) == ([-1, 0], 0)
            self.check_seed(env, info["seed"], None)
        elif ended:
            assert obs == played
            env.needs_reset = self.mode == "disabled"
        env.last, env.over = obs, ended

    def check_seed(self, env: Known, seed: int | None, command: Command | None) -> None:
        """The caller's, or none, or that of another life."""
        if command is not None and command.seed is not None:
            assert seed == command.seed
        elif seed is not None:
            assert env.seed is not None and seed > env.seed and (seed - env.seed) % len(self.envs) == 0

    # -- at any time

    def check_state(self) -> None:
        """What the pool says of its state."""
        pool, needy = self.pool, set(self.pool.needs_reset_ids)
        pending = pool.pending
        assert pending == len(self.owed), f"{pending} are pending, not {sorted(self.owed)}"
        assert set(pool.pending_ids) <= self.owed.keys() and not pool.closed
        assert f"{pool.pending} pending" in repr(pool)
        for i, env in enumerate(self.envs):
            assert i in needy or i in self.owed or not (env.needs_reset or env.lost), f"env {i} needs a reset, unsaid"
            if i in needy and not (env.needs_reset or env.lost):
                assert env.danger and (i in self.owed or not self.restarts or self.limited)
                env.needs_reset = i not in self.owed
        for seed, env in zip(pool.seeds, self.envs, strict=True):  # moved on by num_envs at each restart
            assert (seed is None) == (env.seed is None)
            assert seed is None or env.seed is None or (seed >= env.seed and (seed - env.seed) % len(self.envs) == 0)

    def check_views(self) -> None:
        """Views stay as they are as long as they say so: until the second next command to one of their envs."""
        kept = []
        for (view, copy), before in zip(self.views, self.shown, strict=True):
            is_valid = view.valid()
            assert is_valid or any(self.sent[i] >= before[i] + 2 for i in view.env_id.tolist())
            if is_valid:
                assert np.array_equal(view.obs, copy.obs) and np.array_equal(view.reward, copy.reward)
                kept.append(((view, copy), before))
        self.views, self.shown = [both for both, _ in kept], [before for _, before in kept]

    def check_stats(self) -> None:
        stats = self.pool.stats()
        assert stats["losses"] >= self.losses and stats["timeouts"] <= stats["restarts"] + len(self.envs)
        assert self.discarded or any(env.lost for env in self.envs) or self.owed or stats["losses"] == self.losses
