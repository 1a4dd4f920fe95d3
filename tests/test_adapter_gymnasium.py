"""ShmVectorEnv beside SyncVectorEnv: the same values, for every space, info, autoreset mode, seed and reset mask."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import ScriptedEnv
from gymnasium import wrappers as single
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from reference import same
from seeded import BoundEnv, BufferEnv, GivesEnv, MixedEnv, SpaceEnv, WalkEnv
from spaces import SPACES

from shmenv.adapters import columns
from shmenv.adapters.gymnasium import ShmVectorEnv

in_these_words = pytest.mark.skipif(
    "max_concurrency" not in inspect.signature(AsyncVectorEnv.__init__).parameters,
    reason="releases of Gymnasium before 1.4 say it in other words, as assertions",
)
Make = Callable[..., ShmVectorEnv]
MODES = list(AutoresetMode)


class OwnFinal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations and infos of their own, so that SyncVectorEnv's final_obs does not show the new episode."""

    def step(self, action: Any) -> Any:
        return deepcopy(self.env.step(action))


def check_same(one: Any, other: Any, where: object) -> None:
    assert len(one) == len(other), where
    for name, a, b in zip(("obs", "reward", "terminated", "truncated", "info")[: len(one)], one, other, strict=True):
        assert same(a, b), f"{where}: {name} {a!r} is not {b!r}"


def play(one: Any, two: Any, steps: int, seed: int = 7, actions: Callable[[], Any] | None = None) -> int:
    """Both get the same; returns how many episodes ended."""
    rng, n, ended = np.random.default_rng(seed), one.num_envs, 0
    one.action_space.seed(seed)
    check_same(one.reset(seed=seed), two.reset(seed=seed), "reset")
    for step in range(steps):
        action = one.action_space.sample() if actions is None else actions()
        results = one.step(action)
        check_same(results, two.step(action), step)
        over = results[2] | results[3]
        ended += int(over.sum())
        mask = over if one.metadata["autoreset_mode"] == AutoresetMode.DISABLED else rng.random(n) < 0.1
        if mask.any():
            options = {"reset_mask": mask, "step": step}
            seeds = None if step % 2 else (100 * step + np.arange(n)).tolist()
            check_same(
                one.reset(seed=seeds, options=dict(options)), two.reset(seed=seeds, options=options), (step, "reset")
            )
        if step == steps // 2:
            check_same(one.reset(options={"n": 1}), two.reset(options={"n": 1}), "reset of all")
    return ended


