"""Collection loops of training programs: each stores what it sees, and steps anything that resets and steps."""

import multiprocessing
from collections.abc import Callable
from typing import Any, Protocol

import cloudpickle
import numpy as np

from cases import Case
from free import Limit
from policies import POLICIES, mlp

STEPS = 32  # rows of a rollout
SB3_STEPS = 16


class Envs(Protocol):
    """What a loop steps: Gymnasium's vector envs as they are, the rest in their manner."""

    num_envs: int

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]: ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]: ...


class Loop:
    """Any policy by numpy arrays. Names as in CleanRL: dones[t] says that obs[t] begins an episode.

    Args:
        envs: what it steps.
        policy: a name in `POLICIES`; None: the same actions every time.
    """

    def __init__(self, envs: Envs, policy: str | None) -> None:
        self.envs, self.policy = envs, policy and POLICIES[policy]()
        self.next_obs = envs.reset(seed=0)[0]
        n = envs.num_envs
        self.next_done = np.zeros(n, bool)
        self.obs = np.zeros((STEPS, *self.next_obs.shape), self.next_obs.dtype)
        self.actions = np.zeros((STEPS, n), np.int64)
        self.rewards, self.logprobs, self.values = (np.zeros((STEPS, n), np.float32) for _ in range(3))
        self.dones = np.zeros((STEPS, n), bool)
        self.fixed = np.arange(n) % 2
        self.number = 0

    def step(self) -> int:
        """One step of all envs; how many."""
        t = self.number % STEPS
        self.number += 1
        self.obs[t], self.dones[t] = self.next_obs, self.next_done
        if self.policy:
            action, self.logprobs[t], self.values[t] = self.policy(self.next_obs)
        else:
            action = self.fixed
        self.actions[t] = action
        self.next_obs, self.rewards[t], terminated, truncated, _ = self.envs.step(action)
        self.next_done = terminated | truncated
        return len(action)


class CleanRL:
    """The collection statements of CleanRL's ppo.py, with its two nets."""

    def __init__(self, envs: Envs) -> None:
        import torch

        n, self.envs = envs.num_envs, envs
        self.actor, self.critic = mlp(4, 2), mlp(4, 1)
        self.device = device = torch.device("cpu")
        self.obs = torch.zeros((STEPS, n, 4)).to(device)
        self.actions, self.logprobs, self.rewards, self.dones, self.values = (
            torch.zeros((STEPS, n)).to(device) for _ in range(5)
        )
        next_obs, _ = envs.reset(seed=0)
        self.next_obs = torch.Tensor(next_obs).to(device)
        self.next_done = torch.zeros(n).to(device)
        self.number = 0
        self.returns: list[float] = []

    def get_action_and_value(self, x: Any) -> tuple[Any, Any, Any, Any]:
        """As its Agent."""
        from torch.distributions.categorical import Categorical

        logits = self.actor(x)
        probs = Categorical(logits=logits)
        action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)

    def step(self) -> int:
        """One step of all envs; how many."""
        import torch

        step = self.number % STEPS
        self.number += 1
        device = self.device
        self.obs[step] = self.next_obs
        self.dones[step] = self.next_done
        with torch.no_grad():
            action, logprob, _, value = self.get_action_and_value(self.next_obs)
            self.values[step] = value.flatten()
        self.actions[step] = action
        self.logprobs[step] = logprob
        next_obs, reward, terminations, truncations, infos = self.envs.step(action.cpu().numpy())
        next_done = np.logical_or(terminations, truncations)
        self.rewards[step] = torch.tensor(reward).to(device).view(-1)
        self.next_obs, self.next_done = torch.Tensor(next_obs).to(device), torch.Tensor(next_done).to(device)
        if "final_info" in infos:  # autoreset in the same step
            infos = infos["final_info"]
        if "episode" in infos:
            self.returns = [infos["episode"]["r"][env] for env in np.flatnonzero(infos["_episode"])]
        return len(next_obs)


