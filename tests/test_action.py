"""What is an action, and what the env gets."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from spaces import SPACES, Space, assert_same, samples
from test_observation import Tensor

from shmenv.action import ActionReader, ActionWriter
from shmenv.errors import UsageError
from shmenv.layout import ArrayNode, Node, ObjectNode, describe_space, leaves

NUM_ENVS = 3
RECORD = np.dtype([("x", ">i4"), ("y", "f8", (2,))])


@pytest.fixture(autouse=True)
def _leak_guard() -> None:
    """No guard: these tests open nothing and start nothing, and it would be nearly all they cost."""


class Rows:
    """Rows for actions of one structure, with both their ends."""

    def __init__(self, node: Node) -> None:
        self.arrays = [
            np.zeros((NUM_ENVS, *leaf.shape), leaf.dtype) for _, leaf in leaves(node) if isinstance(leaf, ArrayNode)
        ]
        self.write = ActionWriter(node, self.arrays, NUM_ENVS).write
        self.reader = ActionReader(node, self.arrays)

    def through(self, action: Any, env_ids: list[int] | None = None) -> list[Any]:
        """What the envs get."""
        payloads = self.write(action, None if env_ids is None else np.array(env_ids, np.int32))
        ids = range(NUM_ENVS) if env_ids is None else env_ids
        return [self.reader.read(env_id, payloads[k] if payloads else b"") for k, env_id in enumerate(ids)]


def rows_for(space: Space) -> Rows:
    return Rows(describe_space(space))


class Recording(gymnasium.Env[Any, Any]):
    """Keeps the action it got."""

    def __init__(self, space: Space) -> None:
        self.observation_space, self.action_space = Discrete(2), space

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.got = action
        return 0, 0.0, False, False, {}


def gymnasium_hands_out(make: Any, batch: Any) -> list[Any]:
    envs = SyncVectorEnv([partial(Recording, make()) for _ in range(NUM_ENVS)])
    envs.reset()
    envs.step(batch)
    return [env.got for env in envs.envs]  # type: ignore[attr-defined]


def batch_of(space: Space, singles: list[Any]) -> Any:
    empty: Any = create_empty_array(space, len(singles))
    return concatenate(space, singles, empty)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_the_env_gets_what_gymnasium_would_give_it(make: Any) -> None:
    batch = batch_of(make(), samples(make(), NUM_ENVS))
    expected = gymnasium_hands_out(make, batch)
    assert_same(rows_for(make()).through(batch), expected)


@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_a_list_of_single_actions_is_the_same_as_a_batch(make: Any) -> None:
    singles = samples(make(), NUM_ENVS)
    assert_same(rows_for(make()).through(list(singles)), rows_for(make()).through(batch_of(make(), singles)))


@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_some_envs_get_theirs_and_the_others_keep_their_rows(make: Any) -> None:
    singles = samples(make(), 2)
    for action in (singles, batch_of(make(), singles)):
        rows = rows_for(make())
        got = rows.through(action, [2, 0])
        assert_same(got, [rows_for(make()).through([single] * NUM_ENVS)[0] for single in singles])
        assert all(not array[1].any() for array in rows.arrays)


@pytest.mark.parametrize("dtype", [RECORD, "V5", "g", "c8", "M8[s]", "U3", "e", ">f8"], ids=str)
@pytest.mark.parametrize("shape", [(), (2,), (0,)], ids=str)
def test_the_env_owns_its_action(dtype: Any, shape: tuple[int, ...]) -> None:
    rows = Rows(ArrayNode(np.dtype(dtype), shape))
    batch = np.zeros((NUM_ENVS, *shape), dtype)
    (got, _, _) = rows.through(batch)
    assert_same(got, batch[0])
    if batch.nbytes:
        rows.arrays[0].view("u1" if shape else dtype).fill(np.ones((), "u1" if shape else dtype))
    assert_same(got, batch[0])


def test_nothing_of_the_callers_is_referred_to_afterwards() -> None:
    rows = rows_for(Dict(a=Box(0, 9, (2,)), b=Sequence(Discrete(3))))
    batch: Any = {"a": np.ones((3, 2), "f4"), "b": [[np.ones(1)], [np.ones(2)], []]}
    payloads = rows.write(batch, None)
    batch["a"][:] = 5
    batch["b"][0][0][:] = 5
    assert payloads is not None
    assert_same(rows.reader.read(0, payloads[0]), {"a": np.ones(2, "f4"), "b": [np.ones(1)]})


@pytest.mark.parametrize(
    "action",
    [
        [0, 1, 2],
        (0, 1, 2),
        [np.int64(0), np.uint8(1), True + 1],
        np.arange(3),
        np.arange(3, dtype="u1"),
        np.arange(3, dtype=">i2"),
        np.arange(6)[::2] // 2,
        [np.array(0), np.array(1), np.array(2)],
        np.array([0, 1, 2], object),
        [Tensor(0), Tensor(1), Tensor(2)],
        Tensor([0, 1, 2]),
        [False, 1, 2],
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_whatever_holds_whole_numbers_is_discrete(action: Any, dtype: Any) -> None:
    rows = rows_for(Discrete(3, dtype=dtype))
    assert_same(rows.through(action), [dtype(0), dtype(1), dtype(2)])
    assert rows.write(action, None) is None


@pytest.mark.parametrize(
    "action",
    [
        [[0, 1], [2, 3], [4, 5]],
        [(0, 1), np.array([2, 3]), [4.0, 5.0]],
        np.arange(6).reshape(3, 2),
        np.arange(6.0).reshape(2, 3, order="F").T.copy().reshape(3, 2),
        [Tensor([0.0, 1.0]), Tensor([2, 3]), [4, 5]],
        np.arange(6, dtype=">f8").reshape(3, 2),
    ],
    ids=repr,
)
def test_whatever_holds_numbers_is_a_box(action: Any) -> None:
    rows = rows_for(Box(-9, 9, (2,)))
    if isinstance(action, np.ndarray):
        expected = [row.astype("f4") for row in action]
    else:
        expected = [np.array([k, k + 1], "f4") for k in (0, 2, 4)]
    assert_same(rows.through(action), expected)


PAIR = Dict(a=Discrete(3), b=Box(-1, 1, (2,)))
DUO = Tuple((Discrete(3), Discrete(3)))


@pytest.mark.parametrize(
    ("space", "action", "words"),
    [
        (Discrete(3), np.arange(2), "action needs int64 (3,), got int64 (2,)"),
        (Discrete(3), np.arange(4), "got int64 (4,)"),
        (Discrete(3), np.zeros((3, 1), "i8"), "got int64 (3, 1)"),
        (Discrete(3), [0, 1], "needs 3 actions, got 2"),
        (Discrete(3), (0, 1, 2, 3), "needs 3 actions, got 4"),
        (Discrete(3), 1, "action needs int64 (3,), got int"),
        (Discrete(3), np.int64(1), "got int64 as int64 ()"),
        (Discrete(3), "abc", "action needs int64 (3,), got str"),
        (Discrete(3), None, "got NoneType"),
        (Discrete(3), {0: 1, 1: 1, 2: 1}, "got dict"),
        (Discrete(3), np.zeros(3), "float64 does not convert to int64"),
        (Discrete(3), [0, 1, 2.0], "action[2] needs int64 ()"),
        (Discrete(3), [0, [1], 2], "action[1] needs int64 (), got list as int64 (1,)"),
        (
            Discrete(3, dtype=np.int32),
            [0, 2**31, 0],
            "action[1] needs int32 (), got int as int64 (): 2147483648 is out",
        ),
        (Discrete(3, dtype=np.uint8), np.array([0, 256, 0]), "256 is out of the range 0 to 255"),
        (Discrete(3), Tensor([0, 1, 2], "cuda"), "on cuda"),
        (Discrete(3), [0, Tensor(1, "cuda"), 2], "action[1] needs int64 (), got the tensor is on cuda"),
        (Box(-1, 1, (2,)), np.zeros((2, 3), "f4"), "needs float32 (3, 2), got float32 (2, 3)"),
        (Box(-1, 1, (2,)), np.zeros(2, "f4"), "got float32 (2,)"),
        (Box(-1, 1, (2,)), [[0, 0], [0], [0, 0]], "action[1] needs float32 (2,), got list as int64 (1,)"),
        (Box(-1, 1, (2,)), [[0, 0], [0, 0], [1e39, 0]], "1e+39 is too large"),
        (MultiDiscrete([2, 2]), np.zeros(3, "i8"), "needs int64 (3, 2), got int64 (3,)"),
        (
            PAIR,
            {"a": [0, 1, 2]},
            "action needs a dict with exactly the keys ['a', 'b'], got a dict with the keys ['a']",
        ),
        (PAIR, {"a": [0, 1, 2], "b": np.zeros((2, 2))}, "action['b'] needs float32 (3, 2), got float64 (2, 2)"),
        (PAIR, {"a": [0, "x", 2], "b": np.zeros((3, 2))}, "action['a'] needs int64 (3,)"),
        (PAIR, [{"a": 0, "b": [0, 0]}] * 2, "needs 3 actions, got 2"),
        (PAIR, [{"a": 0, "b": [0, 0]}, {"a": 0, "b": [0]}, 0], "action[1]['b'] needs float32 (2,)"),
        (PAIR, [{"a": 0, "b": [0, 0]}, {"a": 0}, 0], "action[1] needs a dict with exactly the keys"),
        (PAIR, [0, 1, 2], "action[0] needs a dict with exactly the keys ['a', 'b'], got a int"),
        (PAIR, np.zeros(3), "action needs a batch or a list of 3 actions"),
        (DUO, ([0, 1, 2], [0, 1]), "action[1] needs int64 (3,), got list as int64 (2,)"),
        (DUO, ([0, 1, 2],), "needs 3 actions, got 1"),
        (DUO, [(0, 1), (0, 1, 2), (0, 1)], "action[1] needs a tuple of 2 items, got a tuple of 3"),
        (Text(5), "abc", "action needs a batch or a list of 3 actions, each any object, got a str"),
        (Text(5), ["abc"] * 2, "needs 3 actions, got 2"),
        (Dict(t=Text(5)), {"t": ["a", "b"]}, "action['t'] needs a tuple of 3 objects, got a list of 2"),
    ],
    ids=repr,
)
def test_a_wrong_action_is_the_callers_fault_and_changes_nothing(space: Space, action: Any, words: str) -> None:
    rows = rows_for(space)
    for env_ids in (None, np.array([0, 1, 2])):
        with pytest.raises(UsageError) as caught:
            rows.write(action, env_ids)
        assert words in str(caught.value) and "3 envs" in str(caught.value)
        assert all(not array.any() for array in rows.arrays)


class Jump:
    """An action as some env of the user's own likes it."""

    def __init__(self, height: int) -> None:
        self.height = height

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jump) and other.height == self.height

    def __hash__(self) -> int:
        return self.height