@pytest.mark.parametrize("kinds", [{}, {"shared_memory": False}, {"copy": False}], ids=["", "pickled", "views"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "env", [WalkEnv, BufferEnv, BoundEnv, MixedEnv, lambda: gymnasium.make("CartPole-v1", max_episode_steps=7)]
)
def test_results_equal_those_of_sync_vector_env(
    make_vector_env: Make, env: Callable[[], Any], mode: AutoresetMode, kinds: dict[str, bool]
) -> None:
    reference = SyncVectorEnv([lambda: OwnFinal(env())] * 3, autoreset_mode=mode)
    assert play(make_vector_env([env] * 3, autoreset_mode=mode, **kinds), reference, 40) > 3


@pytest.mark.parametrize("kinds", [{}, {"shared_memory": False}], ids=["", "pickled"])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_serves_as_observation_and_as_action(
    make_vector_env: Make, name: str, kinds: dict[str, bool]
) -> None:
    space = SPACES[name]()
    env_fns = [partial(SpaceEnv, space, space, length=3)] * 3
    one = make_vector_env(env_fns, autoreset_mode="SameStep", num_workers=1, **kinds)
    two = SyncVectorEnv(env_fns, autoreset_mode="SameStep")
    assert one.observation_space == two.observation_space and one.action_space == two.action_space
    check_same(one.reset(seed=4), two.reset(seed=4), name)
    for step in range(7):
        action = one.action_space.sample()
        results = one.step(action)
        check_same(results, two.step(action), name)
        if "own" not in name and "anything" not in name:  # FruitSpace cannot say
            assert results[0] in one.observation_space
        assert ("final_obs" in results[4]) == (step % 3 == 2)
    assert same(one.call("actions_kept"), two.call("actions_kept"))
    mask = np.array([False, True, False])
    options = {"reset_mask": mask}
    check_same(one.reset(seed=9, options=dict(options)), two.reset(seed=9, options=options), name)


@pytest.mark.parametrize(
    ("space", "returned"),
    [
        (Discrete(5), [3, np.int32(2), np.int64(1), 0]),
        (Box(-9, 9, (2,)), [[1, 2], np.array([0.1, 0.2]), (0.5, np.float32(1))]),
        (Dict(a=Discrete(3)), [{"a": 2}, {"a": np.int64(1)}]),
    ],
)
def test_final_observations_are_as_the_envs_returned_them(make_vector_env: Make, space: Any, returned: Any) -> None:
    gives = partial(GivesEnv, space, returned, length=1, infos=[{}, {"a": 1}])
    for kinds in ({}, {"shared_memory": False}):
        one = make_vector_env([gives] * 2, autoreset_mode="SameStep", **kinds)
        two = SyncVectorEnv([gives] * 2, autoreset_mode="SameStep")
        one.reset(), two.reset()
        for _ in returned:
            check_same(one.step([0, 1]), two.step([0, 1]), space)
        one.close()


INFOS: dict[str, list[dict[Any, Any]]] = {
    "numbers": [
        {"int": 3, "float": 2.5, "bool": True, "wide": np.float64(1), "small": np.float32(0.1), "u": np.uint8(7)}
    ],
    "arrays": [
        {"a": np.arange(3), "b": np.zeros((2, 2), np.float32), "none": np.zeros((0, 2)), "point": np.array(1.5)}
    ],
    "big-endian": [{"a": np.arange(2, dtype=">i4")}],
    "text": [{"name": "x", "bytes": b"y", "np": np.str_("z")}, {"name": "longer"}],
    "objects": [
        {"none": None, "list": [1, "2"], "flag": np.bool_(True), "complex": 1j, "date": np.datetime64("2020-01-01")}
    ],
    "dicts": [{"a": {"b": {"c": 1}, "d": 2.5}}, {"a": {"d": 3.5, "e": "f"}}, {"a": {}}],
    "now and then": [{}, {"a": 1}, {}, {"b": np.ones(2)}, {"a": 5, "b": np.zeros(2)}],
    "huge": [{"a": "x" * 100_000}, {"a": "y"}],
    "keys that are no text": [{7: 1, None: 2.5}],
    "float, then int": [{"x": 2.75}, {"x": 1}],
    "int, then bool": [{"x": 3}, {"x": True}],
}


def tells(infos: list[dict[Any, Any]]) -> GivesEnv:
    return GivesEnv(Box(-1, 1, (2,)), [np.zeros(2, np.float32)], infos=infos, length=4)


@pytest.mark.parametrize("mode", MODES)
def test_infos_of_every_type_have_the_columns_and_masks_of_sync_vector_env(
    make_vector_env: Make, mode: AutoresetMode
) -> None:
    env_fns = [partial(tells, [{}])] * 3
    one, two = make_vector_env(env_fns, autoreset_mode=mode), SyncVectorEnv(env_fns, autoreset_mode=mode)
    for name, infos in INFOS.items():
        shifts = [infos[k:] + infos[:k] for k in range(len(infos))] if "," not in name else [infos]
        for env in (one, two):
            env.set_attr("infos", [shifts[i % len(shifts)] for i in range(3)])
            env.reset()
        for step in range(9):
            results = one.step([0] * 3)
            check_same(results, two.step([0] * 3), (name, step))
            if mode == AutoresetMode.DISABLED and results[2].any():
                one.reset(), two.reset()


COLUMNS: list[tuple[list[Any], Any]] = [
    ([1, 2.75, 3], np.array([1.0, 2.75, 3.0])),
    ([True, 5, False], np.array([1, 5, 0])),
    ([np.float32(0.5), 0.1, 1.0], np.array([0.5, 0.1, 1.0])),
    ([1.5, None, 2.5], np.array([1.5, None, 2.5], object)),
    ([1, "two", 3], np.array([1, "two", 3], object)),
    ([2**70, 1, 2], np.array([2**70, 1, 2], object)),
    ([{"a": 1}, 2, 3], np.array([{"a": 1}, 2, 3], object)),
    ([np.arange(2), np.array([0.5, 1.5]), np.arange(2)], np.array([[0, 1], [0.5, 1.5], [0, 1]])),
    ([np.array(["ab"]), np.array([2]), np.array([3])], None),
    ([np.arange(2), np.arange(3), 7], None),
]


def test_no_value_of_an_info_is_changed_by_the_type_of_another_envs(make_vector_env: Make) -> None:
    env = make_vector_env([partial(tells, [{}])] * 3)
    for values, column in COLUMNS:
        env.set_attr("infos", [[{"x": value}] for value in values])
        env.reset()
        infos = env.step([0, 0, 0])[4]
        assert infos["_x"].all()
        if column is None:
            assert infos["x"].dtype == object and all(map(same, infos["x"], values)), values
        else:
            assert same(infos["x"], column), values


OWN = {"final_obs": 1, "final_info": "mine", "a": 5, "_a": 9, "d": {"b": 1, "_b": 2}, "_c": 3}


def test_an_envs_own_info_keys_replace_none_of_the_vector_envs(make_vector_env: Make) -> None:
    columns._warned_of.clear()
    env = make_vector_env([partial(tells, [OWN])] * 3, autoreset_mode="SameStep")
    env.set_attr("length", [2, 2, 9])
    env.reset()
    with pytest.warns(UserWarning, match="an env's info has the key '.*': it is left out|by which") as told:
        _, _, terminated, _, infos = env.step([0, 0, 0])
        assert not terminated.any() and "final_obs" not in infos and "_final_info" not in infos
        assert infos["a"].tolist() == [5] * 3 and infos["_a"].tolist() == [True] * 3
        assert infos["d"]["_b"].all() and infos["_c"].tolist() == [3] * 3 and infos["__c"].all()
        _, _, terminated, _, infos = env.step([0, 0, 0])
    assert terminated.tolist() == infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, True, False]
    assert [isinstance(obs, np.ndarray) for obs in infos["final_obs"]] == [True, True, False]
    assert infos["final_info"]["final_obs"].tolist() == [1, 1, 0] and infos["final_info"]["a"].tolist() == [5, 5, 0]
    assert infos["_a"].dtype == infos["final_info"]["_a"].dtype == bool
    assert len(told) == 4  # one a key: both finals, _a, _b


