"""The infos that envs give with their rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from envs import ScriptedEnv, actions
from gymnasium.spaces import Box
from reference import same
from seeded import GivesEnv

import shmenv

MakePool = Callable[..., shmenv.Pool]
SPACE = Box(-9, 9, (1,), np.float32)


def gives(*infos: dict[str, Any], **options: Any) -> Callable[[], GivesEnv]:
    return partial(GivesEnv, SPACE, [np.zeros(1, np.float32)], infos=list(infos), **options)


INFOS: dict[str, dict[Any, Any]] = {
    "empty": {},
    "numbers": {"int": 3, "big": 2**80, "negative": -(2**63), "float": 0.1, "nan": float("nan"), "complex": 1 + 2j},
    "flags and nothing": {"yes": True, "no": False, "nothing": None},
    "text": {"word": "häßlich 🙂", "": "empty key", "bytes": b"\x00\xff"},
    "numpy scalars": {"f4": np.float32(0.1), "i1": np.int8(-3), "b": np.bool_(True), "u8": np.uint64(2**64 - 1)},
    "arrays": {"a": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 3)), "scalar": np.array(5, np.int16)},
    "odd arrays": {"strided": np.arange(10)[::3], "swapped": np.arange(3, dtype=">f4"), "text": np.array(["ab", "c"])},
    "records": {"r": np.zeros(2, [("x", "f4"), ("y", "i2", (3,))]), "when": np.array(["2024-01-01"], "M8[D]")},
    "objects": {"o": np.array([1, "two", None], object)},
    "nested": {"d": {"e": {"f": [1, (2, 3), {"g": {4}}]}}, "t": (), "l": []},
    "keys of any kind": {1: "one", (2, 3): "pair", None: "nothing", "1": "text"},
    "big": {"blob": np.arange(200_000), "text": "x" * 300_000},
    "many": {f"key{i}": i for i in range(500)},
    "other mappings": {"o": OrderedDict(a=1)},
    "functions": {"f": len},
}


@pytest.mark.parametrize("name", INFOS)
def test_an_info_arrives_as_it_was_given(make_pool: MakePool, name: str) -> None:
    pool = make_pool([gives(INFOS[name]), gives({}), gives(INFOS[name])], num_workers=2)
    pool.reset()
    for _ in range(3):
        batch = pool.step(actions(3))
        assert same(dict(batch.info[0]), INFOS[name])
        assert batch.info[1] == {}
        assert same(dict(batch.info[2]), INFOS[name])


def test_infos_count_and_iterate_as_a_sequence(make_pool: MakePool) -> None:
    pool = make_pool([gives({"x": 1}), gives({}), gives({"x": 3})])
    pool.reset()
    info = pool.step(actions(3)).info
    assert len(info) == 3
    assert [dict(row) for row in info] == [{"x": 1}, {}, {"x": 3}]
    assert info[-1] == {"x": 3}
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            info[wrong]


def test_the_infos_of_a_batch_outlive_later_steps(make_pool: MakePool) -> None:
    infos = [{"t": t, "blob": np.full(50_000 if t == 2 else 3, t)} for t in range(1, 8)]
    pool = make_pool([gives(*infos)] * 2)
    pool.reset()
    kept = [pool.step(actions(2)).info for _ in infos]
    for info, given in zip(kept, infos, strict=True):
        assert all(same(dict(info[k]), given) for k in range(2))


def test_an_info_array_is_the_callers_own(make_pool: MakePool) -> None:
    pool = make_pool([gives({"a": np.zeros(3)})] * 2)
    pool.reset()
    first = pool.step(actions(2)).info
    first[0]["a"][:] = 5
    assert first[1]["a"].tolist() == [0, 0, 0]
    assert pool.step(actions(2)).info[0]["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2.75], np.float64),
        ([1, 2], np.int64),
        ([1.5, None], object),
        ([True, "a"], object),
        ([True, False], np.bool_),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.int8(1), np.int16(300)], np.int16),
        (["a", "bcd"], None),
        ([{"x": 1}, 3], object),
    ],
    ids=str,
)
def test_a_column_takes_the_type_that_holds_all_its_values(make_pool: MakePool, values: list[Any], dtype: Any) -> None:
    """Covers an info column typed by the first env, so that 2.75 becomes 2 and None becomes nan."""
    for given in (values, values[::-1]):
        pool = make_pool([gives({"x": value}) for value in given] + [gives({"y": 1})])
        pool.reset()
        column, mask = pool.step(actions(3)).info.column("x")
        assert mask.dtype == np.bool_ and mask.tolist() == [True, True, False]
        assert len(column) == 3
        if dtype is not None:
            assert column.dtype == dtype
        assert [bool(column[k] == given[k]) for k in range(2)] == [True, True]


def test_a_column_of_arrays_is_stacked(make_pool: MakePool) -> None:
    pool = make_pool([gives({"a": np.arange(3.0) + i}) for i in range(2)] + [gives({})])
    pool.reset()
    column, mask = pool.step(actions(3)).info.column("a")
    assert column.shape == (3, 3) and column.dtype == np.float64
    assert column[:2].tolist() == [[0, 1, 2], [1, 2, 3]] and mask.tolist() == [True, True, False]


def test_a_column_that_nobody_gave_is_all_masked(make_pool: MakePool) -> None:
    pool = make_pool([gives({})] * 2)
    pool.reset()
    column, mask = pool.step(actions(2)).info.column("x")
    assert len(column) == 2 and mask.tolist() == [False, False]


def test_infos_convert_to_lists_and_columns_and_back(make_pool: MakePool) -> None:
    """Covers infos that change between a list of dicts and a dict of arrays."""
    given = [{"x": 1.5, "n": 3}, {"x": 2.5}, {}]
    pool = make_pool([gives(info) for info in given])
    pool.reset()
    info = pool.step(actions(3)).info
    columns = {name: info.column(name) for name in ("x", "n")}
    rebuilt = [{name: v[k].item() for name, (v, mask) in columns.items() if mask[k]} for k in range(3)]
    assert rebuilt == given == [dict(row) for row in info]


class LockInfoEnv(ScriptedEnv):
    """Gives an info that cannot travel, once."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        if self.t == 1:
            info = {"lock": self.lock()}
        return (*row, info)


