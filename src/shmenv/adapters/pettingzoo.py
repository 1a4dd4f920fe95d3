"""Many PettingZoo parallel envs at once: agents side by side, with masks for those that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

import shmenv
from shmenv.adapters import require

require("pettingzoo", "1.24", "pettingzoo")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class AgentBatch:
    """What n envs answered, with A agents each, in the order of `possible_agents`.

    Attributes:
        env_id: int32 (n,), ascending.
        obs: by agent, each as its space with a leading axis, (n, *shape); or, stacked, (n, A, *shape). Zeros for an
            agent that has none.
        present: bool (n, A), which agents have an observation in `obs`; an agent's last step is among them.
        alive: bool (n, A), which agents take an action now.
        reward: float64 (n, A); 0 for an agent that was not there.
        terminated, truncated: bool (n, A), by agent.
        over: bool (n,), whether no agent was left. Then `obs`, `present` and `alive` are the new episode's, which has
            begun.
        lost: bool (n,), whether this row is in place of a step that was lost with its worker or by an error (only with
            on_error="restart"); the episode is over then, and its info has "error".
        final_obs, final_present: as obs and present, but the ended episode's. They mean nothing where none ended.
        infos: one dict by agent an env: of this step, also of one that ended the episode. Of a lost one, what is known.
        reset_infos: one dict by agent an env that was reset, else {}.
    """

    env_id: Array
    obs: Any
    present: Array
    alive: Array
    reward: Array
    terminated: Array
    truncated: Array
    over: Array
    lost: Array
    final_obs: Any
    final_present: Array
    infos: tuple[dict[Any, Any], ...]
    reset_infos: tuple[dict[Any, Any], ...]


class ShmParallelEnvs:
    """Steps n PettingZoo parallel envs in worker processes; an env in which no agent is left is reset at once.

    Args:
        env_fns: n functions that return a parallel env, all with the same agents. Run in the workers only.
        stacked: hand out observations, and take actions, as one array with an axis of agents, not as dicts by agent.
            All agents' spaces must be alike.
        **pool: further arguments of `shmenv.Pool`, such as `num_workers` or `on_error`; but not `autoreset`.

    Raises:
        UsageError: an argument is wrong, or the spaces cannot be stacked. Else what `shmenv.Pool` raises.
    """

    def __init__(self, env_fns: Iterable[Callable[[], Any]], stacked: bool = False, **pool: Any) -> None:
        if "autoreset" in pool:
            raise shmenv.UsageError(
                "autoreset cannot be chosen here: an env in which no agent is left is reset at once"
            )
        self._pool = shmenv.Pool(env_fns, autoreset="same_step", **pool)
        try:
            self._obs_spaces, self._action_spaces = self._pool.observation_space, self._pool.action_space
            if not isinstance(self._obs_spaces, dict):
                raise shmenv.UsageError("env 0 is no parallel env of PettingZoo: it has no possible_agents")
            if stacked:
                _check_alike("observation", self._obs_spaces)
                _check_alike("action", self._action_spaces)
        except BaseException:
            self._pool.close()
            raise
        self._stacked = stacked

    @property
    def pool(self) -> shmenv.Pool:
        """The pool beneath: `call`, `get_attr`, `stats` and the like."""
        return self._pool

    @property
    def num_envs(self) -> int:
        """How many envs there are."""
        return self._pool.num_envs

    @property
    def possible_agents(self) -> list[Any]:
        """All agents that may ever be there: the order of every axis of agents."""
        return list(self._obs_spaces)

    def observation_space(self, agent: Any) -> Any:
        """The space of one agent's observation in one env."""
        return self._obs_spaces[agent]

    def action_space(self, agent: Any) -> Any:
        """The space of one agent's action in one env."""
        return self._action_spaces[agent]

    def reset(
        self, seed: Any = None, options: dict[str, Any] | None = None, env_id: Sequence[int] | Array | None = None
    ) -> AgentBatch:
        """Reset envs. Arguments and errors are those of `shmenv.Pool.reset`."""
        return self._batch(self._pool.reset(seed=seed, options=options, env_id=env_id), was_reset=True)

    def step(self, actions: Any) -> AgentBatch:
        """Step all envs. Errors are those of `shmenv.Pool.step`.

        Args:
            actions: by agent (n, *shape); or, stacked, (n, A, *shape). Those of agents that are not alive play no part,
                but must be there.
        """
        return self._batch(self._pool.step(self._by_agent(actions)))

    def send(self, actions: Any, env_id: Sequence[int] | Array | None = None) -> None:
        """Step some envs without waiting. Errors are those of `shmenv.Pool.send`."""
        self._pool.send(self._by_agent(actions), env_id)

    def recv(self, min_envs: int | None = None, timeout: float | None = None) -> AgentBatch:
        """Wait for envs that were stepped by `send`. Arguments and errors are those of `shmenv.Pool.recv`."""
        return self._batch(self._pool.recv(min_envs, timeout))

    def close(self) -> None:
        """End the workers. Idempotent."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _by_agent(self, actions: Any) -> Any:
        if not self._stacked:
            return actions
        actions = np.asarray(actions)
        if actions.ndim < 2 or actions.shape[1] != len(self._obs_spaces):
            raise shmenv.UsageError(
                f"actions must be stacked, (n, {len(self._obs_spaces)}, ...), not of shape {actions.shape}"
            )
        return {agent: actions[:, k] for k, agent in enumerate(self._obs_spaces)}

    def _batch(self, batch: shmenv.Batch, was_reset: bool = False) -> AgentBatch:
        over = batch.terminated | batch.truncated
        now, ended = list(batch.info), list(batch.final_info)
        step = [ended[row] if over[row] else now[row] for row in range(len(batch))]
        return AgentBatch(
            env_id=batch.env_id,
            obs=self._side_by_side(batch.obs),
            present=self._mask(now, "present"),
            alive=self._mask(now, "alive"),
            reward=batch.reward,
            terminated=self._mask(step, "terminated"),
            truncated=self._mask(step, "truncated"),
            over=over,
            lost=np.array(["abnormal" in each for each in step]),
            final_obs=self._side_by_side(batch.final_obs),
            final_present=self._mask(step, "present") & over[:, None],
            infos=tuple({} if was_reset else each.get("agents", each) for each in step),
            reset_infos=tuple(
                each.get("agents", {}) if was_reset or is_over else {} for each, is_over in zip(now, over, strict=True)
            ),
        )

    def _side_by_side(self, obs: Any) -> Any:
        return np.stack([obs[agent] for agent in self._obs_spaces], axis=1) if self._stacked else obs

    def _mask(self, infos: list[dict[str, Any]], name: str) -> Array:
        nobody = np.zeros(len(self._obs_spaces), bool)  # of an env whose answer was lost
        return np.array([each.get(name, nobody) for each in infos])


def _check_alike(what: str, spaces: dict[Any, Any]) -> None:
    first, *others = spaces
    for space in spaces.values():
        if getattr(space, "shape", None) is None or space.dtype is None:
            raise shmenv.UsageError(f"stacked: the {what} space {space} is no single array")
    for agent in others:
        if (spaces[agent].shape, spaces[agent].dtype) != (spaces[first].shape, spaces[first].dtype):
            raise shmenv.UsageError(
                f"stacked: all agents need alike {what} spaces: {first!r} has {spaces[first]}, {agent!r} has "
                f"{spaces[agent]}"
            )