def test_an_envs_own_env_id_does_not_replace_that_of_recv(make_vector_env: Make) -> None:
    columns._warned_of.clear()
    env = make_vector_env([partial(tells, [{"env_id": "mine"}])] * 3)
    env.reset()
    env.send([0, 0], [0, 2])
    with pytest.warns(UserWarning, match="'env_id'"):
        infos = env.recv()[4]
    assert infos["env_id"].tolist() == [0, 2] and "_env_id" not in infos


def test_final_obs_is_the_ended_episodes_also_where_the_env_reuses_its_buffer(make_vector_env: Make) -> None:
    env = make_vector_env([BufferEnv] * 3, autoreset_mode="SameStep")
    reference = SyncVectorEnv([lambda: OwnFinal(BufferEnv())] * 3, autoreset_mode="SameStep")
    assert play(env, reference, 30) > 3


def test_results_are_the_callers_own(make_vector_env: Make) -> None:
    env = make_vector_env([MixedEnv] * 2)
    kept = [env.reset(seed=1)[0]]
    before = deepcopy(kept)
    for _ in range(6):
        results = env.step(env.action_space.sample())
        kept.append(results)
        before.append(deepcopy(results))
    assert all(map(same, kept, before))
    kept[-1][0]["image"][...] = 0
    obs, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert same(obs["image"][1], before[-1][0]["image"][1])


def test_without_copies_two_steps_coexist(make_vector_env: Make) -> None:
    env = make_vector_env([WalkEnv] * 2, copy=False)
    first, _ = env.reset(seed=1)
    kept = first.copy()
    second = env.step([1, 1])[0]
    assert same(first, kept) and not np.shares_memory(first, second)
    third = env.step([1, 1])[0]
    assert np.shares_memory(first, third)


def test_seeds_of_every_kind_reach_the_envs(make_vector_env: Make) -> None:
    env = make_vector_env([WalkEnv] * 3)
    kinds: list[Any] = [5, np.int64(5), [5, 6, 7], (5, None, 7), np.array([5, 6, 7]), None]
    for seed in kinds:
        env.reset(seed=1)
        env.reset(seed=seed)
        given = [1, 2, 3] if seed is None else [5, 2 if isinstance(seed, tuple) else 6, 7]
        assert env.np_random_seed == tuple(given), seed
        reference = WalkEnv()
        reference.reset(seed=5)
        seeded = env.np_random[0].bit_generator.state == reference.np_random.bit_generator.state
        assert seeded == (seed is not None)


