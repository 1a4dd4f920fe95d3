"""Ready rows as arrays: view or copy, and until when they are valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shmenv.info import Infos

if TYPE_CHECKING:
    from shmenv._port import Port

Array = np.ndarray[Any, Any]


class Batch:
    """What n envs answered, one row each, in ascending env_id.

    Attributes:
        env_id: int32 (n,).
        obs: as the observation space, each array with a leading axis: (n, *shape). What fits no array is a tuple of n.
        reward: float64 (n,), or (n, *reward_shape) for vector rewards.
        terminated, truncated: bool (n,).
        final_obs: like obs; row k is the last observation of the episode that ended in row k, and means nothing where
            none ended. With autoreset "same_step" these are rows of their own, otherwise it is obs itself.
        info: `info[k]` is row k's dict, decoded when looked at; `info.column(name)` gives one key as arrays.
        final_info: the same for the step that ended an episode; {} where none ended.

    A view shares memory with the pool. It is valid until the pool gives a command that writes one of its rows, with
    slots=2 the second next step of one of its envs; `valid()` tells. A copy is valid for ever.
    """

    __slots__ = (
        "_plane", "_port", "_serial", "env_id", "final_info", "final_obs", "info", "obs", "reward", "terminated",
        "truncated",
    )  # fmt: skip

    def __init__(
        self,
        env_id: Array,
        obs: Any,
        reward: Array,
        terminated: Array,
        truncated: Array,
        info: Infos,
        final_obs: Any,
        final_info: Infos,
        port: Port | None = None,
        plane: int = -1,
    ) -> None:
        self.env_id = env_id
        self.obs = obs
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.info = info
        self.final_obs = final_obs
        self.final_info = final_info
        self._port = port
        self._plane = plane
        self._serial = 0 if port is None else port.last_serial

    def __len__(self) -> int:
        return len(self.env_id)

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a Batch is not unpacked but read: batch.obs, batch.reward, batch.terminated, batch.truncated, batch.info, "
            "batch.env_id; and batch.final_obs, batch.final_info of episodes that ended"
        )

    def __repr__(self) -> str:
        kind = "copy" if self._port is None else "view" if self.valid() else "view, no longer valid"
        return f"Batch({len(self)} envs, {kind}, env_id={np.array2string(self.env_id, threshold=8)})"

    @property
    def is_view(self) -> bool:
        """Whether the arrays are the pool's own memory."""
        return self._port is not None

    def valid(self) -> bool:
        """Whether the arrays still hold what they held at first."""
        if self._port is None or not len(self.env_id):
            return True
        return not self._port.written_since(int(self.env_id[0]), len(self.env_id), self._plane, self._serial)

    def take(self, other: Batch) -> Batch:
        """Become another batch, gathered into this one's arrays. Called by: `Pool.recv(out=...)`."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
        return self

    def copy(self) -> Batch:
        """The same rows in memory of their own."""
        obs = copy_tree(self.obs)
        return Batch(
            self.env_id.copy(),
            obs,
            self.reward.copy(),
            self.terminated.copy(),
            self.truncated.copy(),
            self.info,
            obs if self.final_obs is self.obs else copy_tree(self.final_obs),
            self.final_info,
        )

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, and deep-copied, as a copy: the pool's memory does not travel."""
        return Batch, (
            self.env_id, self.obs, self.reward, self.terminated, self.truncated, self.info, self.final_obs,
            self.final_info,
        )  # fmt: skip


def copy_tree(value: Any) -> Any:
    """Dicts, tuples and arrays copied at every depth; other objects are immutable here or belong to the batch alone."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: copy_tree(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(copy_tree(item) for item in value) if type(value) is tuple else value
    return value
