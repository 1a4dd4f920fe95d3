"""Actors on Gymnasium's interface that wait for no straggler: `send` some envs, `recv` whichever are ready.

Every fourth env is ten times as slow as the others. In lock-step each step would take as long as theirs. Fails if the
policy does not keep the pole up.
Needs Gymnasium: pip install 'shmenv[gymnasium]'
"""

import time
from typing import Any

import gymnasium
import numpy as np

from shmenv.adapters.gymnasium import ShmVectorEnv

NUM_ENVS, STEPS, LENGTH = 8, 1600, 100  # envs, steps of all together, steps of an episode at most
GOAL = 95.0  # mean return; CartPole gives 1 for each step


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env whose simulator takes its time."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def env_fn(i: int) -> Slow:
    return Slow(gymnasium.make("CartPole-v1", max_episode_steps=LENGTH), 0.01 if i % 4 == 0 else 0.001)


def policy(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(obs[:, 2] + obs[:, 3] > 0, 1, 0)


def first_k(envs: ShmVectorEnv) -> tuple[float, float]:
    """Step the envs STEPS times in total, each as often as it can; steps a second, and the mean return."""
    obs, _ = envs.reset(seed=0)
    begin, done = time.monotonic(), 0
    running, returns = np.zeros(NUM_ENVS), []
    envs.send(policy(obs))
    while done < STEPS:
        obs, rewards, terminations, truncations, infos = envs.recv()  # the rows of the envs infos["env_id"]
        ids = infos["env_id"]
        envs.send(policy(obs), ids)
        done += len(ids)
        running[ids] += rewards
        ended = ids[terminations | truncations]
        returns += running[ended].tolist()
        running[ended] = 0
    return done / (time.monotonic() - begin), float(np.mean(returns))


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
    rate, mean = first_k(envs)
    print(f"first come, first served: {rate:.0f} steps/s; in lock-step: {lock_step(envs):.0f} steps/s")
    envs.close()
    print(f"mean return {mean:.1f}")
    assert mean >= GOAL, "the pole has fallen"


if __name__ == "__main__":
    main()
