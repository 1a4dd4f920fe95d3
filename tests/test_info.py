"""Infos as records, rows and columns."""

from __future__ import annotations

import copy
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from spaces import assert_same

from shmenv import codec
from shmenv._info import find_value, pack_info, pack_object, unpack_info
from shmenv.info import Infos

NUMBER_DTYPES = ["?", *"bBhHiIlLqQefdgFDG"]
SCALARS = [np.ones((), dtype)[()] for dtype in NUMBER_DTYPES if dtype not in "qQ"]  # pickle makes int64 of longlong
ABSENT = object()


@pytest.fixture(autouse=True)
def _leak_guard() -> None:
    """No guard: these tests open nothing and start nothing, and it would be nearly all they cost."""


class Thing:
    """A value of a class of the user's own."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 0


def test_an_empty_info_costs_no_byte() -> None:
    assert pack_info({}) == b"" and unpack_info(b"") == {}


NUMBERS = st.integers() | st.floats() | st.booleans() | st.sampled_from(SCALARS)
ARRAYS = npst.arrays(
    st.sampled_from([*NUMBER_DTYPES, ">f4", ">i8", "M8[s]", "U3"]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
VALUES = st.recursive(
    st.none()
    | NUMBERS
    | st.text()
    | st.binary()
    | ARRAYS
    | st.sampled_from([Thing(), 1j, b"", np.datetime64("2020"), range(3)]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
INFOS = st.dictionaries(st.text(), VALUES, max_size=6)


@given(INFOS)
@example({"": 0, "x" * 2000: 2**63 - 1, "low": -(2**63), "huge": 2**63, "minus": -(2**63) - 1})
@example({"half": "\ud800", "zero": "\0", "zero\0": 1})
@example({"half \ud800": 1})
@example({"a": {"b": {"c": {}}}, "d": {1: 2}})
@example({"big": np.arange(100_000.0), "then": 1})
@example({"text": "x" * 5000, "bytes": b"y" * 5000})
@example({f"key {k}": k for k in range(500)})
def test_an_info_comes_back_value_for_value_and_type_for_type(info: dict[str, Any]) -> None:
    assert_same(unpack_info(pack_info(info)), info)
    for name in info:
        assert_same(find_value(pack_info(info), name, ABSENT), info[name])
    assert find_value(pack_info(info), "no such key", ABSENT) is ABSENT


@pytest.mark.parametrize(
    "info", [None, 5, [1, 2], OrderedDict(a=1), {1: 2}, {"a": 1, None: 2}, Thing(), OrderedDict()], ids=repr
)
def test_what_is_no_dict_with_text_keys_comes_back_too(info: Any) -> None:
    assert_same(unpack_info(pack_info(info)), info)


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_a_number_keeps_its_very_type(dtype: str) -> None:
    number = np.full((), 1, dtype)[()]
    back = unpack_info(pack_info({"scalar": number, "array": np.full(2, 1, dtype)}))
    assert type(back["scalar"]) is type(number) and back["scalar"] == 1
    assert type(back["array"][0]) is type(number) and back["array"].tolist() == [1, 1]


def test_keys_of_other_infos_are_found_too() -> None:
    assert find_value(pack_info(OrderedDict(a=1)), "a") == 1
    assert find_value(pack_info({1: 2, "a": 3}), "a") == 3
    assert find_value(pack_info([1, 2]), "a", ABSENT) is ABSENT
    assert find_value(b"", "a", ABSENT) is ABSENT


def test_arrays_come_back_fresh_and_writable_in_c_order() -> None:
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    record = pack_info({"rows": array, "columns": array.T, "some": array[:, ::2], "one": array[0, 0, ...]})
    first, second = unpack_info(record), unpack_info(record)
    first["rows"][:] = 7
    assert np.array_equal(second["rows"], array) and np.array_equal(second["columns"], array.T)
    assert np.array_equal(second["some"], array[:, ::2]) and second["one"].shape == ()
    assert all(value.flags.c_contiguous and value.flags.writeable for value in second.values())


def test_a_record_is_the_callers_values_at_the_time() -> None:
    array = np.zeros(3)
    record = pack_info({"a": array})
    array[:] = 1
    assert not unpack_info(record)["a"].any()


def test_an_info_that_contains_itself_comes_back_so() -> None:
    info: dict[str, Any] = {"x": 1}
    info["self"] = info
    back = unpack_info(pack_info(info))
    for _ in range(100):
        assert back["x"] == 1
        back = back["self"]


def test_a_value_that_cannot_be_pickled_is_named() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("not me")

    with pytest.raises(TypeError, match=r"info\['bad'\].*Stubborn.*not me"):
        pack_info({"good": 1, "bad": Stubborn(), "late": "x" * 2000})


def test_an_info_of_few_numbers_fits_a_rows_side_area() -> None:
    assert len(pack_info({f"number {k}": k + 0.5 for k in range(20)})) < 1024


@pytest.fixture
def no_pickles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Damaged pickles are not the record's affair: they are trusted, and could do anything."""
    monkeypatch.setattr(codec, "load", lambda data: ("pickled", data))
    yield


