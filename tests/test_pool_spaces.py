"""Every kind of space as observation and as action, beside what Gymnasium's SyncVectorEnv makes of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import SyncVectorEnv
from reference import in_space_types, row_of, same, stack
from seeded import BareEnv, GivesEnv, SpaceEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]
Space = gymnasium.Space[Any]

ARRAYS: dict[str, Space] = {
    "float32": Box(-1, 1, (3,), np.float32),
    "float64": Box(-np.inf, np.inf, (2, 2), np.float64),
    "float16": Box(-1, 1, (3,), np.float16),
    "uint8 image": Box(0, 255, (6, 5, 3), np.uint8),
    "int8": Box(-128, 127, (2,), np.int8),
    "uint16": Box(0, 65535, (2,), np.uint16),
    "int64": Box(-5, 5, (2,), np.int64),
    "bool": Box(0, 1, (3,), np.bool_),
    "no dimension": Box(-1, 1, (), np.float32),
    "no size": Box(0, 1, (0, 3), np.float32),
    "discrete": Discrete(7),
    "discrete from -3": Discrete(5, start=-3),
    "discrete int32": Discrete(7, dtype=np.int32),
    "multidiscrete": MultiDiscrete([3, 4, 5]),
    "multidiscrete of two axes": MultiDiscrete(np.array([[3, 4], [5, 6]])),
    "multibinary": MultiBinary(6),
    "multibinary of two axes": MultiBinary((2, 3)),
    "dict": Dict(b=Box(0, 9, (1,), np.float32), a=Discrete(3)),
    "mixed dict": Dict(screen=Box(0, 255, (4, 4), np.uint8), coords=Box(-9, 9, (2,), np.int32)),
    "tuple": Tuple((Discrete(2), Box(0, 1, (2,), np.float64))),
    "deep": Tuple((Discrete(2), Dict(x=Tuple((Dict(y=Box(0, 1, (1,), np.float16)), MultiBinary(2)))))),
    "empty dict": Dict(),
    "empty tuple": Tuple(()),
}


class EvenSpace(gymnasium.Space[int]):
    """A space of a user's own: even numbers."""

    def __init__(self) -> None:
        super().__init__((), np.int64)

    def sample(self, mask: Any = None, probability: Any = None) -> int:
        return 2 * int(self.np_random.integers(100))

    def contains(self, x: Any) -> bool:
        return isinstance(x, int) and x % 2 == 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EvenSpace)

    __hash__ = None  # type: ignore[assignment]  # equal by class, as Gymnasium's spaces are


OBJECTS: dict[str, Space] = {
    "text": spaces.Text(12),
    "sequence": spaces.Sequence(Box(0, 1, (2,), np.float32)),
    "graph": spaces.Graph(Box(-1, 1, (3,), np.float32), Discrete(4)),
    "one of": spaces.OneOf([Discrete(3), Box(0, 1, (2,), np.float32)]),
    "own": EvenSpace(),
    "dict with text": Dict(word=spaces.Text(8), n=Discrete(3)),
    "tuple with graph": Tuple((spaces.Graph(Box(-1, 1, (2,), np.float32), None), Box(0, 1, (2,), np.float32))),
    "deep with own": Dict(a=Tuple((EvenSpace(), Discrete(2))), b=Box(0, 1, (1,), np.float32)),
}
ALL = ARRAYS | OBJECTS


@pytest.mark.parametrize("name", ALL)
def test_observations_of_every_space_equal_the_plain_loop(make_pool: MakePool, name: str) -> None:
    """Covers dtypes, nested spaces and spaces without fixed shape that are refused, flattened or re-ordered."""
    space = ALL[name]
    env = partial(SpaceEnv, space, Discrete(2))
    pool = make_pool([env] * 3, num_workers=2)
    copies = [deepcopy(space) for _ in range(3)]
    for i, copy in enumerate(copies):
        copy.seed(20 + i)
    batches = [pool.reset(seed=20)] + [pool.step([0, 1, 0]) for _ in range(3)]
    pool.send([1, 1], env_id=[0, 2])
    for n, batch in enumerate([batch.copy() if batch.valid() else None for batch in batches] + [pool.recv()]):
        expected = [copies[i].sample() for i in ([0, 2] if n == 4 else [0, 1, 2])]
        if batch is None:
            continue
        for k, value in enumerate(expected):
            assert same_row(row_of(batch.obs, k, space), value, space)
            assert name in ("own", "no dimension") or space.contains(row_of(batch.obs, k, space))


def same_row(row: Any, value: Any, space: Space) -> bool:
    value = in_space_types(value, space)
    if isinstance(value, spaces.GraphInstance):
        return isinstance(row, spaces.GraphInstance) and same(tuple(row), tuple(value))
    if isinstance(space, Dict):
        return row.keys() == value.keys() and all(same_row(row[k], value[k], space[k]) for k in space.spaces)
    if isinstance(space, Tuple):
        return all(same_row(r, v, part) for r, v, part in zip(row, value, space.spaces, strict=True))
    return same(row, value)


