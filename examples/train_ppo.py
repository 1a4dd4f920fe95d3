"""PPO in one file on ShmVectorEnv: learns CartPole to a mean return of 475.

After "Proximal Policy Optimization Algorithms" (Schulman et al., 2017), with the usual details.
Needs torch and Gymnasium: pip install torch 'shmenv[gymnasium]'
"""

import time

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn

from shmenv.adapters.gymnasium import ShmVectorEnv

GOAL = 475.0  # mean return of the last 100 episodes at which CartPole-v1 counts as solved
NUM_ENVS, LENGTH, UPDATES = 16, 64, 400  # envs, steps of each between two updates, updates at most
EPOCHS, BATCHES = 6, 4
GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 1.5e-3


def network(outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train() -> tuple[float, int]:
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the networks are small, and the cores are the envs'
    actor, critic = network(2, 0.01), network(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)

    # The line that was gymnasium.vector.SyncVectorEnv(...)
    envs = ShmVectorEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS, autoreset_mode="SameStep")
    recorded = RecordEpisodeStatistics(envs, buffer_length=100)
    obs, _ = recorded.reset(seed=1)

    shape = (LENGTH, NUM_ENVS)
    all_obs = torch.zeros((*shape, 4))
    actions, scores = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    values, rewards, alive = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for update in range(UPDATES):
        optimizer.param_groups[0]["lr"] = RATE * (1 - update / UPDATES)
        with torch.no_grad():
            for t in range(LENGTH):
                all_obs[t] = torch.from_numpy(obs)
                choice = torch.distributions.Categorical(logits=actor(all_obs[t]))
                actions[t] = choice.sample()
                scores[t], values[t] = choice.log_prob(actions[t]), critic(all_obs[t]).squeeze(-1)
                obs, reward, terminated, truncated, infos = recorded.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(reward)
                for i in np.flatnonzero(truncated & ~terminated):  # cut short, so what would have followed counts
                    rewards[t, i] += GAMMA * critic(torch.from_numpy(infos["final_obs"][i])).item()
                alive[t] = torch.from_numpy(~(terminated | truncated))
            advantages, following, advantage = torch.zeros(shape), critic(torch.from_numpy(obs)).squeeze(-1), 0.0
            for t in reversed(range(LENGTH)):
                error = rewards[t] + GAMMA * following * alive[t] - values[t]
                advantage = error + GAMMA * LAMBDA * alive[t] * advantage
                advantages[t], following = advantage, values[t]
            returns = advantages + values

        flat = [each.flatten(0, 1) for each in (all_obs, actions, scores, advantages, returns)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(LENGTH * NUM_ENVS).chunk(BATCHES):
                seen, done, score, advantage_of, return_of = (each[rows] for each in flat)
                choice = torch.distributions.Categorical(logits=actor(seen))
                ratio = (choice.log_prob(done) - score).exp()
                gain = (advantage_of - advantage_of.mean()) / (advantage_of.std() + 1e-8)
                loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                loss = loss + 0.5 * (critic(seen).squeeze(-1) - return_of).square().mean()
                loss = loss - 0.01 * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        finished = recorded.return_queue
        if len(finished) == 100 and np.mean(finished) >= GOAL:
            break
    envs.close()
    return float(np.mean(finished)), (update + 1) * LENGTH * NUM_ENVS


def main() -> None:
    begin = time.monotonic()
    mean, steps = train()
    print(f"mean return {mean:.1f} of 100 episodes after {steps} steps, {time.monotonic() - begin:.0f} s")
    assert mean >= GOAL, "PPO has not learned CartPole"


if __name__ == "__main__":
    main()
