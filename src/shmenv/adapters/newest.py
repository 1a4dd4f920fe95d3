"""The newest observation of each env, batched as Gymnasium batches them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from shmenv.adapters.columns import copied, replaced


class Newest:
    """Remembers whole batches as they are, until rows of them are to be replaced."""

    def __init__(self, space: spaces.Space[Any], num_envs: int, copy: bool) -> None:
        """Begin with what an empty batch shows.

        Args:
            space: of one observation.
            num_envs: how many there are.
            copy: hand out observations that are the caller's own.
        """
        self._space, self._num_envs, self._copy = space, num_envs, copy
        self._obs: Any = create_empty_array(space, num_envs)
        self._is_own = True  # not the pool's memory, and not handed out

    def whole(self, obs: Any) -> Any:
        """Take the observations of all envs, and hand them out."""
        self._obs, self._is_own = obs, False
        return self.handed_out(obs)

    def some(self, env_id: np.ndarray[Any, Any], obs: Any) -> None:
        """Take the observations of some envs."""
        if not self._is_own:
            self._obs, self._is_own = copied(self._obs), True
        self._obs = replaced(self._space, self._obs, env_id, obs, self._num_envs)

    def all(self) -> Any:
        """Hand out what each env showed last, in memory of its own."""
        return copied(self._obs)

    def handed_out(self, obs: Any) -> Any:
        """A batch's observations as the caller is to have them."""
        return copied(obs) if self._copy else obs
