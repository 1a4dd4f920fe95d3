"""The reference: a plain Python loop over the same envs, and its comparison with a batch, value for value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

MODES = ("same_step", "next_step", "disabled")
CONTEXTS = ("fork", "spawn", "forkserver")


@dataclass
class Row:
    """What one env answered. `final_obs` counts only where the episode ended."""

    obs: Any
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    final_obs: Any = None
    final_info: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Loop:
    """Steps the envs one after the other in this process, with Gymnasium's autoreset semantics."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], autoreset: str = "same_step") -> None:
        self.envs = [env_fn() for env_fn in env_fns]
        self.autoreset = autoreset
        self.ended = [False] * len(self.envs)
        self.no_reward = np.zeros(getattr(getattr(self.envs[0], "reward_space", None), "shape", ()))

    def reset(
        self,
        seeds: Mapping[int, int | None] | None = None,
        options: Mapping[int, dict[str, Any] | None] | None = None,
        env_id: Iterable[int] | None = None,
    ) -> dict[int, Row]:
        rows = {}
        for i in range(len(self.envs)) if env_id is None else env_id:
            obs, info = self.envs[i].reset(seed=(seeds or {}).get(i), options=(options or {}).get(i))
            rows[i] = Row(deepcopy(obs), self.no_reward, info=deepcopy(info))
            self.ended[i] = False
        return rows

    def step(self, actions: Mapping[int, Any]) -> dict[int, Row]:
        return {i: self._step(i, action) for i, action in actions.items()}

    def _step(self, i: int, action: Any) -> Row:
        env = self.envs[i]
        if self.ended[i] and self.autoreset == "next_step":
            self.ended[i] = False
            obs, info = env.reset()
            return Row(deepcopy(obs), self.no_reward, info=deepcopy(info))
        assert not self.ended[i], "the test stepped an ended env"
        obs, reward, terminated, truncated, info = env.step(action)
        row = Row(deepcopy(obs), deepcopy(reward), bool(terminated), bool(truncated), deepcopy(info))
        if not row.ended:
            return row
        row.final_obs, row.final_info = row.obs, row.info
        if self.autoreset == "same_step":
            obs, info = env.reset()
            row.obs, row.info = deepcopy(obs), deepcopy(info)
        else:
            self.ended[i] = True
        return row


def same(one: Any, other: Any) -> bool:
    """Equal in value, type, dtype and shape, at every depth; NaN equals itself."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if type(one) is not type(other) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype == object:
            return all(same(a, b) for a, b in zip(one.ravel(), other.ravel(), strict=True))
        return one.tobytes() == other.tobytes() or np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other or (one != one and other != other))


def row_of(obs: Any, k: int, space: Any) -> Any:
    """Row k of a batch of observations of the space."""
    if isinstance(space, spaces.Dict):
        assert list(obs) == list(space.spaces), "the order of keys is the space's"
        return {key: row_of(obs[key], k, part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(leaf, k, part) for leaf, part in zip(obs, space.spaces, strict=True))
    return obs[k]


def in_space_types(value: Any, space: Any) -> Any:
    """What an env returned, as its space says it: arrays and numbers of the space's dtype and shape."""
    if isinstance(space, spaces.Dict):
        return {key: in_space_types(value[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_space_types(leaf, part) for leaf, part in zip(value, space.spaces, strict=True))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        row = np.zeros((1, *(space.shape or ())), space.dtype)
        row[0] = value
        return row[0]  # a scalar of that type where the shape is ()
    return value


def check(batch: Any, rows: Mapping[int, Row], space: Any) -> None:
    """Asserts that the batch holds these rows and no others, in ascending env_id."""
    ids = sorted(rows)
    assert batch.env_id.dtype == np.int32 and batch.env_id.tolist() == ids
    assert batch.terminated.dtype == np.bool_ and batch.truncated.dtype == np.bool_
    assert batch.reward.dtype == np.float64 and batch.reward.shape[0] == len(ids)
    assert len(batch.info) == len(batch.final_info) == len(ids)
    for k, i in enumerate(ids):
        row = rows[i]
        where = f"env {i}, row {k}"
        obs = row_of(batch.obs, k, space)
        assert same(obs, in_space_types(row.obs, space)), f"{where}: obs {obs!r} is not {row.obs!r}"
        reward = np.asarray(row.reward, np.float64)
        assert np.array_equal(batch.reward[k], reward.reshape(batch.reward.shape[1:])), f"{where}: {batch.reward[k]}"
        assert (bool(batch.terminated[k]), bool(batch.truncated[k])) == (row.terminated, row.truncated), where
        assert same(dict(batch.info[k]), row.info), f"{where}: info {batch.info[k]} is not {row.info}"
        assert same(dict(batch.final_info[k]), row.final_info), f"{where}: final_info {batch.final_info[k]}"
        if row.ended:
            final = row_of(batch.final_obs, k, space)
            assert same(final, in_space_types(row.final_obs, space)), f"{where}: final_obs {final!r}, {row.final_obs!r}"


def stack(actions: Sequence[Any], space: Any) -> Any:
    """Single actions as one batched action of Gymnasium's `batch_space`."""
    empty: Any = create_empty_array(space, n=len(actions))
    return concatenate(space, actions, empty)
