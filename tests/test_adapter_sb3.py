"""ShmVecEnv beside DummyVecEnv: the same values, infos, attributes and wrappers; and what happens when envs fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Gate, OddError, OnlyInWorkersEnv, ScriptedEnv, actions
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from reference import same
from seeded import BufferEnv, GivesEnv, SpaceEnv, WalkEnv
from support import eventually, is_gone

import shmenv

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed here: `make frameworks` runs these")

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from shmenv.adapters.sb3 import ShmVecEnv

Make = Callable[..., ShmVecEnv]


@pytest.fixture
def make(make_vector_env: Callable[..., Any]) -> Make:
    """ShmVecEnv, closed after the test."""
    return partial(make_vector_env, cls=ShmVecEnv)


class Own(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations and infos of their own, so that DummyVecEnv's terminal observation does not show the new episode."""

    def step(self, action: Any) -> Any:
        return deepcopy(self.env.step(action))


class DictEnv(GivesEnv):
    """Observations of two parts, the second an image."""

    def __init__(self) -> None:
        space = Dict(place=Box(-1, 1, (2,)), image=Box(0, 255, (6, 5, 3), np.uint8))
        shown = [{"place": np.full(2, t / 9, np.float32), "image": np.full((6, 5, 3), t, np.uint8)} for t in range(9)]
        super().__init__(space, shown, rewards=[0.1, 2.0, -3.0], length=4)


def image_env() -> Any:
    return GivesEnv(
        Box(0, 255, (8, 8, 3), np.uint8), [np.full((8, 8, 3), 10 * t, np.uint8) for t in range(9)], length=5
    )


def cart() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=7)


def dummy(env: Callable[[], Any], n: int) -> DummyVecEnv:
    return DummyVecEnv([lambda: Own(env())] * n)


def check_same(one: Any, other: Any, where: object) -> None:
    for name, a, b in zip(("obs", "reward", "done", "infos"), one, other, strict=True):
        assert same(a, b), f"{where}: {name} {a!r} is not {b!r}"


def play(one: Any, two: Any, steps: int) -> int:
    """Both get the same; returns how many episodes ended."""
    one.action_space.seed(7)
    ended = 0
    for _ in range(2):
        assert one.seed(5) == two.seed(5)
        one.set_options({"n": 1}), two.set_options({"n": 1})
        for _ in range(2):
            assert same(plain(one.reset()), plain(two.reset())) and same(one.reset_infos, two.reset_infos)
        for step in range(steps):
            sampled = np.stack([one.action_space.sample() for _ in range(one.num_envs)])
            results, expected = one.step(sampled), two.step(sampled)
            check_same([plain(each) for each in results], [plain(each) for each in expected], step)
            assert same(one.reset_infos, two.reset_infos)
            ended += int(results[2].sum())
    return ended


def plain(value: Any) -> Any:
    """DummyVecEnv's OrderedDict as a dict."""
    return dict(value) if isinstance(value, dict) else value


@pytest.mark.parametrize("env", [WalkEnv, BufferEnv, DictEnv, cart, image_env])
def test_results_equal_those_of_dummy_vec_env(make: Make, env: Callable[[], Any]) -> None:
    assert play(make([env] * 3), dummy(env, 3), 40) > 6


