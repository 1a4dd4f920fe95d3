"""The seed with which each env starts, the first time and anew in each further process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shmenv._info import pack_object, unpack_info
from shmenv.batch import Array


class Seeds:
    """The k-th fresh start of an env in a new process since it got its seed has `seed + k * num_envs`."""

    def __init__(self, num_envs: int) -> None:
        self.given: list[int | None] = [None] * num_envs  # by the caller
        self.due: set[int] = set()  # envs of a new process that have a seed and were not reset yet
        self._lives = [0] * num_envs  # how often each env started anew in a new process since it got its seed

    def give(self, ids: Array, seeds: Sequence[int | None]) -> None:
        """The caller gives envs a seed, or None; restarts of those with one count anew from here."""
        for i, seed in zip(ids.tolist(), seeds, strict=True):
            if seed is not None:
                self.given[i], self._lives[i] = seed, 0

    def current(self, env_id: int) -> int | None:
        """The seed from which all that an env has done since can be played again. None: it has none."""
        seed = self.given[env_id]
        return None if seed is None else seed + self._lives[env_id] * len(self.given)

    def lose_process(self, ids: Iterable[int]) -> None:
        """The process of these envs has ended: their next reset starts them anew."""
        self.due.update(i for i in ids if self.given[i] is not None)

    def payload(self, env_id: int, given: bytes = b"") -> bytes:
        """What a reset that starts an env anew takes along: its next seed, unless `given`, the caller's, has one."""
        asked = unpack_info(given) if given else {"seed": None, "options": None}
        if asked["seed"] is None and self.given[env_id] is not None:
            self._lives[env_id] += 1
            asked["seed"] = self.current(env_id)
        return pack_object(asked)
