"""Processes that step envs and never talk: the limit that every pool of processes is measured by."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from cases import Case


def run_freely(pickled: bytes, actions: list[np.ndarray[Any, Any]], orders: Connection, copies: bool) -> None:
    """Steps envs for as many seconds as each order says, and answers with (env steps, seconds)."""
    envs = [make() for make in cloudpickle.loads(pickled)]
    first = [env.reset(seed=0)[0] for env in envs]
    planes = [np.stack(first), np.stack(first)]  # as many as a pool has by default, so no fewer caches are missed
    orders.send("ready")
    while (seconds := orders.recv()) is not None:
        batches = 0
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            rows = planes[batches & 1] if copies else envs
            for env, action, row in zip(envs, actions[batches % len(actions)], rows, strict=True):
                obs, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    obs = env.reset()[0]
                if copies:
                    np.copyto(row, obs)
            batches += 1
        orders.send((batches * len(envs), now - start))


class Limit:
    """The free-running processes.

    Args:
        case: what they step.
        num_workers: how many they are.
        copies: whether each observation is also copied into an array.
    """

    def __init__(self, case: Case, num_workers: int, copies: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.orders: list[Connection] = []
        self.processes = []
        for envs in np.array_split(np.arange(case.num_envs), num_workers):
            ours, theirs = context.Pipe()
            pickled = cloudpickle.dumps([case.env_fns[env] for env in envs])
            actions = [row[envs] for row in case.actions()]
            args = (pickled, actions, theirs, copies)
            self.processes.append(context.Process(target=run_freely, args=args, daemon=True))
            self.processes[-1].start()
            self.orders.append(ours)
        for order in self.orders:
            assert order.recv() == "ready"

    def speed(self, seconds: float) -> float:
        """Env steps per second of all of them together."""
        for order in self.orders:
            order.send(seconds)
        answers = [order.recv() for order in self.orders]
        return float(sum(steps / spent for steps, spent in answers))

    def close(self) -> None:
        for order, process in zip(self.orders, self.processes, strict=True):
            order.send(None)
            process.join()