@pytest.mark.parametrize(
    "foreign",
    ["jump", None, b"jump", {"jump": 3}, {1, 2}, Jump(3), ("jump", 3), [None, 3], np.array(["jump"]), ["a", [1]]],
    ids=repr,
)
@pytest.mark.parametrize(
    ("space", "usual"),
    [(Discrete(3), np.int64(1)), (Box(-1, 1, (2,)), np.ones(2, "f4")), (DUO, (np.int64(1), np.int64(2)))],
    ids=str,
)
def test_an_action_of_another_kind_travels_whole_in_a_list(space: Space, usual: Any, foreign: Any) -> None:
    rows = rows_for(space)
    assert_same(rows.through([usual, foreign, usual]), [usual, foreign, usual])
    assert_same(rows.through([foreign, usual], [2, 0]), [foreign, usual])
    payloads = rows.write([usual, foreign, usual], None)
    assert payloads is not None and [bool(payload) for payload in payloads] == [False, True, False]


def test_a_dict_space_takes_foreign_actions_and_foreign_leaves() -> None:
    usual = {"a": np.int64(1), "b": np.ones(2, "f4")}
    for foreign in ("jump", None, Jump(2), {"a": "left", "b": [0, 0]}):
        assert_same(rows_for(PAIR).through([usual, foreign, usual]), [usual, foreign, usual])