SPACES = [
    Box(-1, 1, (2, 3)),
    Box(-1, 1, ()),
    Box(0, 255, (2,), np.uint8),
    Discrete(4),
    Discrete(4, start=-2),
    MultiDiscrete([3, 4]),
    MultiBinary(3),
    Dict(a=Box(-1, 1, (2,)), b=Discrete(3)),
    Tuple((Discrete(3), Box(-1, 1, (2,)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_space_of_observations_has_dummy_vec_envs_arrays(make: Make, space: Any) -> None:
    gives = partial(GivesEnv, space, [space.sample() for _ in range(4)], length=3)
    one, two = make([gives] * 2), dummy(gives, 2)
    assert same(plain(one.reset()), plain(two.reset()))
    for step in range(7):
        results, expected = one.step(np.zeros(2, int)), two.step(np.zeros(2, int))
        check_same([plain(each) for each in results], [plain(each) for each in expected], step)


@pytest.mark.parametrize("space", [space for space in SPACES if not isinstance(space, Dict | Tuple)], ids=str)
def test_every_space_of_actions_reaches_the_envs_as_dummy_vec_env_hands_them_out(make: Make, space: Any) -> None:
    one, two = (
        make([partial(SpaceEnv, Discrete(2), space)] * 3),
        DummyVecEnv([partial(SpaceEnv, Discrete(2), space)] * 3),
    )
    one.reset(), two.reset()
    for _ in range(3):
        sampled = np.stack([space.sample() for _ in range(3)])
        one.step(sampled), two.step(sampled)
    odd: list[Any] = ["left", None, "right"]
    for given in (odd, np.full((3, *space.shape), 0.1)):
        one.step(given), two.step(given)
    assert same(one.env_method("actions_kept"), two.env_method("actions_kept"))


def test_truncation_and_terminal_observation_stand_in_the_info(make: Make) -> None:
    env = make([partial(ScriptedEnv, length=2), partial(ScriptedEnv, length=2, truncates=True), ScriptedEnv])
    env.reset()
    assert env.step(actions(3))[3] == [{"TimeLimit.truncated": False}] * 3
    obs, rewards, dones, infos = env.step(actions(3))
    assert dones.tolist() == [True, True, False] and rewards.dtype == np.float32
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True, False]
    assert (
        same(infos[1]["terminal_observation"], np.array([0, 2], np.float32)) and "terminal_observation" not in infos[2]
    )
    assert isinstance(obs, np.ndarray) and obs.tolist() == [[1, 0], [1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("space", "returned"),
    [(Discrete(5), [3, np.int64(1), 0]), (Box(-9, 9, (2,)), [np.array([0.1, 0.2]), np.zeros(2, np.float32)])],
)
def test_terminal_observations_are_as_the_envs_returned_them(make: Make, space: Any, returned: Any) -> None:
    gives = partial(GivesEnv, space, returned, length=1)
    one, two = make([gives] * 2), DummyVecEnv([gives] * 2)
    one.reset(), two.reset()
    for step in returned:
        check_same(one.step(np.zeros(2, int)), two.step(np.zeros(2, int)), step)


def test_seeds_and_options_are_used_once(make: Make) -> None:
    one, two = make([ScriptedEnv] * 2), DummyVecEnv([ScriptedEnv] * 2)
    for env in (one, two):
        env.reset()
        assert list(env.seed(7)) == [7, 8]
        env.set_options([{"a": 1}, {}])
        env.reset()
        env.reset()
        env.seed()
        env.set_options({"b": 2})
        env.reset()
    seen, expected = one.get_attr("seen"), two.get_attr("seen")
    assert [each[:3] for each in seen] == [each[:3] for each in expected]
    assert seen[0][1:3] == [(7, {"a": 1}), (None, None)] and seen[1][1] == (8, None)
    assert seen[0][3][1] == {"b": 2} and seen[0][3][0] is not None


def test_results_are_the_callers_own(make: Make) -> None:
    env = make([DictEnv] * 2)
    kept: list[Any] = [env.reset()]
    before = deepcopy(kept)
    for _ in range(9):
        kept.append(env.step(np.zeros(2, int)))
        before.append(deepcopy(kept[-1]))
    assert all(map(same, kept, before))


@pytest.mark.parametrize("indices", [None, 0, 1, -1, [2, 0], (1,), range(2), [1, 1, 0], [], np.array([2, 1])])
def test_attributes_and_methods_answer_for_the_indices_asked(make: Make, indices: Any) -> None:
    one, two = make([Monitored] * 3), DummyVecEnv([Monitored] * 3)
    for env in (one, two):
        env.reset()
        env.set_attr("extra", 5)
        env.set_attr("gain", 7, indices=indices)
    calls: list[Callable[[Any], Any]] = [
        lambda env: env.get_attr("gain", indices),
        lambda env: env.get_attr("t", indices),
        lambda env: env.env_method("add", 1, indices=indices, second=2),
        lambda env: env.env_is_wrapped(Monitor, indices),
        lambda env: env.env_is_wrapped(gymnasium.wrappers.TimeLimit, indices),
    ]
    for call in calls:
        assert same(call(one), call(two))
    with pytest.raises(IndexError):
        one.get_attr("t", [3])


class Monitored(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A ScriptedEnv in a Monitor in a wrapper with an attribute."""

    def __init__(self) -> None:
        super().__init__(Monitor(ScriptedEnv()))
        self.gain = 1


def test_attributes_are_found_through_wrappers_and_set_on_the_outermost(make: Make) -> None:
    one, two = make([Monitored] * 2), DummyVecEnv([Monitored] * 2)
    for env in (one, two):
        env.reset()
        env.set_attr("t", 99)
        assert env.get_attr("t") == [99, 99]
        assert env.env_method("where") == [(0, 0)] * 2
        assert env.has_attr("t") and env.has_attr("gain") and not env.has_attr("nope")
        with pytest.raises(AttributeError):
            env.get_attr("nope")
        with pytest.raises(AttributeError):
            env.env_method("nope")
    assert one.has_attr("lock")
    assert one.step(actions(2))[1].tolist() == [1, 1]


def test_render_modes_and_images_equal_those_of_dummy_vec_env(make: Make) -> None:
    image = partial(ScriptedEnv, render_mode="rgb_array")
    one, two = make([image] * 3), DummyVecEnv([image] * 3)
    one.reset(), two.reset()
    one.step(actions(3)), two.step(actions(3))
    assert one.render_mode == two.render_mode == "rgb_array"
    assert same(list(one.get_images()), list(two.get_images())) and same(one.render(), two.render())
    blind = make([ScriptedEnv] * 2)
    with pytest.warns(UserWarning, match="this method assumes it is `rgb_array`"):
        assert blind.get_images() == [None, None]


WRAPPED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "VecNormalize": (cart, lambda env: VecNormalize(env)),
    "VecFrameStack": (image_env, lambda env: VecFrameStack(env, 3)),
    "VecTransposeImage": (image_env, lambda env: VecTransposeImage(env)),
    "VecTransposeImage of a dict": (DictEnv, lambda env: VecTransposeImage(env)),
    "VecFrameStack of a dict": (DictEnv, lambda env: VecFrameStack(env, 2)),
    "VecExtractDictObs": (DictEnv, lambda env: VecExtractDictObs(env, "place")),
    "VecCheckNan": (cart, lambda env: VecCheckNan(env, raise_exception=True)),
    "VecMonitor": (cart, lambda env: VecMonitor(env)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_vec_env_wrappers_do_around_it_what_they_do_around_dummy_vec_env(make: Make, name: str) -> None:
    env, wrap = WRAPPED[name]
    one, two = wrap(make([env] * 3)), wrap(dummy(env, 3))
    one.action_space.seed(3)
    one.seed(3), two.seed(3)
    assert same(plain(one.reset()), plain(two.reset()))
    for step in range(20):
        sampled = np.stack([one.action_space.sample() for _ in range(3)])
        results, expected = one.step(sampled), two.step(sampled)
        for info in [*results[3], *expected[3]]:
            if "episode" in info:
                del info["episode"]["t"]  # seconds
        check_same([plain(each) for each in results], [plain(each) for each in expected], (name, step))


def test_make_vec_env_of_stable_baselines_makes_it() -> None:
    env = make_vec_env("CartPole-v1", 3, seed=4, vec_env_cls=ShmVecEnv, vec_env_kwargs={"start_method": "fork"})
    two = make_vec_env("CartPole-v1", 3, seed=4)
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert same(env.reset(), two.reset())
    env.close()


def test_a_pending_step_survives_questions_and_is_dropped_by_a_reset(make: Make, tmp_path: Any) -> None:
    gate = Gate(tmp_path / "gate")
    env = make([ScriptedEnv, partial(ScriptedEnv, gate=gate.path)])
    env.reset()
    env.step_async(actions(2))
    assert env.waiting and env.get_attr("t") == [1, 1]
    assert env.step_wait()[1].tolist() == [1, 1] and not env.waiting
    env.step_async(actions(2, {1: "slow"}))
    os.close(eventually(gate.try_hold))
    with pytest.raises(ValueError, match="pending"):
        env.step_async(actions(2))
    obs: Any = env.reset()
    assert obs.tolist() == [[1, 0], [1, 0]]
    assert env.step(actions(2))[1].tolist() == [1, 1]


def test_a_wrong_number_of_actions_changes_nothing(make: Make) -> None:
    env = make([ScriptedEnv] * 3)
    env.reset()
    for wrong in ([0, 0], np.zeros(4, int), None):
        with pytest.raises(ValueError):
            env.step(wrong)
    assert env.step(actions(3))[1].tolist() == [1, 1, 1]


def test_what_an_env_raises_is_raised_here(make: Make) -> None:
    env = make([ScriptedEnv] * 3)
    env.reset()
    with pytest.raises(OddError, match="odd 1 two") as caught:
        env.step(actions(3, {1: "raise_odd"}))
    cause = caught.value.__cause__
    assert isinstance(cause, shmenv.EnvError) and cause.env_id == 1 and "envs.py" in str(cause)
    with pytest.raises(KeyError, match="missing asset"):
        env.env_method("fail")
    obs: Any = env.reset()
    assert obs.tolist() == [[1, 0]] * 3


def test_what_a_constructor_raises_is_raised_here() -> None:
    with pytest.raises(KeyError, match="missing asset") as caught:
        ShmVecEnv([ScriptedEnv, partial(ScriptedEnv, at_start="raise")], start_method="fork")
    assert isinstance(caught.value.__cause__, shmenv.EnvError) and caught.value.__cause__.env_id == 1


def test_envs_in_place_of_functions_are_refused_at_once() -> None:
    with pytest.raises(shmenv.UsageError, match="env_fns must be one or more functions that return an env"):
        ShmVecEnv([ScriptedEnv()])  # type: ignore[list-item]


def test_a_start_method_that_does_not_exist_is_refused_as_by_multiprocessing() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'illegal'"):
        ShmVecEnv([ScriptedEnv], start_method="illegal")


def test_the_same_env_twice_is_refused() -> None:
    env = ScriptedEnv()
    with pytest.raises(ValueError, match="the same instance"):
        ShmVecEnv([lambda: env, lambda: env], start_method="fork", num_workers=1)


def test_no_env_is_built_in_this_process(make: Make) -> None:
    assert make([partial(OnlyInWorkersEnv, os.getpid())] * 2).num_envs == 2


def test_a_worker_that_dies_is_told_of_and_replaced(make: Make) -> None:
    env = make([ScriptedEnv] * 3, num_workers=3)
    env.reset()
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        env.step(actions(3, {1: "kill"}))
    assert caught.value.exitcode == -signal.SIGKILL
    obs: Any = env.reset()
    assert obs.tolist() == [[1, 0], [0, 0], [1, 0]]


def test_losses_by_policy_are_truncated_episodes(make: Make) -> None:
    env = make([ScriptedEnv] * 3, num_workers=3, on_error="restart")
    env.reset()
    _, rewards, dones, infos = env.step(actions(3, {1: "exit"}))
    assert dones.tolist() == [False, True, False] and rewards.tolist() == [1, 0, 1]
    assert infos[1]["abnormal"] and infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"].tolist() == [0, 0]


def test_closing_is_idempotent_and_ends_stuck_workers(make: Make) -> None:
    env = make([ScriptedEnv] * 2, close_timeout=0.05)
    env.reset()
    pids = env.env_method("pid")
    env.step_async(actions(2, {1: "hang_native"}))
    env.close()
    env.close()
    assert env.closed and all(map(is_gone, pids))
    with pytest.raises(shmenv.ClosedError):
        env.step(actions(2))


def test_envs_do_not_bring_torch_into_their_workers(make: Make) -> None:
    (loaded,) = make([ScriptedEnv], start_method="spawn").env_method("modules")
    assert "gymnasium" in loaded and "torch" not in loaded and "stable_baselines3" not in loaded