class ListInfoEnv(ScriptedEnv):
    """Gives an info for each of two players, as some of DI-engine's envs do."""

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], [{"player": 0}, {"player": 1}])


def test_an_info_that_is_no_dict_arrives_as_it_is(make_pool: MakePool) -> None:
    pool = make_pool([ListInfoEnv, ListInfoEnv])
    assert list(pool.reset().info) == [{}, {}]
    assert list(pool.step(actions(2)).info) == [[{"player": 0}, {"player": 1}]] * 2


def test_an_info_that_cannot_travel_is_an_env_error(make_pool: MakePool) -> None:
    pool = make_pool([LockInfoEnv, ScriptedEnv])
    pool.reset()
    with pytest.raises(shmenv.EnvError, match="lock") as caught:
        pool.step(actions(2))
    assert (caught.value.env_id, caught.value.command) == (0, "step")
    assert pool.recv().env_id.tolist() == [1]
    pool.reset(env_id=[0])


def test_infos_are_decoded_when_looked_at(make_pool: MakePool) -> None:
    pool = make_pool([UndecodableInfoEnv, partial(GivesEnv, SPACE, [np.zeros(1, np.float32)], infos=[{"x": 1}])])
    pool.reset()
    batch = pool.step(actions(2))
    assert batch.reward.tolist() == [0, 0] and batch.info[1] == {"x": 1}
    with pytest.raises(Exception, match="never looked at"):
        batch.info[0]["x"]


class Undecodable:
    """Pickles, and fails to be unpickled."""

    def __reduce__(self) -> Any:
        return (_refuse, ())


class UndecodableInfoEnv(GivesEnv):
    """Gives an info that the manager cannot decode."""

    def __init__(self) -> None:
        super().__init__(SPACE, [np.zeros(1, np.float32)], infos=[{"x": Undecodable()}])


def _refuse() -> None:
    raise RuntimeError("never looked at")