def test_an_action_that_cannot_be_pickled_is_the_callers_fault() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("never")

    rows = rows_for(Discrete(3))
    with pytest.raises(UsageError, match=r"Stubborn.*never"):
        rows.write([1, Stubborn(), 2], None)
    assert not rows.arrays[0].any()


def test_functions_are_actions_too() -> None:
    (got, _, _) = rows_for(Text(3)).through([lambda: 7, "a", "b"])
    assert got() == 7


@pytest.mark.parametrize("action", [np.array([4, 5, 6]), [4, 5, 6], (4, 5, 6), Tensor([4, 5, 6])], ids=repr)
def test_without_an_action_space_any_sequence_of_n_will_do(action: Any) -> None:
    got = Rows(ObjectNode()).through(action)
    assert [int(value) for value in got] == [4, 5, 6]
    assert [type(value) for value in got] == [
        type(value) for value in (action if not isinstance(action, Tensor) else action.values)
    ]


def test_a_tuple_is_a_batch_where_the_space_is_one() -> None:
    rows = rows_for(DUO)
    assert_same(rows.through(([0, 1, 2], [2, 1, 0])), [(np.int64(k), np.int64(2 - k)) for k in range(3)])
    assert_same(rows.through([[0, 2], (1, 1), (2, 0)]), [(np.int64(k), np.int64(2 - k)) for k in range(3)])
    assert_same(rows.through(((0, 2), (1, 1), (2, 0))), [(np.int64(k), np.int64(2 - k)) for k in range(3)])


def test_other_mappings_are_dicts() -> None:
    batch = OrderedDict(b=np.ones((3, 2)), a=[0, 1, 2])
    assert_same(rows_for(PAIR).through(batch)[2], {"a": np.int64(2), "b": np.ones(2, "f4")})


def test_an_array_for_one_env_alone_is_not_taken_apart() -> None:
    rows = rows_for(Box(-1, 1, (2,)))
    assert_same(rows.through([np.ones(2)], [1]), [np.ones(2, "f4")])
    with pytest.raises(UsageError):
        rows.write(np.ones(2, "f4"), np.array([1]))
