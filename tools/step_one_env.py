"""Steps a small env through a pool, and checks what comes back. `make wheel` runs it where shmenv is only installed."""

import numpy as np

import shmenv


class Counter:
    """An env without a framework: counts its steps, adds the action, and ends after ten."""

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.count += 1
        return np.array([self.count, action], np.float32), float(action), self.count == 10, False, {}


def main() -> None:
    with shmenv.Pool([Counter] * 4, num_workers=2) as pool:
        pool.reset(seed=0)
        for step in range(1, 10):
            actions = np.arange(4) * step
            batch = pool.step(actions)
            np.testing.assert_array_equal(batch.obs, np.stack([np.full(4, step), actions], axis=1))
            np.testing.assert_array_equal(batch.reward, actions)
            assert not batch.terminated.any()
        assert pool.step(np.zeros(4, int)).terminated.all()
    print(f"shmenv {shmenv.__version__} from {shmenv.__file__}: 4 envs in 2 workers, 10 steps, all values right")


if __name__ == "__main__":
    main()
