"""What arrays a space needs, and where fields stand in a block."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st
from spaces import SPACES, assert_same, samples

from shmenv.layout import (
    ArrayNode,
    DictNode,
    Layout,
    Node,
    ObjectNode,
    TupleNode,
    assemble,
    describe_space,
    describe_value,
    leaves,
    path_text,
)

RECORD = np.dtype([("x", ">i4"), ("y", "f8", (2,))])
INT, FLOAT = ArrayNode(np.dtype("int64"), ()), ArrayNode(np.dtype("float64"), ())


@pytest.fixture(autouse=True)
def _leak_guard() -> None:
    """No guard: these tests open nothing and start nothing, and it would be nearly all they cost."""


class GymSpace:
    """Base of a space as the old gym package has them."""

    def __init__(self, dtype: Any, shape: Any) -> None:
        self.dtype, self.shape = dtype, shape


GymBox = type("Box", (GymSpace,), {"__module__": "gym.spaces.box"})


def take(node: Any, value: Any) -> Any:
    """The values of all leaves, in order."""
    values = []
    for path, _ in leaves(node):
        leaf = value
        for key in path:
            leaf = leaf[key]
        values.append(leaf)
    return values


@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_the_leaves_of_a_value_assemble_to_the_value(make: Any) -> None:
    space = make()
    node = describe_space(space)
    for value in samples(space, 3):
        assert_same(assemble(node, take(node, value)), value)
        for leaf, (_, part) in zip(take(node, value), leaves(node), strict=True):
            if isinstance(part, ArrayNode):
                assert (np.asarray(leaf).shape, np.asarray(leaf).dtype) == (part.shape, part.dtype)


def test_spaces_are_described_without_gymnasium() -> None:
    assert "gymnasium" not in vars(sys.modules["shmenv.layout"])
    assert describe_space(GymBox(np.float32, (2,))) == ArrayNode(np.dtype("float32"), (2,))


def test_a_description_names_dtypes_and_shapes_in_the_order_of_the_space() -> None:
    space = Dict(
        b=Tuple((Discrete(3), Text(3))), a=Box(0, 255, (4, 2), np.uint8), c=MultiDiscrete(np.array([[2], [3]]))
    )
    description: dict[str, Node] = {
        "a": ArrayNode(np.dtype("u1"), (4, 2)),
        "b": TupleNode((INT, ObjectNode())),
        "c": ArrayNode(np.dtype("i8"), (2, 1)),
    }
    assert describe_space(space) == DictNode(tuple((key, description[key]) for key in space.spaces))
    assert sorted(path for path, _ in leaves(describe_space(space))) == [("a",), ("b", 0), ("b", 1), ("c",)]


def test_bounds_play_no_part_in_a_description() -> None:
    assert describe_space(Box(0, 1, (2,))) == describe_space(Box(-5, 5, (2,)))
    assert describe_space(Discrete(2)) == describe_space(Discrete(9, start=4))


def test_other_dtypes_shapes_keys_and_orders_are_other_descriptions() -> None:
    nodes = [
        describe_space(space)
        for space in (
            Box(0, 1, (2,)),
            Box(0, 1, (2,), np.float64),
            Box(0, 1, (2, 1)),
            Box(0, 1, (2,), np.dtype(">f4")),
            Dict(a=Discrete(2)),
            Dict(b=Discrete(2)),
            Tuple((Discrete(2),)),
            Discrete(2),
            Text(3),
        )
    ]
    assert len(set(nodes)) == len(nodes)


@pytest.mark.parametrize("dtype", ["O", "U", "S", np.dtype([("x", "O")])], ids=str)
def test_a_dtype_without_fixed_size_is_an_object(dtype: Any) -> None:
    assert describe_space(GymBox(dtype, (2,))) == ObjectNode()


@pytest.mark.parametrize("dtype", [RECORD, "U3", "S3", "g", "c8", "G", "M8[s]", "m8[ms]", "V5", "e"], ids=str)
def test_every_dtype_of_fixed_size_is_an_array(dtype: Any) -> None:
    assert describe_space(GymBox(dtype, (2, 0))) == ArrayNode(np.dtype(dtype), (2, 0))


def test_an_array_inside_a_dtype_becomes_axes() -> None:
    assert describe_space(GymBox(np.dtype(("f4", (3,))), (2,))) == ArrayNode(np.dtype("f4"), (2, 3))


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (1, INT),
        (1.5, FLOAT),
        (True, ArrayNode(np.dtype("?"), ())),
        (np.float16(2), ArrayNode(np.dtype("f2"), ())),
        ([1, 2.5], ArrayNode(FLOAT.dtype, (2,))),
        ([[1], [2]], ArrayNode(INT.dtype, (2, 1))),
        (np.zeros((0, 2), ">f4"), ArrayNode(np.dtype(">f4"), (0, 2))),
        (np.zeros(2, RECORD), ArrayNode(RECORD, (2,))),
        ((1, 2.5), TupleNode((INT, FLOAT))),
        ({"a": 1, 2: (1.0, "x")}, DictNode((("a", INT), (2, TupleNode((FLOAT, ObjectNode())))))),
        ([], ObjectNode()),
        ([[1], [1, 2]], ObjectNode()),
        (["a", "b"], ObjectNode()),
        ([None], ObjectNode()),
        (np.array(["a"]), ObjectNode()),
        (np.array([None]), ObjectNode()),
        ("text", ObjectNode()),
        (b"bytes", ObjectNode()),
        (None, ObjectNode()),
        ({1, 2}, ObjectNode()),
    ],
    ids=repr,
)
def test_a_first_observation_describes_itself(value: Any, node: Any) -> None:
    assert describe_value(value) == node


def test_a_path_reads_as_python() -> None:
    assert path_text(("camera", 0, "left"), "observation") == "observation['camera'][0]['left']"


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8", "?", "c16", "f2"])
def test_a_description_names_numpys_own_dtypes_whatever_copies_it_was_given(dtype: str) -> None:
    own = np.dtype(dtype)
    copied = pickle.loads(pickle.dumps(own))
    assert copied is not own  # as numpy pickles
    assert ArrayNode(copied, ()).dtype is own
    assert pickle.loads(pickle.dumps(ArrayNode(own, ()))).dtype is own


@pytest.mark.parametrize("make", SPACES.values(), ids=SPACES)
def test_a_description_survives_pickling(make: Any) -> None:
    node = describe_space(make())
    assert pickle.loads(pickle.dumps(node)) == node
    assert hash(pickle.loads(pickle.dumps(node))) == hash(node)


DTYPES = st.sampled_from(["f4", ">f8", "?", "g", "c16", RECORD, "U3", "S5", "M8[s]", "V7", "e"])
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@given(st.lists(st.tuples(DTYPES, SHAPES), max_size=8))
def test_fields_stand_apart_and_keep_what_is_written(fields: list[tuple[Any, list[int]]]) -> None:
    layout = Layout()
    for k, (dtype, shape) in enumerate(fields):
        layout.add(f"field {k}", dtype, shape)
    layout = pickle.loads(pickle.dumps(layout))
    assert list(layout) == [f"field {k}" for k in range(len(fields))] and layout.size % 128 == 0
    block = bytearray(layout.size)
    views = [layout.view(name, block) for name in layout]
    for k, view in enumerate(views):
        assert layout.offset(f"field {k}") % 128 == 0 and view.nbytes == layout.nbytes(f"field {k}")
        assert (view.dtype, list(view.shape)) == (np.dtype(fields[k][0]), fields[k][1])
        if view.nbytes:  # NumPy makes no array of the bytes behind the last one
            np.frombuffer(block, "u1", view.nbytes, layout.offset(f"field {k}"))[:] = k + 1
    for k, view in enumerate(layout.view(name, block) for name in layout):
        assert view.tobytes() == bytes([k + 1]) * view.nbytes


def test_a_view_is_writable_and_is_the_block() -> None:
    layout = Layout()
    layout.add("first", "u1", (3,))
    layout.add("second", ">u2", ())
    block = bytearray(layout.size)
    layout.view("first", block)[1] = 7
    layout.view("second", block)[...] = 258
    assert block[1] == 7 and block[128:130] == b"\x01\x02" and layout.size == 256 and "second" in layout


def test_a_field_without_elements_stands_anywhere() -> None:
    layout = Layout()
    layout.add("nothing", "f4", (0, 3))
    assert layout.size == 0 and layout.view("nothing", b"").shape == (0, 3)
    layout.add("something", "f4", (1,))
    layout.add("nothing more", "f4", (2, 0))
    assert layout.view("nothing more", bytearray(layout.size)).shape == (2, 0)


def test_the_largest_fields_come_first() -> None:
    layout = Layout()
    for name, length in (("small", 1), ("large", 100), ("middle", 10)):
        layout.add(name, "f8", (length,))
    assert layout.largest(2) == [("large", 800), ("middle", 80)]


@pytest.mark.parametrize(
    ("dtype", "shape", "why"), [("O", (), "Python objects"), ("f4", (-1,), "negative"), ("f4", (), "already")]
)
def test_a_field_that_cannot_be_is_refused(dtype: str, shape: tuple[int, ...], why: str) -> None:
    layout = Layout()
    layout.add("there", "f4", ())
    with pytest.raises(ValueError, match=why):
        layout.add("there" if why == "already" else "new", dtype, shape)
    assert list(layout) == ["there"] and layout.size == 128
