"""Actors on Gymnasium's interface that wait for no straggler: `send` some envs, `recv` whichever are ready.

Every fourth env is ten times as slow as the others. In lock-step each step would take as long as theirs.
Needs Gymnasium: pip install 'shmenv[gymnasium]'
"""

import time
from typing import Any

import gymnasium
import numpy as np

from shmenv.adapters.gymnasium import ShmVectorEnv

NUM_ENVS, STEPS = 8, 1600


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env whose simulator takes its time."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def env_fn(i: int) -> Slow:
    return Slow(gymnasium.make("CartPole-v1"), 0.01 if i % 4 == 0 else 0.001)


def policy(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(obs[:, 2] + obs[:, 3] > 0, 1, 0)


def first_k(envs: ShmVectorEnv) -> float:
    """Step the envs STEPS times in total, each as often as it can; steps a second."""
    obs, _ = envs.reset(seed=0)
    begin, done = time.monotonic(), 0
    envs.send(policy(obs))
    while done < STEPS:
        obs, _, _, _, infos = envs.recv()  # the rows of the envs infos["env_id"]
        done += len(obs)
        envs.send(policy(obs), infos["env_id"])
    return done / (time.monotonic() - begin)


def lock_step(envs: ShmVectorEnv) -> float:
    obs, _ = envs.reset(seed=0)
    begin = time.monotonic()
    for _ in range(STEPS // NUM_ENVS // 4):
        obs, *_ = envs.step(policy(obs))
    return STEPS / 4 / (time.monotonic() - begin)


def main() -> None:
    env_fns = [lambda i=i: env_fn(i) for i in range(NUM_ENVS)]
    # A process an env: these sleep, so they need no core each.
    envs = ShmVectorEnv(env_fns, num_workers=NUM_ENVS, batch_size=2)
    print(f"first come, first served: {first_k(envs):.0f} steps/s; in lock-step: {lock_step(envs):.0f} steps/s")
    envs.close()


if __name__ == "__main__":
    main()