RECORD = pack_info(
    {
        "i": 3,
        "f": 1.5,
        "s": "text",
        "b": b"bytes",
        "n": None,
        "t": True,
        "z": np.float32(2),
        "a": np.ones((2, 3)),
        "d": {"x": 1, "y": {"k": 2}},
    }
)


def assert_value_or_value_error(record: bytes) -> None:
    for read in (unpack_info, lambda record: find_value(record, "nothing"), lambda record: find_value(record, "d")):
        try:
            read(record)
        except ValueError as error:
            assert str(error)


@pytest.mark.usefixtures("no_pickles")
def test_a_record_cut_anywhere_is_a_value_or_a_value_error() -> None:
    for end in range(len(RECORD)):
        assert_value_or_value_error(RECORD[:end])
    with pytest.raises(ValueError, match="damaged"):
        unpack_info(RECORD[:-1])


@pytest.mark.usefixtures("no_pickles")
def test_a_record_with_any_byte_changed_is_a_value_or_a_value_error() -> None:
    for at in range(len(RECORD)):
        for byte in (0, 1, 10, 11, 0x7F, 0x80, 0xFF, RECORD[at] ^ 1):
            assert_value_or_value_error(RECORD[:at] + bytes([byte]) + RECORD[at + 1 :])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_value_error(noise: bytes) -> None:
    for record in (noise, b"D" + noise):
        assume(record[:1] != b"P" and b"\x0a" not in record)  # no pickles: they are trusted
        assert_value_or_value_error(record)


def entry(kind: int, payload: bytes) -> bytes:
    return b"D" + bytes([kind]) + struct.pack("=I", 1) + b"k" + payload