def test_options_reach_the_envs_and_stay_as_they_are(make_vector_env: Make) -> None:
    env = make_vector_env([WalkEnv] * 2)
    options = {"task": 3, "reset_mask": np.array([True, True])}
    env.reset(options=options)
    assert sorted(options) == ["reset_mask", "task"]
    assert env.get_attr("options") == ({"task": 3},) * 2
    env.reset(options=options)
    env.reset(options=None)
    assert env.get_attr("options") == (None, None)
    env.reset(options={})
    assert env.get_attr("options") == ({}, {})


@in_these_words
def test_wrong_reset_masks_are_refused_in_gymnasiums_words(make_vector_env: Make) -> None:
    one, two = make_vector_env([WalkEnv] * 2), SyncVectorEnv([WalkEnv] * 2)
    one.reset(seed=1), two.reset(seed=1)
    masks: list[Any] = [[True, False], np.array([True]), np.array([[True, False]]), np.array([1, 0]), np.zeros(2, bool)]
    for mask in masks:
        refusals = []
        for env in (one, two):
            with pytest.raises((TypeError, ValueError)) as caught:
                env.reset(options={"reset_mask": mask})
            refusals.append((type(caught.value), str(caught.value)))
            env.step([0, 0])
        assert refusals[0] == refusals[1]


@in_these_words
def test_a_wrong_number_of_seeds_is_refused_in_gymnasiums_words(make_vector_env: Make) -> None:
    refusals = []
    for env in (make_vector_env([WalkEnv] * 2), SyncVectorEnv([WalkEnv] * 2)):
        with pytest.raises(ValueError) as caught:
            env.reset(seed=[1])
        refusals.append(str(caught.value))
    assert refusals[0] == refusals[1]


class FixedArguments(WalkEnv):
    """Its reset has both of Gymnasium's arguments, and no defaults."""

    def reset(self, seed: Any, options: Any) -> Any:  # type: ignore[override]
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("mode", MODES)
def test_an_env_may_count_on_both_arguments_of_its_reset(make_vector_env: Make, mode: AutoresetMode) -> None:
    one, two = make_vector_env([FixedArguments] * 2, autoreset_mode=mode), SyncVectorEnv([FixedArguments] * 2)
    check_same(one.reset(seed=3), two.reset(seed=3), "reset")
    one.reset()
    assert one.get_attr("options") == (None, None)


def test_a_manual_reset_after_the_end_is_the_only_one(make_vector_env: Make) -> None:
    """No second reset one step later, in next-step mode."""
    for kinds in ({}, {"shared_memory": False}):
        obs = [np.array([t], np.float32) for t in range(9)]
        env = make_vector_env([partial(GivesEnv, Box(0, 9, (1,)), obs, rewards=[1.0, 2.0], length=2)], **kinds)
        env.reset()
        env.step([0])
        assert env.step([0])[2].all()
        env.reset()
        results = env.step([0])
        assert results[0].tolist() == [[1.0]] and results[1].tolist() == [1.0]


def test_envs_may_be_stepped_before_their_first_reset_as_in_gymnasium(make_vector_env: Make) -> None:
    def thunk() -> Any:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=3)
        return env

    check_same(make_vector_env([thunk] * 2).step([0, 1]), SyncVectorEnv([thunk] * 2).step([0, 1]), "first step")


def test_actions_that_the_space_does_not_have_reach_the_envs_as_in_gymnasium(make_vector_env: Make) -> None:
    box, pick, both = Box(-1, 1, (2,)), Discrete(3), Dict(a=Discrete(3), b=Box(-1, 1, (1,)))
    for space, actions in (
        (box, np.full((2, 2), 0.1)),
        (box, np.ones((2, 2), int)),
        (box, [[0.1, 0.2], [0.3, 0.4]]),
        (Box(-1, 1, ()), [0.1, np.float64(0.2)]),
        (Tuple((pick, box)), (np.array([0, 1]), np.full((2, 2), 0.1))),
        (both, {"a": np.array([0, 1]), "b": np.full((2, 1), 0.1)}),
        (pick, [1.5, 2.0]),
        (pick, np.array([[1, 2], [0, 1]])),
        (pick, ["left", None]),
        (box, [3, 4]),
        (box, [np.zeros(3), np.ones(1)]),
        (box, np.ones((2, 5))),
        (both, {"a": [0.5, 1.5], "b": np.zeros((2, 7))}),
    ):
        one = make_vector_env([partial(SpaceEnv, pick, space)] * 2)
        two = SyncVectorEnv([partial(SpaceEnv, pick, space)] * 2)
        for env in (one, two):
            env.reset(seed=1)
            env.step(actions)
        assert same(one.call("actions_kept"), two.call("actions_kept"))


