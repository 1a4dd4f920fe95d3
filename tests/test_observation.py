"""Which observations fit, and what stands in the rows afterwards."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from spaces import SPACES, Space, assert_same, samples

from shmenv import codec
from shmenv.fit import MisfitError, fit
from shmenv.layout import ArrayNode, Node, assemble, describe_space, leaves
from shmenv.observation import ObservationError, ObservationWriter

PLANES, NUM_ENVS = 2, 3
RECORD = np.dtype([("x", ">i4"), ("y", "f8", (2,))])


@pytest.fixture(autouse=True)
def _leak_guard() -> None:
    """No guard: these tests open nothing and start nothing, and it would be nearly all they cost."""


class Rows:
    """Rows for observations of one structure, their writer, and what the manager would make of them."""

    def __init__(self, node: Node, strict_dtype: bool = False) -> None:
        self.node = node
        self.arrays = [
            np.zeros((PLANES, NUM_ENVS, *leaf.shape), leaf.dtype)
            for _, leaf in leaves(node)
            if isinstance(leaf, ArrayNode)
        ]
        self.write = ObservationWriter(node, self.arrays, strict_dtype).write

    def batch(self, plane: int, notes: list[bytes]) -> Any:
        objects = iter(zip(*(codec.load(note) for note in notes if note), strict=True))
        arrays = (array[plane] for array in self.arrays)
        return assemble(
            self.node, [next(arrays if isinstance(leaf, ArrayNode) else objects) for _, leaf in leaves(self.node)]
        )


def rows_of(dtype: Any, shape: tuple[int, ...] = (), strict_dtype: bool = False) -> Rows:
    return Rows(ArrayNode(np.dtype(dtype), shape), strict_dtype)


class Showing(gymnasium.Env[Any, Any]):
    """Shows one observation."""

    def __init__(self, space: Space, obs: Any) -> None:
        self.observation_space, self.action_space, self.obs = space, Discrete(2), obs

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_rows_hold_what_gymnasium_would_stack(make: Any) -> None:
    shown = samples(make(), NUM_ENVS)
    envs = SyncVectorEnv([partial(Showing, make(), obs) for obs in shown])
    expected, _ = envs.reset()
    rows = Rows(describe_space(make()))
    notes = [rows.write(obs, 1, env_id) for env_id, obs in enumerate(shown)]
    assert_same(rows.batch(1, notes), expected)
    assert all(not array[0].any() for array in rows.arrays)


def test_a_space_without_objects_needs_no_note() -> None:
    assert Rows(describe_space(Dict(a=Discrete(2)))).write({"a": 1}, 0, 0) == b""


@pytest.mark.parametrize("dtype", [RECORD, "g", "c8", ">c16", "M8[s]", "m8[ms]", "U3", "S4", "V5", "e", "?"], ids=str)
@pytest.mark.parametrize("shape", [(), (2,), (0, 2)], ids=str)
def test_any_dtype_of_fixed_size_arrives_bit_for_bit(dtype: Any, shape: tuple[int, ...]) -> None:
    rows = rows_of(dtype, shape)
    size = np.zeros(shape, dtype).nbytes
    pattern = np.ones(size, "u1") if np.dtype(dtype) == "?" else np.arange(65, 65 + size, dtype="u1")
    if np.dtype(dtype).kind == "U":
        pattern = np.full(size // 4, 65, "u4").view("u1")
    obs = pattern.view(dtype).reshape(shape) if size else np.zeros(shape, dtype)
    for plane, value in enumerate((obs, obs.copy(order="F"))):
        rows.write(value, plane, 2)
        assert rows.arrays[0][plane, 2, ...].tobytes() == obs.tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        ("f4", 1, 1.0),
        ("f4", 0.5, 0.5),
        ("f4", True, 1.0),
        ("f4", np.float64(0.1), np.float32(0.1)),
        ("f4", float("inf"), float("inf")),
        ("f2", 1e-30, 0.0),
        ("f8", 2**53, float(2**53)),
        ("f4", 2**24 + 1, float(2**24)),
        ("f4", np.int64(2**40 + 1), float(2**40)),
        ("f2", np.uint16(2049), 2048.0),
        ("f8", np.uint64(2**64 - 1), float(2**64)),
        ("u1", 255, 255),
        ("u1", np.int64(255), 255),
        ("i4", np.uint64(7), 7),
        ("u8", 2**64 - 1, 2**64 - 1),
        ("i8", np.bool_(True), 1),
        (">i2", -5, -5),
        ("?", True, True),
        ("c8", 1.5, 1.5 + 0j),
        ("U4", "abc", "abc"),
        ("U4", np.str_("abcd"), "abcd"),
        ("M8[s]", np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01", "s")),
    ],
    ids=repr,
)
def test_values_convert_to_the_declared_dtype(dtype: str, value: Any, stored: Any) -> None:
    rows = rows_of(dtype)
    rows.write(value, 0, 1)
    assert rows.arrays[0][0, 1] == stored


@pytest.mark.parametrize(
    "value", [[1, 2, 3], (1, 2, 3), np.arange(1, 4)[::-1][::-1], [np.int8(1), 2.0, True + 2]], ids=repr
)
def test_lists_tuples_and_strided_arrays_are_arrays(value: Any) -> None:
    rows = rows_of("f4", (3,))
    rows.write(value, 0, 0)
    assert rows.arrays[0][0, 0].tolist() == [1, 2, 3]


def test_an_empty_list_has_no_dtype_that_could_be_wrong() -> None:
    assert rows_of("u1", (0,)).write([], 0, 0) == b""


def test_a_record_comes_as_a_tuple_or_as_a_record() -> None:
    rows = rows_of(RECORD)
    rows.write((7, [1, 2]), 0, 0)
    rows.write(np.array((7, [1, 2]), RECORD)[()], 0, 1)
    assert rows.arrays[0][0, 0] == rows.arrays[0][0, 1] and rows.arrays[0][0, 0]["x"] == 7


@pytest.mark.parametrize(
    ("dtype", "shape", "value", "words"),
    [
        ("u1", (), 300, ["uint8 ()", "300 is out of the range 0 to 255"]),
        ("u1", (), -1, ["-1 is out of the range"]),
        ("u1", (2,), np.array([7, 300]), ["got int64 (2,)", "300"]),
        ("i4", (), np.int64(2**31), ["2147483648 is out of the range"]),
        ("i8", (), 2**63, ["9223372036854775808"]),
        ("i8", (), 2**70, ["int64 ()", "1180591620717411303424"]),
        ("u8", (), np.int8(-1), ["-1"]),
        ("u1", (2,), [0.7, 300.0], ["float64", "uint8"]),
        ("i8", (), 1.0, ["float64 does not convert to int64"]),
        ("?", (), 1, ["int64 does not convert to bool"]),
        ("f4", (), 1e39, ["1e+39 is too large for float32"]),
        ("f4", (2,), np.array([0.0, -1e39]), ["-1e+39 is too large"]),
        ("f2", (), 70000, ["70000 is too large for float16"]),
        ("f4", (), 1j, ["complex128"]),
        ("f4", (), None, ["NoneType"]),
        ("f4", (), "1.5", ["str"]),
        ("f4", (), np.datetime64("2020"), ["datetime64"]),
        ("f4", (), {"a": 1}, ["dict"]),
        ("f4", (2,), np.float32(5), ["float32 (2,)", "float32 as float32 ()", "broadcast"]),
        ("f4", (2, 3), np.arange(6.0).reshape(3, 2), ["(2, 3)", "(3, 2)"]),
        ("f4", (2,), np.zeros((1, 2), "f4"), ["(2,)", "(1, 2)"]),
        ("f4", (2,), np.zeros((1,), "f4"), ["(2,)", "(1,)"]),
        ("f4", (), np.zeros((1,), "f4"), ["()", "(1,)"]),
        ("f4", (2,), [[1], [1, 2]], ["no array"]),
        ("f4", (2,), [None, 1.0], ["list"]),
        ("U3", (), "abcd", ["too long"]),
        ("U3", (), 5, ["int64 does not convert"]),
        (RECORD, (), np.zeros((), [("x", "i8"), ("y", "f8", (2,))]), ["does not convert"]),
        (RECORD, (), np.zeros((), [("z", "i4"), ("y", "f8", (2,))]), ["does not convert"]),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_what_does_not_fit_is_refused_with_both_sides_named(
    dtype: Any, shape: tuple[int, ...], value: Any, words: list[str]
) -> None:
    rows = rows_of(dtype, shape)
    with pytest.raises(ObservationError) as caught:
        rows.write(value, 0, 0)
    assert all(word in str(caught.value) for word in ["observation needs", *words] if "no array" not in words)
    assert not rows.arrays[0].tobytes().strip(b"\0")


@pytest.mark.parametrize("value", [0.5, 1, True, np.float64(1), np.zeros((), ">f4"), [0.5]], ids=repr)
def test_strict_dtype_refuses_any_conversion(value: Any) -> None:
    rows = rows_of("f4", np.shape(value), strict_dtype=True)
    with pytest.raises(ObservationError, match=r"strict_dtype|needs"):
        rows.write(value, 0, 0)


@pytest.mark.parametrize(
    ("dtype", "value"), [("f4", np.float32(1)), ("i8", 1), ("f8", 1.0), ("?", True), (">f4", np.ones((), ">f4"))]
)
def test_strict_dtype_takes_what_has_the_dtype(dtype: str, value: Any) -> None:
    rows = rows_of(dtype, strict_dtype=True)
    rows.write(value, 0, 0)
    assert rows.arrays[0][0, 0] == 1


NEST = describe_space(Dict(camera=Dict(left=Box(0, 255, (2,), np.uint8)), pose=Tuple((Discrete(3), Text(5)))))
GOOD: dict[str, Any] = {"camera": {"left": np.zeros(2, "u1")}, "pose": (1, "here")}


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (
            {**GOOD, "camera": {"left": np.zeros(3, "u1")}},
            "observation['camera']['left'] needs uint8 (2,), got uint8 (3,)",
        ),
        ({**GOOD, "camera": {}}, "observation['camera'] needs a dict with exactly the keys ['left'], got the keys []"),
        ({**GOOD, "camera": [0, 0]}, "observation['camera'] needs a dict with exactly the keys ['left'], got a list"),
        ({**GOOD, "more": 1}, "got the keys ['camera', 'pose', 'more']"),
        ({"camera": GOOD["camera"]}, "observation needs a dict with exactly the keys ['camera', 'pose']"),
        ({**GOOD, "pose": (1,)}, "observation['pose'] needs a tuple of 2 items, got 1 items"),
        ({**GOOD, "pose": "ab"}, "observation['pose'] needs a tuple of 2 items, got a str"),
        ({**GOOD, "pose": (1.5, "here")}, "observation['pose'][0] needs int64 ()"),
        ((0, 0), "observation needs a dict"),
    ],
    ids=repr,
)
def test_an_error_names_the_place_in_the_observation(obs: Any, words: str) -> None:
    with pytest.raises(ObservationError) as caught:
        Rows(NEST).write(obs, 0, 0)
    assert words in str(caught.value)


def test_an_object_that_cannot_be_pickled_is_refused() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("never")

    with pytest.raises(ObservationError, match=r"observation\['pose'\]\[1\] cannot send a .*Stubborn.*never"):
        Rows(NEST).write({**GOOD, "pose": (1, Stubborn())}, 0, 0)


def test_other_mappings_and_lists_do_for_dicts_and_tuples() -> None:
    rows = Rows(NEST)
    note = rows.write(OrderedDict(pose=[2, "x"], camera=OrderedDict(left=[1, 2])), 0, 0)
    assert rows.arrays[0][0, 0].tolist() == [1, 2] and rows.arrays[1][0, 0] == 2 and codec.load(note) == ["x"]


def test_an_observation_that_is_its_row_stays_where_it_is() -> None:
    rows = rows_of("f4", (3,))
    row = rows.arrays[0][1, 2]
    row[:] = 1, 2, 3
    row.flags.writeable = rows.arrays[0].flags.writeable = False  # a copy onto itself would raise
    rows.write(row, 1, 2)
    with pytest.raises(ValueError, match="read-only"):
        rows.write(row.copy(), 1, 2)


def test_an_observation_that_overlaps_its_row_arrives_whole() -> None:
    rows = rows_of("f4", (3,))
    row = rows.arrays[0][1, 2]
    row[:] = 1, 2, 3
    rows.write(row[::-1], 1, 2)
    assert row.tolist() == [3, 2, 1]
    rows.write(row, 0, 0)
    assert rows.arrays[0][0, 0].tolist() == [3, 2, 1]


def test_a_subclass_of_array_counts_as_its_array() -> None:
    class Picture(np.ndarray[Any, Any]):
        pass

    rows = rows_of("f4", (2,))
    rows.write(np.ones(2, "f4").view(Picture), 0, 0)
    assert rows.arrays[0][0, 0].tolist() == [1, 1]


class Tensor:
    """What a torch tensor looks like from outside."""

    def __init__(self, values: Any, device: str = "cpu") -> None:
        self.values, self.device = (
            np.asarray(values),
            type("device", (), {"type": device, "__str__": lambda d: device})(),
        )

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        if self.values.dtype.kind == "V":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


def test_a_tensor_is_an_array_if_it_is_on_the_cpu() -> None:
    rows = rows_of("f4", (2,))
    rows.write(Tensor([1.0, 2.0]), 0, 0)
    assert rows.arrays[0][0, 0].tolist() == [1, 2]
    with pytest.raises(ObservationError, match="on cuda"):
        rows.write(Tensor([1.0, 2.0], "cuda"), 0, 0)
    with pytest.raises(ObservationError, match="BFloat16"):
        rows.write(Tensor(np.zeros(2, "V2")), 0, 0)


NUMBERS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">i2", ">f8", "c8", "c16"]


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_no_number_changes_but_by_rounding(data: Any, source: str, target: str) -> None:
    array = data.draw(npst.arrays(source, npst.array_shapes(min_dims=0, max_dims=2, max_side=3)))
    try:
        stored = fit(array, np.dtype(target), array.shape)
    except MisfitError:
        safe = np.can_cast(source, target, "safe")
        assert not safe and array.size
        return
    assert stored.dtype == target and stored.shape == array.shape
    kinds = np.dtype(source).kind + np.dtype(target).kind
    if kinds in ("iu", "ui", "ii", "uu"):
        assert [int(x) for x in stored.flat] == [int(x) for x in array.flat]
    else:
        assert "biufc".index(kinds[0].replace("u", "i")) <= "biufc".index(kinds[1].replace("u", "i"))
        assert np.array_equal(np.isfinite(stored), np.isfinite(array))