@pytest.mark.parametrize(
    "record",
    [
        b"X",
        b"D\x00",
        entry(99, b""),
        entry(3, b"\x00" * 7),
        entry(5, struct.pack("=Q", 2**64 - 1)),
        entry(5, struct.pack("=Q", 2) + b"\xff\xff"),
        entry(7, b"\x63"),
        entry(7, b"\x0c\x00"),
        entry(8, b"\x0c\x01" + struct.pack("=q", -1)),
        entry(8, b"\x0c\x02" + struct.pack("=qq", 2**62, 2**62)),
        entry(8, b"\x0c\x02" + struct.pack("=qq", 0, 2**62)),
        entry(8, b"\x0c\xff" + struct.pack("=q", 0) * 255),
        entry(8, b"\x0c\x01" + struct.pack("=q", 5) + b"\x00" * 39),
        entry(9, struct.pack("=Q", 1) + b"P"),
        entry(9, struct.pack("=Q", 1) + b"X"),
        entry(10, struct.pack("=Q", 3) + b"..."),
        b"P...",
    ],
    ids=repr,
)
def test_a_damaged_record_is_a_value_error(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|unpickled|decode|dimension|allocate|large|big"):
        unpack_info(record)


def test_dicts_nested_deeper_than_any_record_are_refused() -> None:
    record = b""
    for _ in range(100):
        record = entry(9, struct.pack("=Q", len(record)) + record)
    with pytest.raises(ValueError, match="too deep"):
        unpack_info(record)


def test_a_class_unknown_here_is_a_value_error_that_names_it() -> None:
    record = pack_info({"thing": Thing()}).replace(b"test_info", b"gone_info")
    with pytest.raises(ValueError, match="gone_info"):
        unpack_info(record)


ROWS: list[Any] = [{"x": 1, "only": "here"}, {}, {"x": 2.75}, {"y": np.arange(3)}]


def infos_of(rows: list[Any]) -> Infos:
    return Infos([pack_info(row) for row in rows])


def test_a_row_is_its_dict_and_rows_are_a_sequence() -> None:
    infos = infos_of(ROWS)
    assert_same(list(infos), ROWS)
    assert len(infos) == 4 and infos[-2] == {"x": 2.75} and infos[np.int64(2)] == {"x": 2.75}
    assert_same(list(infos[1:3]), ROWS[1:3])
    assert isinstance(infos[::-1], Infos) and infos[::-1][3] == ROWS[0]
    for row in (4, -5):
        with pytest.raises(IndexError):
            infos[row]
    assert "4 rows, 3 not empty" in repr(infos)


def test_rows_are_decoded_once_and_when_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[bytes] = []
    infos = infos_of([{"thing": Thing()}, {"thing": Thing()}])
    monkeypatch.setattr(codec, "load", lambda data: loads.append(data))
    assert loads == [] and infos[1] is infos[-1] and len(loads) == 1


def test_what_is_put_into_an_empty_info_shows_nowhere_else() -> None:
    infos = Infos.empty(3)
    infos[0]["mine"] = 1
    assert list(infos) == [{}, {}, {}] and list(Infos.empty(3)) == [{}, {}, {}]


def test_rows_without_infos_share_one_object() -> None:
    assert Infos.empty(3) is Infos.empty(3) and len(Infos.empty(5)) == 5


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda infos: pickle.loads(pickle.dumps(infos))])
def test_infos_can_be_copied_and_pickled(duplicate: Any) -> None:
    infos = infos_of(ROWS)
    other = duplicate(infos)
    assert_same(list(other), ROWS)
    other[0]["x"] = "changed"
    assert infos[0]["x"] == 1


@pytest.mark.parametrize(
    ("rows", "values", "dtype", "mask"),
    [
        ([{"x": 1}, {"x": 2.75}], [1.0, 2.75], "f8", [1, 1]),
        ([{"x": 2.75}, {"x": 1}, {}], [2.75, 1.0, 0.0], "f8", [1, 1, 0]),
        ([{"x": 1}, {}, {"x": 3}], [1, 0, 3], "i8", [1, 0, 1]),
        ([{"x": True}, {}], [True, False], "?", [1, 0]),
        ([{"x": True}, {"x": 2}], [1, 2], "i8", [1, 1]),
        ([{"x": np.float32(0.5)}, {"x": np.float32(1.5)}], [0.5, 1.5], "f4", [1, 1]),
        ([{"x": np.float32(0.5)}, {"x": 0.1}], [0.5, 0.1], "f8", [1, 1]),
        ([{"x": np.uint8(1)}, {"x": np.int8(-1)}], [1, -1], "i2", [1, 1]),
        ([{"x": 1}, {"x": 1j}], [1, 1j], "c16", [1, 1]),
        ([{"x": 2**70}, {"x": 1}], [2**70, 1], "O", [1, 1]),
        ([{"x": 1.5}, {"x": None}, {}], [1.5, None, None], "O", [1, 1, 0]),
        ([{"x": None}, {"x": 1.5}], [None, 1.5], "O", [1, 1]),
        ([{"x": True}, {"x": "a"}], [True, "a"], "O", [1, 1]),
        ([{}, {"x": "a"}, {"x": "bcd"}], [None, "a", "bcd"], "O", [0, 1, 1]),
        ([{"x": {"r": 1}}, {}], [{"r": 1}, None], "O", [1, 0]),
        ([{"x": [1, 2]}, {"x": [3]}], [[1, 2], [3]], "O", [1, 1]),
        ([{"x": (1, 2)}, {"x": (3, 4)}], [(1, 2), (3, 4)], "O", [1, 1]),
        ([{}, {"y": 1}], [0.0, 0.0], "f8", [0, 0]),
        ([5, OrderedDict(x=1)], [0, 1], "i8", [0, 1]),
        ([], [], "f8", []),
    ],
    ids=repr,
)
def test_a_column_has_the_dtype_that_holds_all_its_values(rows: Any, values: Any, dtype: str, mask: Any) -> None:
    got, present = infos_of(rows).column("x")
    assert got.dtype == dtype and got.shape == (len(rows),) and got.tolist() == values
    assert present.dtype == bool and present.tolist() == [bool(bit) for bit in mask]
    if dtype == "O":
        assert [type(value) for value in got] == [type(value) for value in values]