@pytest.mark.parametrize("name", [name for name in ALL if "own" not in name])
def test_batches_have_the_form_gymnasium_gives_them(make_pool: MakePool, name: str) -> None:
    """Covers a dict observation that comes back as a tuple of dicts."""
    env = partial(SpaceEnv, ALL[name], Discrete(2))
    sync = SyncVectorEnv([env] * 3)
    obs = make_pool([env] * 3).reset(seed=1).obs
    expected, _ = sync.reset(seed=1)
    assert form(obs) == form(expected)
    if name not in ("no size", "empty dict", "empty tuple"):
        assert sync.observation_space.contains(obs)


def form(obs: Any) -> Any:
    """Types, shapes and dtypes, without the values."""
    if isinstance(obs, np.ndarray):
        return obs.shape, obs.dtype
    if isinstance(obs, dict):
        return {key: form(leaf) for key, leaf in obs.items()}
    if isinstance(obs, tuple) and not isinstance(obs, spaces.GraphInstance):
        return tuple(form(leaf) for leaf in obs)
    return type(obs)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_actions_of_every_space_arrive_as_gymnasium_gives_them(make_pool: MakePool, name: str, batched: bool) -> None:
    space = ALL[name]
    if batched and name in ("own", "deep with own", "empty dict", "empty tuple"):
        batched = False  # Gymnasium itself has no batch of these
    observation = Box(0, 1, (1,), np.float32)
    pool = make_pool([partial(SpaceEnv, observation, space)] * 3, num_workers=2)
    sync = SyncVectorEnv([partial(SpaceEnv, observation, space)] * 3) if batched else None
    pool.reset()
    if sync is not None:
        sync.reset()
    chosen = deepcopy(space)
    chosen.seed(8)
    given = []
    for _ in range(3):
        single = [chosen.sample() for _ in range(3)]
        given.append(single)
        pool.step(stack(single, space) if batched else single)
        if sync is not None:
            sync.step(stack(single, space))
    single = [chosen.sample() for _ in range(2)]
    pool.send(stack(single, space) if batched else single, env_id=[2, 0])
    pool.recv()
    kept = pool.call("actions_kept")
    for i in range(3):
        for t in range(3):
            assert same_action(kept[i][t], given[t][i], space), (kept[i][t], given[t][i])
            if sync is not None:
                assert type(kept[i][t]) is type(sync.envs[i].actions_kept()[t])  # type: ignore[attr-defined]
    assert same_action(kept[2][3], single[0], space) and same_action(kept[0][3], single[1], space)


def same_action(kept: Any, given: Any, space: Space) -> bool:
    return same_row(kept, given, space)


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(6, dtype=np.float32).reshape(2, 3)[::-1],
        np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3)),
    ],
    ids=["fortran", "strided", "big-endian", "transposed", "reversed", "broadcast"],
)
def test_observations_of_any_memory_layout_arrive(make_pool: MakePool, value: np.ndarray) -> None:
    pool = make_pool([partial(GivesEnv, Box(-99, 99, (2, 3), np.float32), [value])] * 2)
    for batch in (pool.reset(), pool.step([0, 0])):
        assert batch.obs.dtype == np.float32
        assert batch.obs.tolist() == [value.tolist()] * 2


@pytest.mark.parametrize(
    "dtype",
    ["f2", "g", "F", "D", ">f4", ">i8", "?", "M8[s]", "m8[ms]", "V6", [("x", "f4"), ("n", "i2", (2,))]],
    ids=str,
)
def test_every_fixed_size_dtype_goes_through_a_slot(make_pool: MakePool, dtype: Any) -> None:
    """Covers tables of dtypes with holes, which refuse half floats, long doubles, complex or structured ones."""
    dtype = np.dtype(dtype)
    value = np.frombuffer(bytes(range(1, 2 * dtype.itemsize + 1)), dtype)
    if dtype.kind in "bf":  # not every pattern of bits is a truth value or a long double
        value = np.array([0, 1], dtype)
    pool = make_pool([partial(BareEnv, value)] * 2)
    for batch in (pool.reset(), pool.step([0, 0])):
        assert batch.obs.dtype == dtype and batch.obs.shape == (2, 2)
        assert batch.obs.tobytes() == value.tobytes() * 2


@pytest.mark.parametrize(
    "value", [np.array([1, "two"], object), np.array(["ab", "c"]), "text", None, [], {"a": "x", "b": b"y"}], ids=repr
)
def test_what_no_array_of_fixed_size_holds_travels_as_it_is(make_pool: MakePool, value: Any) -> None:
    pool = make_pool([partial(BareEnv, value)] * 2)
    for batch in (pool.reset(), pool.step([0, 0])):
        rows = [
            row_of(batch.obs, k, Dict(a=EvenSpace(), b=EvenSpace()) if isinstance(value, dict) else None)
            for k in (0, 1)
        ]
        assert same(rows, [value, value])


def test_spaces_may_differ_in_their_bounds(make_pool: MakePool) -> None:
    """Covers envs that are refused because their boxes differ in bounds alone."""
    envs = [partial(SpaceEnv, Box(0, i, (2,), np.float32), Box(-i, i, (1,), np.float32)) for i in (1, 2, 3)]
    pool = make_pool(envs)
    pool.reset(seed=0)
    assert pool.step(np.zeros((3, 1), np.float32)).obs.shape == (3, 2)


