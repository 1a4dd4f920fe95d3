"""Infos as Gymnasium's vector envs have them: compiled where all is numbers, and the same as Python makes them."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import assert_same

pytest.importorskip("gymnasium")

from shmenv._info import info_columns, pack_info
from shmenv.adapters.columns import columns, columns_of
from shmenv.info import Infos

KEYS = st.sampled_from(["r", "l", "t", "episode", "lives"])
NUMBERS: dict[str, Any] = {
    "r": st.floats(),
    "l": st.integers(-(2**63), 2**63 - 1),
    "t": st.floats(width=32).map(np.float32),
    "lives": st.booleans(),
}
EPISODES = st.fixed_dictionaries({}, optional=NUMBERS)
PLAIN = st.fixed_dictionaries({}, optional={**NUMBERS, "episode": EPISODES.filter(bool)})
ANY = st.dictionaries(
    KEYS | st.sampled_from(["_x", ""]),
    st.floats() | st.integers() | st.booleans() | st.sampled_from([None, "", "é", np.zeros(2)]) | EPISODES,
    max_size=4,
)


def both(told: list[dict[str, Any]], random: Random) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What compiled code makes of these infos, in rows by chance, and what Python does."""
    n = len(told) + 2
    places = random.sample(range(n), len(told))
    compiled = info_columns([pack_info(info) for info in told], places, n)
    return compiled, columns([(row, info) for row, info in zip(places, told, strict=True) if info], n)


@given(st.lists(PLAIN, max_size=6), st.randoms(use_true_random=False))
def test_numbers_of_one_type_a_key_are_columns_without_python(told: list[dict[str, Any]], random: Random) -> None:
    compiled, want = both(told, random)
    assert compiled is not None
    assert_same(compiled, want)


@given(st.lists(PLAIN | ANY, max_size=6), st.randoms(use_true_random=False))
def test_what_compiled_code_cannot_tell_it_leaves_to_python(told: list[dict[str, Any]], random: Random) -> None:
    compiled, want = both(told, random)
    if compiled is not None:
        assert_same(compiled, want)


@pytest.mark.parametrize(
    "told",
    [
        [{"x": 1}, {"x": 1.0}],
        [{"x": 1}, {"x": {"y": 1}}],
        [{"x": np.float32(1)}, {"x": np.float64(1)}],
        [{"x": np.True_}],
        [{"x": 2**64}],
        [{"x": None}],
        [{"x": "a"}],
        [{"x": np.zeros(3)}],
        [{"x": {}}],
        [{3: 4}],
    ],
    ids=repr,
)
def test_mixtures_and_objects_are_columns_all_the_same(told: list[dict[str, Any]]) -> None:
    rows = list(range(len(told)))
    infos = Infos([pack_info(info) for info in told])
    got, want = columns_of(infos, rows, len(told)), columns(list(enumerate(told)), len(told))
    assert pickle.dumps(got) == pickle.dumps(want)  # assert_same knows no arrays of objects


def test_what_a_key_does_not_have_is_zero_and_masked() -> None:
    records = [pack_info(info) for info in ({"episode": {"r": 3.0, "l": 2}}, {}, {"episode": {"r": 5.0, "l": 4}})]
    got = columns_of(Infos(records), [2, 1, 0], 4)
    assert got["episode"]["r"].tolist() == [5, 0, 3, 0] and got["episode"]["l"].dtype == np.int64
    assert got["_episode"].tolist() == got["episode"]["_r"].tolist() == [True, False, True, False]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_damaged_record_is_a_value_error_or_left_to_python(cut: int) -> None:
    record = pack_info({"episode": {"r": 3.0, "l": 2}, "lives": 1})
    try:
        info_columns([record[:-cut]], [0], 1)
    except ValueError:
        pass


def test_one_key_can_be_kept_apart_whatever_it_holds() -> None:
    told = [{"r": 1.0, "last": np.arange(3)}, {"last": "text"}, {"r": 2.0}]
    parts: dict[int, Any] = {}
    got = info_columns([pack_info(info) for info in told], [4, 0, 2], 5, "last", parts)
    assert got is not None and list(got) == ["r", "_r"]
    assert got["r"].tolist() == [0, 0, 2, 0, 1] and got["_r"].tolist() == [False, False, True, False, True]
    assert parts[4].tolist() == [0, 1, 2] and parts[0] == "text" and len(parts) == 2