def test_arrays_of_one_shape_stack_and_others_stay_objects() -> None:
    values, mask = infos_of([{"x": np.arange(2)}, {}, {"x": np.array([0.5, 1.5])}]).column("x")
    assert values.tolist() == [[0, 1], [0, 0], [0.5, 1.5]] and mask.tolist() == [True, False, True]
    values, _ = infos_of([{"x": np.arange(2)}, {"x": np.arange(3)}, {"x": 5}, {}]).column("x")
    assert values.dtype == object and values.shape == (4,) and values[1].tolist() == [0, 1, 2] and values[3] is None


@given(st.lists(st.none() | NUMBERS | st.text(max_size=2), max_size=6))
def test_a_column_loses_no_value(values: list[Any]) -> None:
    column, mask = infos_of([{"x": value} for value in values]).column("x")
    assert mask.all()
    for got, value in zip(column, values, strict=True):
        assert got == value or got != got or abs(got - value) <= abs(value) * 1e-15


def test_a_dict_that_holds_an_object_twice_still_does_so_when_unpacked() -> None:
    shared, nested = [1, 2], {"a": 1}
    loop: dict[str, Any] = {"x": 0.5}
    loop["self"] = loop
    for pack in (pack_info, pack_object):
        for each in (shared, nested):
            back = unpack_info(pack({"p": each, "q": each}))
            assert back == {"p": each, "q": each} and back["p"] is back["q"]
        back = unpack_info(pack({"p": {"r": nested}, "q": nested}))
        assert back == {"p": {"r": nested}, "q": nested} and back["p"]["r"] is back["q"]
    for pack in (pack_info, pack_object):
        back = unpack_info(pack(loop))
        assert back["self"] is back and back["x"] == 0.5


def test_a_dict_of_dicts_that_all_share_is_not_packed_once_a_path() -> None:
    value: dict[str, Any] = {}
    for _ in range(20):
        value = {"a": value, "b": value}
    assert len(pack_info(value)) < 1000 and len(pack_object(value)) < 1000


@pytest.mark.parametrize(
    "value", [None, True, 7, 2**70, 0.5, "text", b"bytes", np.int8(3), np.float32(0.1), {}, {"a": 1}]
)
def test_an_object_of_any_kind_comes_back_as_it_was(value: Any) -> None:
    back = unpack_info(pack_object(value))
    assert type(back) is type(value) and back == value


class Exits:
    """Ends the process that unpickles it, if that lets it."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_a_value_that_exits_while_it_is_unpickled_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="SystemExit"):
        unpack_info(pack_info({"x": Exits()}))


def test_walking_through_the_infos_is_looking_at_each() -> None:
    infos = Infos([pack_info({"a": 1}), b"", pack_info({"b": {"c": 2}})])
    second = infos[2]
    walked = list(infos)
    assert walked == [{"a": 1}, {}, {"b": {"c": 2}}] and walked[2] is second and infos[0] is walked[0]
    walked[1]["mine"] = 1
    assert infos[1] == {} and list(infos)[1] == {}