@pytest.mark.parametrize("part", ["observation", "action"])
def test_spaces_that_differ_in_shape_or_dtype_are_a_usage_error(part: str) -> None:
    one, fits = Box(0, 1, (2,), np.float32), Discrete(2)
    for other in (Box(0, 1, (3,), np.float32), Box(0, 1, (2,), np.float64), Discrete(2), Dict(a=one)):
        pairs: list[tuple[Space, Space]] = [(one, fits), (one, fits), (other, fits)]
        if part == "action":
            pairs = [(b, a) for a, b in pairs]
        with pytest.raises(shmenv.UnequalEnvsError) as caught:
            shmenv.Pool([partial(SpaceEnv, *pair) for pair in pairs], context="fork", num_workers=2)
        assert "env 0" in str(caught.value) and "env 2" in str(caught.value)
        assert isinstance(caught.value, shmenv.UsageError) and caught.value.what == f"{part}s"


class PlainPairEnv:
    """In DI-engine's style, and its observation is a pair that looks like (observation, info)."""

    observation_space = Tuple((Box(-9, 9, (1,), np.float32), Dict(a=Box(-9, 9, (1,), np.float32))))
    action_space = Discrete(2)

    def __init__(self, with_info: bool) -> None:
        self.with_info, self.obs = with_info, (np.zeros(1, np.float32), {"a": np.ones(1, np.float32)})

    def reset(self) -> Any:
        return (self.obs, {"told": 1}) if self.with_info else self.obs

    def step(self, action: Any) -> Any:
        return self.obs, 1.0, False, {}


@pytest.mark.parametrize("with_info", [False, True])
def test_the_declared_space_tells_an_observation_that_is_a_pair_from_one_with_its_info(
    make_pool: Callable[..., shmenv.Pool], with_info: bool
) -> None:
    batch = make_pool([partial(PlainPairEnv, with_info)] * 2).reset()
    assert batch.obs[0].tolist() == [[0], [0]] and batch.obs[1]["a"].tolist() == [[1], [1]]
    assert list(batch.info) == [{"told": 1} if with_info else {}] * 2


X = np.ones(2, np.float32)
FLOATS = Box(-1e9, 1e9, (2,), np.float32)
PAIR = Dict(a=FLOATS, b=Tuple((FLOATS, Discrete(3))))
ZERO = np.zeros(2, np.float32)
ZEROS = {"a": ZERO, "b": (ZERO, 0)}
ODD: dict[str, tuple[Space, Any, Any]] = {
    "dropped key": (PAIR, ZEROS, {"a": X}),
    "extra key": (PAIR, ZEROS, {"a": X, "b": (X, 1), "c": X}),
    "dropped item": (PAIR, ZEROS, {"a": X, "b": (X,)}),
    "inner shape": (PAIR, ZEROS, {"a": X, "b": (np.ones(1, np.float32), 1)}),
    "other mappings": (PAIR, ZEROS, OrderedDict(b=[X, np.int8(1)], a=[1, 2])),
    "wrong shape": (FLOATS, ZERO, np.ones(3, np.float32)),
    "float64": (FLOATS, ZERO, np.full(2, 0.1)),
    "integers": (FLOATS, ZERO, np.array([2**24 + 1, 2])),
    "scalar": (FLOATS, ZERO, np.float32(5)),
    "text": (FLOATS, ZERO, "text"),
    "300 in uint8": (Box(0, 255, (2,), np.uint8), np.zeros(2, np.uint8), np.array([300, 1])),
}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("name", ODD)
def test_without_shared_memory_observations_fit_their_space_as_they_do_with_it(
    make_pool: Callable[..., shmenv.Pool], name: str, autoreset: str
) -> None:
    space, fits, odd = ODD[name]
    env_fns = [partial(GivesEnv, space, [fits]), partial(GivesEnv, space, [fits, odd], length=1)]
    told = []
    for shared_memory in (True, False):
        pool = make_pool(env_fns, num_workers=2, shared_memory=shared_memory, autoreset=autoreset)
        pool.reset()
        try:
            batch = pool.step([0, 0])
            told.append(row_of(batch.final_obs, 1, space) if shared_memory else batch.final_obs[1])
        except shmenv.EnvError as error:
            assert error.env_id == 1 and pool.recv().env_id.tolist() == [0]
            told.append(str(error.__cause__))
    assert same(*told)
    assert isinstance(told[0], str) == (name not in ("float64", "integers", "other mappings"))


def test_without_shared_memory_an_env_that_declares_no_space_returns_what_it_likes(
    make_pool: Callable[..., shmenv.Pool],
) -> None:
    untyped: Any = GivesEnv
    pool = make_pool([partial(untyped, None, [[0], {"a": 1}, "text"])], shared_memory=False)
    assert pool.reset().obs == ([0],)
    assert [pool.step([0]).obs for _ in range(2)] == [({"a": 1},), ("text",)]
