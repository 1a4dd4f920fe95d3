"""The reference itself against Gymnasium's SyncVectorEnv, in all three autoreset modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from reference import MODES, Loop, in_space_types, row_of, same, stack
from seeded import MixedEnv, WalkEnv

GYMNASIUM_MODES = {
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def info_of(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Env i's own info out of Gymnasium's dictionary of columns."""
    found = {}
    for key, column in infos.items():
        if not key.startswith("_") and infos["_" + key][i]:
            found[key] = info_of(column, i) if isinstance(column, dict) else column[i]
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [WalkEnv, MixedEnv])
def test_the_reference_says_what_gymnasium_says(env: Callable[[], Any], mode: str) -> None:
    loop, sync = Loop([env] * 3, mode), SyncVectorEnv([env] * 3, autoreset_mode=GYMNASIUM_MODES[mode])
    space = sync.single_observation_space
    sync.action_space.seed(5)
    sync.single_action_space.seed(5)
    rows = loop.reset(dict(enumerate([7, 8, 9])))
    obs, _ = sync.reset(seed=7)
    ends = 0
    for _ in range(40):
        for i, row in rows.items():
            assert same(row_of(obs, i, space), in_space_types(row.obs, space))
        single = [sync.single_action_space.sample() for _ in range(3)]
        rows = loop.step(dict(enumerate(single)))
        obs, reward, terminated, truncated, infos = sync.step(stack(single, sync.single_action_space))
        for i, row in rows.items():
            assert (reward[i], terminated[i], truncated[i]) == (row.reward, row.terminated, row.truncated)
            assert info_of(infos, i).keys() - {"final_obs", "final_info"} == row.info.keys()
            if row.ended and mode == "same_step":
                assert same(in_space_types(infos["final_obs"][i], space), in_space_types(row.final_obs, space))
                assert info_of(infos["final_info"], i).keys() == row.final_info.keys()
        ended = np.array([row.ended for row in rows.values()])
        ends += ended.sum()
        if mode == "disabled" and ended.any():
            rows.update(loop.reset(env_id=np.flatnonzero(ended).tolist()))
            obs, _ = sync.reset(options={"reset_mask": ended})
    assert ends > 10
    sync.close()
