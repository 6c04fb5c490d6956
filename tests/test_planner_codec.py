"""Values as plain data: read back equal, and refused by field when they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.planner import PlannerSettings
from ds_dip.planner.codec import CodecError, pack, unpack
from tests.planner_cases import FEW, settings


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Outer:
    number: float
    flag: bool
    either: int | str
    perhaps: Inner | None
    table: Mapping[str, tuple[Inner, ...]]
    pair: tuple[int, str]
    raw: bytes
    plain: Any

    def __post_init__(self) -> None:
        if self.pair[0] < 0:
            raise ValueError("the pair's number is negative")


INNER = st.builds(Inner, st.text(max_size=5), st.lists(st.integers(0, 99), max_size=4).map(tuple))
OUTER = st.builds(
    Outer,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.integers(0, 9) | st.text(max_size=3),
    st.none() | INNER,
    st.dictionaries(st.text(max_size=3), st.lists(INNER, max_size=2).map(tuple), max_size=3),
    st.tuples(st.integers(0, 9), st.text(max_size=3)),
    st.binary(max_size=9),
    st.none() | st.lists(st.integers(0, 9)),
)
GOOD = Outer(1.5, True, "x", Inner("a", (1,)), {"t": (Inner("b", ()),)}, (1, "p"), b"r", [1])


@FEW
@given(OUTER)
def test_what_is_packed_is_read_back(value: Outer) -> None:
    assert unpack(Outer, msgpack.unpackb(msgpack.packb(pack(value))), "it") == value


def test_a_planners_settings_survive() -> None:
    given_settings = settings(memory_capacity=(1e9, None))
    assert unpack(PlannerSettings, msgpack.unpackb(msgpack.packb(pack(given_settings))), "settings") == given_settings


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, "1", "it.number is '1', expected a finite number"),
        (0, float("nan"), "it.number is nan"),
        (1, 1, "it.flag is 1, expected true or false"),
        (2, None, "it.either is None, expected a whole number or a string"),
        (2, True, "it.either is True"),
        (3, ["a"], r"it.perhaps is \['a'\], expected the 2 fields of Inner"),
        (3, ["a", [1, "2"]], r"it.perhaps.sizes is '2', expected a whole number"),
        (4, {"t": [["b", [True]]]}, r"it.table.t\[0\].sizes is True"),
        (4, {1: []}, "it.table is .*expected a map"),
        (5, [1], r"it.pair is \[1\], expected a list of 2"),
        (5, [-1, "p"], "it: the pair's number is negative"),
        (6, "r", "it.raw is 'r', expected bytes"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(field: int, value: object, message: str) -> None:
    data = pack(GOOD)
    data[field] = value
    with pytest.raises(CodecError, match=message):
        unpack(Outer, data, "it")


@FEW
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=8)))
def test_nothing_but_a_codec_error_comes_of_garbage(data: Any) -> None:
    with pytest.raises(CodecError):
        unpack(Outer, data, "it")


def test_what_cannot_be_read_back_is_not_sent() -> None:
    with pytest.raises(CodecError, match="a object cannot be sent"):
        pack([object()])
