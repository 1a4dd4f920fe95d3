"""One space of every kind, with samples of it, and what it means that two values are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

Space = gymnasium.Space[Any]


class FruitSpace(gymnasium.Space[str]):
    """A space of the user's own, with a class name that Gymnasium uses for another."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FruitSpace)

    def __hash__(self) -> int:
        return 0

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return ["apple", "pear", "plum"][int(self.np_random.integers(3))]


FruitSpace.__name__ = "Box"

BOX_DTYPES = ["f2", "f4", "f8", ">f4", ">i4", "u1", "i1", "u2", "i4", "u4", "i8", "u8", "?"]

SPACES: dict[str, Callable[[], Space]] = {
    **{f"box of {dtype}": partial(Box, 0, 1, (2, 3), np.dtype(dtype)) for dtype in BOX_DTYPES},
    "box without axes": lambda: Box(-1, 1, ()),
    "big-endian box without axes": lambda: Box(-1, 1, (), np.dtype(">f8")),
    "box without elements": lambda: Box(0, 1, (0, 3)),
    "discrete": lambda: Discrete(5),
    "discrete that starts elsewhere": lambda: Discrete(5, start=-7),
    "multidiscrete": lambda: MultiDiscrete([2, 3, 4]),
    "multidiscrete of two axes": lambda: MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multibinary": lambda: MultiBinary(4),
    "multibinary of two axes": lambda: MultiBinary((2, 3)),
    "dict": lambda: Dict({"zoom": Discrete(3), "aim": Box(-1, 1, (2,))}),
    "dict of anything": lambda: Dict(cast(Any, {"word": Text(5), 7: Discrete(2), "fruit": FruitSpace()})),
    "tuple": lambda: Tuple((Discrete(3), Box(-1, 1, (2,)))),
    "nest": lambda: Tuple((Dict(a=Tuple((Discrete(2), Box(0, 1, ()))), b=MultiBinary(2)), Dict(c=Dict(d=Discrete(9))))),
    "nest with objects": lambda: Dict(a=Tuple((Text(4), Discrete(2))), b=Sequence(Discrete(3))),
    "text": lambda: Text(6),
    "graph": lambda: Graph(Box(0, 1, (2,)), Discrete(3)),
    "sequence": lambda: Sequence(Box(0, 1, (2,))),
    "stacked sequence": lambda: Sequence(Box(0, 1, (2,)), stack=True),
    "oneof": lambda: OneOf((Discrete(2), Box(0, 1, (2,)))),
    "space of the user's own": FruitSpace,
}


def samples(space: Space, n: int) -> list[Any]:
    """n samples, the same at each call."""
    space.seed(17)
    return [space.sample() for _ in range(n)]


def assert_same(one: Any, two: Any) -> None:
    """The same types, dtypes, shapes, keys in the same order, and values (nan equals nan)."""
    assert type(one) is type(two), (one, two)
    if isinstance(one, np.ndarray | np.generic):
        assert one.dtype == two.dtype and one.shape == two.shape, (one, two)
        assert one.tobytes() == two.tobytes() or np.array_equal(one, two, equal_nan=True), (one, two)
    elif isinstance(one, Mapping):
        assert list(one) == list(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            assert_same(left, right)
    else:
        assert one == two or one != one, (one, two)
