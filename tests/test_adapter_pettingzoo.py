"""PettingZoo's parallel envs side by side, against a plain loop over the same games."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo.butterfly.knights_archers_zombies.knights_archers_zombies import parallel_env
from seeded import ParallelEnv, WalkEnv

import shmenv
from shmenv.adapters.pettingzoo import AgentBatch, ShmParallelEnvs

AGENTS = ["archer_0", "archer_1", "knight_0", "knight_1"]
make_knights = partial(parallel_env, max_cycles=200, spawn_delay=3, line_death=True)


class JoinEnv:
    """Three agents: "late" joins at the second step, "early" leaves then, and "whole" stays to the end, the third."""

    possible_agents = ("early", "late", "whole")

    def __init__(self, faulty: bool = False) -> None:
        self.faulty = faulty
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Box:
        return Box(-1, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(5)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.t, self.agents = 0, ["early", "whole"]
        return self._look(self.agents), {agent: {"t": 0} for agent in self.agents}

    def _look(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.array([self.t], np.float32) for agent in agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert sorted(actions) == sorted(self.agents)
        if self.faulty and 4 in actions.values():
            raise RuntimeError("four")
        self.t += 1
        acted = [*self.agents, "late"] if self.t == 2 else self.agents
        obs = self._look(acted)
        rewards = {agent: float(action) for agent, action in actions.items()}
        terminated = {agent: agent == "early" and self.t == 2 for agent in acted}
        truncated = dict.fromkeys(acted, self.t == 3)
        self.agents = [agent for agent in acted if not terminated[agent] and not truncated[agent]]
        return obs, rewards, terminated, truncated, {agent: {"t": self.t} for agent in acted}


def _row(batch: AgentBatch, obs: Any, present: Any, row: int) -> dict[str, Any]:
    return {agent: obs[agent][row] for k, agent in enumerate(obs) if present[row, k]}


def _check(batch: AgentBatch, row: int, agents: list[Any], told: Any, alive: list[Any]) -> bool:
    """Compares a row with what the env itself told; whether the episode is over."""
    obs, rewards, terminated, truncated, infos = told
    over = not alive
    assert batch.over[row] == over
    seen = (batch.final_obs, batch.final_present) if over else (batch.obs, batch.present)
    found = _row(batch, *seen, row)
    assert found.keys() == obs.keys()
    assert all(np.array_equal(found[agent], obs[agent]) and found[agent].dtype == obs[agent].dtype for agent in obs)
    assert batch.reward[row].tolist() == [rewards.get(agent, 0.0) for agent in agents]
    assert batch.terminated[row].tolist() == [terminated.get(agent, False) for agent in agents]
    assert batch.truncated[row].tolist() == [truncated.get(agent, False) for agent in agents]
    assert batch.infos[row] == infos
    if not over:
        assert batch.alive[row].tolist() == [agent in alive for agent in agents]
    return over


def _check_reset(batch: AgentBatch, row: int, agents: list[Any], told: Any, alive: list[Any]) -> None:
    obs, infos = told
    found = _row(batch, batch.obs, batch.present, row)
    assert found.keys() == obs.keys() and all(np.array_equal(found[agent], obs[agent]) for agent in obs)
    assert batch.alive[row].tolist() == [agent in alive for agent in agents]
    assert batch.reset_infos[row] == infos


def test_a_game_that_agents_leave_is_as_in_a_plain_loop() -> None:
    loop = [make_knights() for _ in range(3)]
    generator = np.random.default_rng(1)
    overs, left = 0, 0
    with ShmParallelEnvs([make_knights] * 3, num_workers=2) as envs:
        assert envs.possible_agents == AGENTS and envs.num_envs == 3
        assert envs.observation_space("knight_0") == loop[0].observation_space("knight_0")
        batch = envs.reset(seed=11)
        for row, env in enumerate(loop):
            _check_reset(batch, row, AGENTS, env.reset(seed=11 + row), env.agents)
        for _ in range(400):
            actions = {agent: generator.integers(6, size=3) for agent in AGENTS}
            batch = envs.step(actions)
            for row, env in enumerate(loop):
                before = len(env.agents)
                told = env.step({agent: actions[agent][row] for agent in env.agents})
                left += 0 < len(env.agents) < before
                if _check(batch, row, AGENTS, told, env.agents):
                    overs += 1
                    _check_reset(batch, row, AGENTS, env.reset(), env.agents)
    assert overs >= 3 and left >= 3  # else the game has shown nothing


def test_agents_may_join_late() -> None:
    agents = list(JoinEnv.possible_agents)
    with ShmParallelEnvs([JoinEnv] * 2, stacked=True, num_workers=2) as envs:
        batch = envs.reset()
        assert batch.obs.shape == (2, 3, 1) and batch.present.tolist() == [[True, False, True]] * 2
        assert batch.reset_infos == ({"early": {"t": 0}, "whole": {"t": 0}},) * 2 and batch.infos == ({}, {})
        env = JoinEnv()
        env.reset()
        for t in range(1, 4):
            batch = envs.step(np.array([[1, 2, 3], [3, 0, 1]]))
            told = env.step({agent: agents.index(agent) + 1 for agent in env.agents})
            over = not env.agents
            obs, present = (batch.final_obs, batch.final_present) if over else (batch.obs, batch.present)
            assert {agent: obs[0, k] for k, agent in enumerate(agents) if present[0, k]} == told[0]
            assert batch.reward.tolist() == [[told[1].get(agent, 0) for agent in agents], [3 * (t < 3), 0, 1]]
            assert batch.terminated[0].tolist() == [t == 2, False, False]
            assert batch.truncated[1].tolist() == [False, t == 3, t == 3]
            assert batch.alive[0].tolist() == ([True, False, True], [False, True, True], [True, False, True])[t - 1]
        assert over and batch.over.all() and not batch.lost.any()
        assert batch.obs[..., 0].tolist() == [[0, 0, 0]] * 2


def test_the_first_envs_that_are_ready_come_first() -> None:
    with ShmParallelEnvs([JoinEnv] * 2, stacked=True, num_workers=2) as envs:
        envs.reset()
        envs.send(np.ones((1, 3), int), [1])
        batch = envs.recv(timeout=30)
        assert batch.env_id.tolist() == [1] and batch.reward.tolist() == [[1, 0, 1]]


def test_a_lost_row_says_so_and_who_is_alive_after_it() -> None:
    with ShmParallelEnvs([partial(JoinEnv, True)] * 2, stacked=True, num_workers=2, on_error="restart") as envs:
        envs.reset()
        batch = envs.step(np.array([[4, 0, 0], [1, 1, 1]]))
        assert batch.lost.tolist() == [True, False] and batch.over.tolist() == [True, False]
        assert "four" in batch.infos[0]["error"] and batch.infos[1]["whole"] == {"t": 1}
        assert batch.alive.tolist() == [[True, False, True]] * 2


@pytest.mark.parametrize(
    ("env_fn", "options", "words"),
    [
        (JoinEnv, {"autoreset": "disabled"}, "autoreset cannot be chosen"),
        (WalkEnv, {}, "no parallel env"),
        (ParallelEnv, {"stacked": True}, "alike observation spaces: 'red' has"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(env_fn: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(shmenv.UsageError, match=words):
        ShmParallelEnvs([env_fn], **options)


def test_actions_must_be_stacked_if_observations_are() -> None:
    with ShmParallelEnvs([JoinEnv] * 2, stacked=True) as envs:
        envs.reset()
        with pytest.raises(shmenv.UsageError, match=r"stacked, \(n, 3, ...\), not of shape \(2, 2\)"):
            envs.step(np.zeros((2, 2), int))
        assert envs.step(np.zeros((2, 3), int)).reward.tolist() == [[0, 0, 0]] * 2


class EndEnv(JoinEnv):
    """Its only step ends two agents, each as its action says: by termination (1), by a time limit (2), or both (3)."""

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        acted, self.agents = self.agents, []
        terminated = {agent: bool(actions[agent] & 1) for agent in acted}
        truncated = {agent: bool(actions[agent] & 2) for agent in acted}
        return self._look(acted), dict.fromkeys(acted, 1.0), terminated, truncated, {agent: {} for agent in acted}


@pytest.mark.parametrize(
    ("ends", "flags"),
    [
        ((1, 1), (True, False)),
        ((2, 2), (False, True)),
        ((3, 3), (True, True)),
        ((1, 2), (True, True)),
        ((0, 0), (True, False)),
    ],
)
def test_a_row_is_terminated_and_truncated_each_by_itself(ends: tuple[int, int], flags: tuple[bool, bool]) -> None:
    with shmenv.Pool([EndEnv], num_workers=1) as pool:
        pool.reset()
        batch = pool.step([{"early": ends[0], "whole": ends[1], "late": 0}])
        assert (batch.terminated[0], batch.truncated[0]) == flags
