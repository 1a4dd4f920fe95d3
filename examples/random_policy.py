"""Lock-step: all envs take a step, then all rows come back. Counts the episodes' returns.

Needs Gymnasium: pip install 'shmenv[gymnasium]'
"""

import gymnasium
import numpy as np

import shmenv


def main() -> None:
    with shmenv.Pool([lambda: gymnasium.make("CartPole-v1")] * 16) as pool:
        pool.reset(seed=0)
        running = np.zeros(pool.num_envs)  # reward of the episode so far
        finished: list[float] = []
        rng = np.random.default_rng(0)
        for _ in range(500):
            batch = pool.step(rng.integers(2, size=pool.num_envs))
            running += batch.reward
            # An ended episode was reset in the same step: batch.obs is the new one's first, batch.final_obs the old
            # one's last observation.
            ended = batch.terminated | batch.truncated
            finished.extend(running[ended])
            running[ended] = 0
    print(f"{len(finished)} episodes, mean return {np.mean(finished):.1f}")


if __name__ == "__main__":
    main()