class Sb3:
    """Stable-Baselines3's own `collect_rollouts`, with its PPO; `envs` is a VecEnv."""

    def __init__(self, envs: Any) -> None:
        from stable_baselines3 import PPO

        envs.seed(0)
        self.model: Any = PPO("MlpPolicy", envs, n_steps=SB3_STEPS, batch_size=SB3_STEPS * envs.num_envs, device="cpu")
        _, self.callback = self.model._setup_learn(total_timesteps=10**9)

    def step(self) -> int:
        """One rollout; its env steps."""
        model, buffer = self.model, self.model.rollout_buffer
        assert model.collect_rollouts(model.env, self.callback, buffer, n_rollout_steps=SB3_STEPS)
        self.obs, self.rewards, self.dones = buffer.observations, buffer.rewards, buffer.episode_starts
        self.actions = buffer.actions[..., 0]
        return SB3_STEPS * int(model.env.num_envs)


def make_loop(name: str, envs: Any) -> Any:
    """The loop of that name."""
    if name == "cleanrl":
        return CleanRL(envs)
    return Sb3(envs) if name == "sb3" else Loop(envs, None if name == "none" else name)


def check(loop: Any, env_fns: list[Callable[[], Any]], same_step: bool | None) -> None:
    """Compares what was stored since the reset with plain envs, stepped by the stored actions.

    Args:
        loop: it has run once through its rows at most.
        env_fns: of all envs.
        same_step: whether an ended env starts anew in the same step; None: not known, so up to the first end.

    Raises:
        AssertionError: values differ.
    """
    obs, actions, rewards, dones = (np.asarray(one) for one in (loop.obs, loop.actions, loop.rewards, loop.dones))
    rows = getattr(loop, "number", len(obs))
    for number, make in enumerate(env_fns):
        env = make()
        want, done = env.reset(seed=number)[0], False
        for t in range(rows):
            np.testing.assert_array_equal(obs[t, number], want, f"obs of env {number}, row {t}")
            assert t == 0 or dones[t, number] == done, f"end of env {number}, row {t}"
            if done and same_step is None:
                break
            if done and not same_step:
                want, reward, done = env.reset()[0], 0.0, False
            else:
                want, reward, terminated, truncated, _ = env.step(np.int64(actions[t, number]))
                done = terminated or truncated
                if done and same_step:
                    want = env.reset()[0]
            assert rewards[t, number] == np.float32(reward), f"reward of env {number}, row {t}"
        env.close()


class Plain:
    """Envs of this process, stepped one after the other, with as little around them as there can be."""

    def __init__(self, env_fns: list[Callable[[], Any]]) -> None:
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        self.obs = np.stack([env.reset(seed=number)[0] for number, env in enumerate(self.envs)])
        self.reward = np.zeros(self.num_envs)
        self.terminated, self.truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        return self.obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        for number, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, self.reward[number], terminated, truncated, _ = env.step(action)
            self.terminated[number], self.truncated[number] = terminated, truncated
            self.obs[number] = env.reset()[0] if terminated or truncated else obs
        return self.obs, self.reward, self.terminated, self.truncated, {}


def run_apart(pickled: bytes, name: str, orders: Any) -> None:
    """A loop of its own for as many seconds as each order says; answers with (env steps, seconds)."""
    import time

    if name not in ("none", "numpy"):
        import torch

        torch.set_num_threads(1)
    env_fns = cloudpickle.loads(pickled)
    envs: Any = Plain(env_fns)
    if name == "sb3":
        from stable_baselines3.common.vec_env import DummyVecEnv

        envs = DummyVecEnv(env_fns)
    loop = make_loop(name, envs)
    orders.send("ready")
    while (seconds := orders.recv()) is not None:
        steps, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            steps += loop.step()
        orders.send((steps, now - start))


class Apart(Limit):
    """The limit of a training loop: processes that never talk, each with its share of the envs and its own policy."""

    def __init__(self, case: Case, name: str, num_workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.orders, self.processes = [], []
        for envs in np.array_split(np.arange(case.num_envs), num_workers):
            ours, theirs = context.Pipe()
            pickled = cloudpickle.dumps([case.env_fns[env] for env in envs])
            self.processes.append(context.Process(target=run_apart, args=(pickled, name, theirs), daemon=True))
            self.processes[-1].start()
            self.orders.append(ours)
        for order in self.orders:
            assert order.recv() == "ready"
