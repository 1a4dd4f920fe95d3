"""One contestant of compare.py, in the environment of its library: takes orders on stdin, a line of JSON each."""

import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from typing import Any

import numpy as np

from free import Limit
from workloads import WORKLOADS

CHECKED = 8  # steps; no CartPole ends before
WARM = 0.1  # seconds before each measurement, which are not counted
TRIED = 0.3  # seconds that each setting is tried


class Child:
    """What carries the orders out. Each public method is one, and what it returns is the answer."""

    def __init__(self, module: str, kind: str | None) -> None:
        self.found: dict[str, dict[str, Any]] = {}  # the fastest of some settings
        self.contestant: Any = importlib.import_module(f"peers.{module}")
        self.kind = {} if kind is None else {"kind": kind}
        self.player: Any = None

    def versions(self, packages: list[str]) -> dict[str, str]:
        from importlib.metadata import version

        def told(name: str) -> str:
            if name != "shmenv":
                return version(name)
            import shmenv  # in an environment with torch it is only on the path, not installed

            return shmenv.__version__

        return {"python": ".".join(map(str, sys.version_info[:3]))} | {name: told(name) for name in packages}

    def start(self, name: str, settings: dict[str, Any] | None) -> dict[str, Any]:
        """Starts a workload with the settings or, without any, the fastest, and compares the first values."""
        self.workload = WORKLOADS[name]
        self.actions = self.workload.case.actions()
        tried = [settings] if settings is not None else self.contestant.settings(self.workload, **self.kind)
        if not tried:
            return {"able": False}
        best = tried[0] if len(tried) == 1 else self._fastest(tried)
        begin = time.perf_counter()
        obs = self._start(best)
        seconds = time.perf_counter() - begin
        checked = self._check(obs)
        if not isinstance(self.player, Limit):
            self._loop(WARM)
        return {"able": True, "settings": best, "checked": checked, "start": seconds}

    def run(self, seconds: float) -> dict[str, Any]:
        """Steps as long, after a warm-up. Batches are timed one by one; `steps` are those of both."""
        if isinstance(self.player, Limit):
            speed = self.player.speed(seconds)
            return {"speed": speed, "steps": speed * seconds}
        warm, _ = self._loop(WARM)
        begin = time.perf_counter()
        steps, times = self._loop(seconds)
        spent = time.perf_counter() - begin
        middle, late = np.percentile(times, (50, 99))
        return {"speed": steps / spent, "median": middle, "p99": late, "steps": warm + steps}

    def once(self) -> dict[str, float]:
        """One batch."""
        begin = time.perf_counter()
        self.player.step(self.actions[0])
        return {"seconds": time.perf_counter() - begin}

    def stop(self) -> dict[str, Any]:
        """Ends the workload."""
        player, self.player = self.player, None
        try:
            if player is not None:
                player.close()
        except Exception:  # DI-engine's close fails when it meets a reset on its way
            traceback.print_exc()
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        return {}

    def _start(self, settings: dict[str, Any]) -> Any:
        """The first observation of env 0."""
        self.player = self.contestant.start(self.workload, **self.kind, **settings)
        return None if isinstance(self.player, Limit) else self.player.reset()

    def _fastest(self, tried: list[dict[str, Any]]) -> dict[str, Any]:
        """Found out once for all workloads of as many envs, where a trial takes long."""
        key = json.dumps([tried, self.workload.num_envs, self.workload.frames])
        if key in self.found:
            return self.found[key]
        speeds = [self._try(settings) for settings in tried]
        if max(speeds) < 0:
            raise RuntimeError("no setting worked")
        best = tried[speeds.index(max(speeds))]
        if getattr(self.contestant, "SLOW_START", False):
            self.found[key] = best
        return best

    def _try(self, settings: dict[str, Any]) -> float:
        """Env steps a second with these settings; -1 if they don't work."""
        try:
            self._start(settings)
            self._loop(WARM)
            begin = time.perf_counter()
            steps, _ = self._loop(TRIED)
            return steps / (time.perf_counter() - begin)
        except Exception:
            traceback.print_exc()
            return -1.0
        finally:
            self.stop()

    def _loop(self, seconds: float) -> tuple[int, list[float]]:
        clock, step, actions, think = time.perf_counter, self.player.step, self.actions, self.workload.think
        steps = batches = 0
        times = []
        now = clock()
        end = now + seconds
        while now < end:
            steps += step(actions[batches % len(actions)])
            batches += 1
            last, now = now, clock()
            times.append(now - last)
            if think:
                until = now + think
                while (now := clock()) < until:
                    pass
        return steps, times

    def _check(self, obs: Any) -> bool | None:
        """Whether env 0, reset and seeded, was compared with a plain loop; None where there is nothing to compare.

        Raises:
            AssertionError: the values differ.
        """
        if self.workload.loop and not isinstance(self.player, Limit):
            checked: bool | None = self.player.check()
            return checked
        if isinstance(self.player, Limit) or not self.player.comparable:
            return None
        env = (self.workload.case.env_fns)[0]()
        np.testing.assert_array_equal(obs, env.reset(seed=0)[0], "the first observation of env 0")
        for number in range(CHECKED):
            actions = self.actions[number]
            self.player.step(actions)
            while (got := self.player.values()) is None:
                self.player.step(actions)
            want_obs, want_reward, terminated, truncated, _ = env.step(actions[0])
            np.testing.assert_array_equal(got.obs, want_obs, f"env 0, step {number}")
            assert got.reward == want_reward and got.done == (terminated or truncated), f"env 0, step {number}"
        env.close()
        return True


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    try:
        child: Child | None = Child(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    except Exception as error:
        child, broken = None, f"{type(error).__name__}: {error}"
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if child is None:
                raise RuntimeError(broken)
            answer = getattr(child, order.pop("do"))(**order)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
