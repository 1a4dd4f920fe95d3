import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from started import finish, fork, kill, started
from test_seqlock import FIXED_SIZE, random_array, same

from shmenv import ShmBuffer, ShmBufferContainer, UsageError


def fill_with(buffer: Any, value: Any) -> None:
    buffer.fill(value)


def fill_counting(container: ShmBufferContainer) -> None:
    number = 0
    while True:
        number += 1
        container.fill({"a": np.full(100, number, "i8"), "b": {"c": np.full((30, 3), number % 251, "u1")}})


def check_until(container: ShmBufferContainer, stop: ShmBuffer) -> None:
    while not stop.get():
        value = container.get()
        assert (value["a"] == value["a"][0]).all()
        assert (value["b"]["c"] == value["a"][0] % 251).all()


@pytest.mark.parametrize("dtype", FIXED_SIZE, ids=str)
def test_every_dtype_of_fixed_size_comes_back_as_it_went(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    for shape in ((), (2, 0), (2, 3)):
        buffer = ShmBuffer(dtype, shape)
        array = random_array(dtype.base, shape + dtype.shape)
        buffer.fill(array)
        assert same(buffer.get(), array)
        assert same(buffer.get(copy=False), array)


def test_a_value_of_another_shape_is_refused_not_broadcast() -> None:
    buffer = ShmBuffer("f4", (4,))
    for wrong in (np.ones(1, "f4"), np.float32(1), np.ones((1, 4), "f4"), np.ones((4, 1), "f4")):
        with pytest.raises(UsageError, match=r"needs float32 \(4,\).*nothing is broadcast"):
            buffer.fill(wrong)
    assert buffer.get().tolist() == [0, 0, 0, 0]


def test_a_value_of_another_dtype_is_refused_not_rounded() -> None:
    buffer = ShmBuffer("f4", (1,))
    with pytest.raises(UsageError, match="float64"):
        buffer.fill(np.array([16777217.0]))
    assert buffer.version == 0


def test_without_strict_dtype_it_is_converted_as_long_as_it_survives() -> None:
    buffer = ShmBuffer("f4", (1,), strict_dtype=False)
    buffer.fill(np.array([0.5]))
    assert same(buffer.get(), np.array([0.5], "f4"))
    for wrong in (np.array([1e300]), np.array([1j]), np.array(["1"])):
        with pytest.raises(UsageError, match="float32"):
            buffer.fill(wrong)
    assert buffer.get().tolist() == [0.5]


def test_get_returns_a_copy() -> None:
    buffer = ShmBuffer("i8", (2,))
    buffer.fill(np.array([1, 2]))
    kept = buffer.get()
    buffer.fill(np.array([3, 4]))
    assert kept.tolist() == [1, 2]
    kept[:] = 0
    assert buffer.get().tolist() == [3, 4]


def test_a_view_cannot_be_written_and_outlives_three_more_fills() -> None:
    buffer = ShmBuffer("i8", (2,))
    buffer.fill(np.array([1, 2]))
    view = buffer.get(copy=False)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    for number in range(3):
        buffer.fill(np.array([number, number]))
        assert view.tolist() == [1, 2]
    buffer.fill(np.array([7, 7]))
    assert view.tolist() == [7, 7]


def test_a_view_outlives_its_buffer() -> None:
    buffer = ShmBuffer("i8", (2,))
    buffer.fill(np.array([1, 2]))
    view = buffer.get(copy=False)
    del buffer
    assert view.tolist() == [1, 2]


def test_a_container_nests_and_has_a_dtype_per_key() -> None:
    shape = {"image": (4, 4), "state": {"speed": (), "name": (2,), "none": (0, 3)}}
    dtype = {"image": "u1", "state": {"speed": ">f2", "name": "U3", "none": "f8"}}
    container = ShmBufferContainer(dtype, shape)
    state = {"speed": np.array(1.5, ">f2"), "name": np.array(["a", "xyz"], "U3"), "none": np.zeros((0, 3))}
    value = {"image": np.arange(16, dtype="u1").reshape(4, 4), "state": state}
    container.fill(value)
    for got in (container.get(), container.get(copy=False)):
        assert list(got) == ["image", "state"]
        assert same(got["image"], value["image"])
        assert list(got["state"]) == list(state)
        assert all(same(got["state"][name], state[name]) for name in state)


def test_one_dtype_may_stand_for_all_keys_below_it() -> None:
    container = ShmBufferContainer({"a": "f4", "b": "i2"}, {"a": {"x": (1,), "y": 2}, "b": (3,)})
    got = container.get()
    assert (got["a"]["x"].dtype, got["a"]["y"].dtype, got["b"].dtype) == (np.float32, np.float32, np.int16)
    assert got["a"]["y"].shape == (2,)


def test_a_container_of_one_shape_is_one_array() -> None:
    container = ShmBufferContainer("f8", (2,))
    container.fill(np.array([1.0, 2.0]))
    assert container.get().tolist() == [1, 2]


def test_wrong_keys_change_nothing() -> None:
    container = ShmBufferContainer("f8", {"a": (), "b": {"c": ()}})
    one = np.float64(1)
    for wrong, match in [
        ({"a": one}, r"value must have the keys.*missing \['b'\]"),
        ({"a": one, "b": {"d": one}}, r"value\['b'\] must have the keys.*missing \['c'\], unknown \['d'\]"),
        ({"a": one, "b": one}, r"value\['b'\] must be a dict"),
        ({"a": one, "b": {"c": np.ones(2)}}, r"value\['b'\]\['c'\] needs float64 \(\)"),
        (one, "value must be a dict"),
    ]:
        with pytest.raises(UsageError, match=match):
            container.fill(wrong)
    assert container.version == 0


def test_dtypes_and_shapes_need_the_same_keys() -> None:
    with pytest.raises(UsageError, match="differ in their keys"):
        ShmBufferContainer({"a": "f4"}, {"b": (1,)})
    with pytest.raises(UsageError, match=r"value\['a'\]"):
        ShmBufferContainer({"a": "O"}, {"a": (1,)})


def test_they_travel_with_a_process_start(context: str) -> None:
    buffer = ShmBuffer(">f4", (3,), strict_dtype=False)
    container = ShmBufferContainer({"a": "U3"}, {"a": {"b": (2,)}})
    text = np.array(["ab", "c"], "U3")
    with (
        started(context, fill_with, buffer, [1, 2, 3]) as p,
        started(context, fill_with, container, {"a": {"b": text}}) as q,
    ):
        finish(p)
        finish(q)
    assert same(buffer.get(), np.array([1, 2, 3], ">f4"))
    assert same(container.get()["a"]["b"], text)


def test_arrays_of_different_fills_never_mix_when_writers_are_killed() -> None:
    container = ShmBufferContainer({"a": "i8", "b": {"c": "u1"}}, {"a": (100,), "b": {"c": (30, 3)}})
    stop = ShmBuffer("?", ())
    reader = fork(check_until, container, stop)
    for turn in range(60):
        before = container.version
        writer = fork(fill_counting, container)
        while container.version < before + 1 + turn % 5:
            value = container.get()
            assert (value["b"]["c"] == value["a"][0] % 251).all()
        kill(writer)
        value = container.get()
        assert (value["a"] == value["a"][0]).all()
        assert (value["b"]["c"] == value["a"][0] % 251).all()
    stop.fill(True)
    assert os.waitpid(reader, 0)[1] == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [ShmBuffer, ShmBufferContainer])
def test_they_travel_in_no_other_way(
    duplicate: Callable[[Any], Any], kind: Callable[[str, tuple[int, ...]], Any]
) -> None:
    with pytest.raises(TypeError, match="travels only as an argument of a process start"):
        duplicate(kind("f8", (1,)))