def test_the_description_is_that_of_the_envs(make_vector_env: Make) -> None:
    thunk = partial(ScriptedEnv, render_mode="rgb_array")
    one, two = (
        make_vector_env([thunk] * 2, autoreset_mode="Disabled"),
        SyncVectorEnv([thunk] * 2, autoreset_mode="Disabled"),
    )
    for name in ("metadata", "render_mode", "num_envs", "spec", "observation_space", "action_space"):
        assert getattr(one, name) == getattr(two, name), name
    assert one.single_observation_space == two.single_observation_space
    assert one.single_action_space == two.single_action_space
    assert repr(one) == "ShmVectorEnv(num_envs=2)"
    assert one.unwrapped is one
    one.reset(seed=1), two.reset(seed=1)
    assert same(one.render(), two.render())


@pytest.mark.parametrize("mode", ["different", (Box(0, 3, (2, 5)), Box(0, 1, (5,)))])
def test_envs_whose_bounds_differ_go_together_if_asked_for(make_vector_env: Make, mode: Any) -> None:
    env_fns = [partial(SpaceEnv, Box(0, high, (5,)), Discrete(2)) for high in (1, 3)]
    one, two = make_vector_env(env_fns, observation_mode=mode), SyncVectorEnv(env_fns, observation_mode=mode)
    assert one.observation_space == two.observation_space
    assert one.single_observation_space == two.single_observation_space
    check_same(one.reset(seed=1), two.reset(seed=1), "reset")


@pytest.mark.parametrize(
    ("spaces", "mode", "text"),
    [
        ([Box(0, 1, (2,)), Box(0, 2, (2,))], "same", "sub-environments observation spaces are not equivalent. If this"),
        ([Box(0, 1, (2,)), Box(0, 1, (3,))], "same", "observation_mode='same'"),
        ([Box(0, 1, (2,)), Box(0, 1, (3,))], "different", "not"),
        ([Box(0, 1, (2,)), Discrete(3)], "different", "not"),
        (
            [Box(0, 1, (2,)), Box(0, 1, (2,))],
            (Box(0, 1, (2, 3)), Box(0, 1, (3,))),
            "do not share a common shape and dtype",
        ),
    ],
)
def test_observation_spaces_that_differ_are_a_runtime_error(
    make_vector_env: Make, spaces: Any, mode: Any, text: str
) -> None:
    with pytest.raises((RuntimeError, AssertionError), match=text):
        make_vector_env([partial(SpaceEnv, space, Discrete(2)) for space in spaces], observation_mode=mode)


@pytest.mark.parametrize("other", [Discrete(3), Box(0, 1, (2,))])
def test_action_spaces_that_differ_are_a_runtime_error(make_vector_env: Make, other: Any) -> None:
    with pytest.raises(RuntimeError, match="Some environments have an action space different from"):
        make_vector_env([partial(SpaceEnv, Discrete(2), space) for space in (Discrete(2), other)])


@in_these_words
@pytest.mark.parametrize("mode", ["invalid", (Box(0, 1, (2,)), 3)])
def test_a_wrong_observation_mode_is_refused_in_gymnasiums_words(make_vector_env: Make, mode: Any) -> None:
    refusals = []
    for build in (make_vector_env, SyncVectorEnv):
        with pytest.raises((TypeError, ValueError)) as caught:
            build([WalkEnv], observation_mode=mode)
        refusals.append((type(caught.value), str(caught.value)))
    assert refusals[0] == refusals[1]


def images() -> Any:
    return GivesEnv(
        Box(0, 255, (8, 8, 3), np.uint8), [np.full((8, 8, 3), 10 * t, np.uint8) for t in range(9)], length=5
    )


def drive() -> Any:
    return gymnasium.make("MountainCarContinuous-v0", max_episode_steps=9)


def cart() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=9)


