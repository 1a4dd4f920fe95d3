"""A learner publishes weights; rollout processes read the newest whenever they like. No lock, and nobody waits."""

import multiprocessing

import numpy as np

import shmenv


def rollout(weights: shmenv.SeqlockBuffer, ready: shmenv.Semaphore, last: int) -> None:
    """Takes what is newest until it is `last`; versions in between may be skipped, but none is ever seen half."""
    version, seen = 0, 0
    ready.post()
    while version < last:
        weights.wait_newer(version)
        version = weights.version
        value = weights.read()
        assert (value == value[0]).all(), "torn"
        seen += 1
    print(f"saw {seen} of {last} versions, the last is {value[0]:.0f}")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    weights = shmenv.SeqlockBuffer(np.float32, (100_000,))
    ready = shmenv.Semaphore()
    reader = context.Process(target=rollout, args=(weights, ready, 1000))
    reader.start()
    ready.wait()
    for version in range(1, 1001):
        weights.write(np.full(100_000, version, np.float32))
    reader.join()


if __name__ == "__main__":
    main()
