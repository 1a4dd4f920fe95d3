"""Stable-Baselines3's PPO and DQN learn CartPole through shmenv: one line is another than with its own classes.

Needs Stable-Baselines3: pip install 'shmenv[sb3]'
"""

import sys
import time

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from shmenv.adapters.sb3 import ShmVecEnv

GOAL = 475.0  # mean return of 100 episodes at which CartPole-v1 counts as solved


def ppo(env: ShmVecEnv) -> BaseAlgorithm:
    return PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20,
        learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, seed=1, device="cpu",
    )  # fmt: skip


def dqn(env: ShmVecEnv) -> BaseAlgorithm:
    return DQN(
        "MlpPolicy", env, learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
        target_update_interval=10, train_freq=32, gradient_steps=128, exploration_fraction=0.16,
        exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, seed=1, device="cpu",
    )  # fmt: skip


def train(name: str) -> float:
    make, num_envs, steps = {"ppo": (ppo, 8, 100_000), "dqn": (dqn, 4, 200_000)}[name]
    env = make_vec_env("CartPole-v1", num_envs, seed=1, vec_env_cls=ShmVecEnv)  # not SubprocVecEnv
    judges = make_vec_env("CartPole-v1", 4, seed=100, vec_env_cls=ShmVecEnv)
    model = make(env)
    enough = StopTrainingOnRewardThreshold(GOAL + 20, verbose=0)
    model.learn(
        steps, callback=EvalCallback(judges, enough, eval_freq=2000 // num_envs * 2, n_eval_episodes=20, verbose=0)
    )
    mean, _ = evaluate_policy(model, judges, n_eval_episodes=100)
    env.close()
    judges.close()
    return float(mean)


def main() -> None:
    torch.set_num_threads(1)  # the networks are small, and the cores are the envs'
    for name in sys.argv[1:] or ("ppo", "dqn"):
        begin = time.monotonic()
        mean = train(name)
        print(f"{name}: mean return {mean:.1f} of 100 episodes after {time.monotonic() - begin:.0f} s")
        assert mean >= GOAL, f"{name} has not learned CartPole"


if __name__ == "__main__":
    main()