WRAPPED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "RecordEpisodeStatistics": (cart, lambda env: wrappers.RecordEpisodeStatistics(env)),
    "DictInfoToList": (WalkEnv, lambda env: wrappers.DictInfoToList(env)),
    "NormalizeObservation": (cart, lambda env: wrappers.NormalizeObservation(env)),
    "NormalizeReward": (cart, lambda env: wrappers.NormalizeReward(env)),
    "TransformObservation": (cart, lambda env: wrappers.TransformObservation(env, lambda obs: obs * 2)),
    "VectorizeTransformObservation": (
        cart,
        lambda env: wrappers.VectorizeTransformObservation(
            env, single.TransformObservation, func=lambda x: x + 1, observation_space=None
        ),
    ),
    "FilterObservation": (MixedEnv, lambda env: wrappers.FilterObservation(env, ["coords", "many"])),
    "FlattenObservation": (images, lambda env: wrappers.FlattenObservation(env)),
    "GrayscaleObservation": (images, lambda env: wrappers.GrayscaleObservation(env)),
    "ReshapeObservation": (images, lambda env: wrappers.ReshapeObservation(env, (64, 3))),
    "RescaleObservation": (drive, lambda env: wrappers.RescaleObservation(env, np.float32(0), np.float32(1))),
    "DtypeObservation": (images, lambda env: wrappers.DtypeObservation(env, np.float64)),
    "TransformAction": (cart, lambda env: wrappers.TransformAction(env, lambda action: 1 - action)),
    "VectorizeTransformAction": (
        drive,
        lambda env: wrappers.VectorizeTransformAction(
            env, single.TransformAction, func=lambda x: x / 2, action_space=None
        ),
    ),
    "ClipAction": (drive, lambda env: wrappers.ClipAction(env)),
    "RescaleAction": (drive, lambda env: wrappers.RescaleAction(env, np.zeros(1, "f4"), np.ones(1, "f4"))),
    "TransformReward": (cart, lambda env: wrappers.TransformReward(env, lambda reward: -reward)),
    "VectorizeTransformReward": (
        cart,
        lambda env: wrappers.VectorizeTransformReward(env, single.TransformReward, func=lambda x: 2 * x),
    ),
    "ClipReward": (WalkEnv, lambda env: wrappers.ClipReward(env, -0.5, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_gymnasiums_vector_wrappers_do_around_it_what_they_do_around_sync_vector_env(
    make_vector_env: Make, name: str
) -> None:
    env, wrap = WRAPPED[name]
    mode = AutoresetMode.NEXT_STEP
    one, two = (
        wrap(make_vector_env([env] * 3, autoreset_mode=mode, num_workers=1)),
        wrap(SyncVectorEnv([env] * 3, autoreset_mode=mode)),
    )
    one.action_space.seed(3)
    for _ in range(2):
        check_same(list(one.reset(seed=3)), list(two.reset(seed=3)), name)
        for step in range(15):
            action = one.action_space.sample()
            results, expected = one.step(deepcopy(action)), two.step(deepcopy(action))  # some work in place
            for infos in (results[4], expected[4]):
                for part in [infos, *(infos if isinstance(infos, list) else [])]:
                    if "episode" in part:
                        del part["episode"]["t"]  # seconds
            check_same(results, expected, (name, step))


@pytest.mark.skipif(
    not hasattr(wrappers, "RecordVideo"), reason="this release of Gymnasium has no RecordVideo for vector envs"
)
def test_record_video_gets_its_frames(make_vector_env: Make, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clips: list[Any] = []

    class ImageSequenceClip:
        """In place of moviepy's, which encodes them."""

        def __init__(self, frames: list[Any], fps: float) -> None:
            clips.append(list(frames))

        def write_videofile(self, path: str, logger: Any) -> None:
            pass

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["moviepy.video.io.ImageSequenceClip"].ImageSequenceClip = ImageSequenceClip  # type: ignore[attr-defined]

    thunk = partial(ScriptedEnv, render_mode="rgb_array")
    for build, folder in ((make_vector_env, tmp_path / "one"), (SyncVectorEnv, tmp_path / "two")):
        env = wrappers.RecordVideo(build([thunk] * 2), str(folder), video_length=5, step_trigger=lambda step: step == 0)
        env.reset(seed=1)
        for _ in range(8):
            env.step([0, 0])
        env.close()
    assert len(clips) == 2 and len(clips[0]) >= 5 and same(clips[0], clips[1])
