"""First come, first served: a batch is whatever is ready first, so that slow envs do not hold up fast ones.

The envs are plain Python: no framework, and the first reset says what an observation looks like.
"""

import time

import numpy as np

import shmenv


class Simulator:
    """Some of its steps take long."""

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[dict[str, object], dict[str, object]]:
        self.rng = np.random.default_rng(seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, object], float, bool, bool, dict[str, object]]:
        time.sleep(self.rng.choice([0.0001, 0.005]))
        self.count += 1
        return self.observe(), float(action.sum()), False, self.count == 50, {"count": self.count}

    def observe(self) -> dict[str, object]:
        return {"picture": self.rng.integers(256, size=(8, 8), dtype=np.uint8), "count": self.count}


def main() -> None:
    with shmenv.Pool([Simulator] * 8, num_workers=8, batch_size=3) as pool:
        batch = pool.reset(seed=0)
        print("obs:", {name: (leaf.dtype, leaf.shape) for name, leaf in batch.obs.items()})
        pool.send(np.zeros((8, 2), np.float32))
        steps = np.zeros(8, int)
        for _ in range(200):
            batch = pool.recv()  # three rows, of those envs that were ready first
            steps[batch.env_id] += 1
            pool.send(np.ones((3, 2), np.float32), batch.env_id)
    print("steps of each env:", steps)


if __name__ == "__main__":
    main()
