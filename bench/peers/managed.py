"""The loop that users of a manager write, be it DI-engine's or shmenv's."""

from typing import Any

import numpy as np

from peers.player import Values


class ManagerPlayer:
    comparable = True

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.close = manager.close
        self.timesteps: dict[int, Any] = {}

    def reset(self) -> Any:
        self.manager.seed(0)
        if self.manager.closed:
            self.manager.launch()
        else:
            self.manager.reset()
        return self.manager.ready_obs[0]

    def step(self, actions: np.ndarray[Any, Any]) -> int:
        self.timesteps = self.manager.step({env: actions[env] for env in self.manager.ready_obs})
        return len(self.timesteps)

    def values(self) -> Values | None:
        timestep = self.timesteps.get(0)
        return timestep and Values(timestep.obs, timestep.reward, timestep.done)
