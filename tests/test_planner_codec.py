"""Values as plain data: read back equal, and refused by field when they are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.planner.codec import Codec, CodecError
from ds_dip.planner.wire import SETTINGS
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
    st.none() | st.lists(st.integers(0, 9)),
)
GOOD = Outer(1.5, True, "x", Inner("a", (1,)), {"t": (Inner("b", ()),)}, (1, "p"), [1])


CODEC: Codec[Outer] = Codec(Outer, "it")


@FEW
@given(OUTER)
def test_what_is_encoded_is_read_back(value: Outer) -> None:
    assert CODEC.decode(CODEC.encode(value)) == value


def test_a_planners_settings_survive() -> None:
    given_settings = settings(memory_capacity=(1e9, None))
    assert SETTINGS.decode(SETTINGS.encode(given_settings)) == given_settings


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["number"], "1", "it.number is '1': .*valid number"),
        (["number"], float("nan"), "it.number is nan: .*finite"),
        (["number"], True, "it.number is True: .*valid number"),
        (["flag"], 1, "it.flag is 1: .*boolean"),
        (["either"], None, "it.either.* is None: .*integer"),
        (["either"], True, "it.either.* is True"),
        (["perhaps"], ["a"], r"it.perhaps is \['a'\]: .*object"),
        (["perhaps", "sizes", 0], "2", "it.perhaps.sizes.0 is '2': .*integer"),
        (["perhaps", "name"], None, "it.perhaps.name is None: .*string"),
        (["table", "t", 0, "sizes"], [True], "it.table.t.0.sizes.0 is True"),
        (["table"], [], r"it.table is \[\]: .*"),
        (["pair"], [1], r"it.pair.1 is .*: Field required|it.pair.* is \[1\]"),
        (["pair", 0], -1, "it is .*: Value error, the pair's number is negative"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(place: list[Any], value: object, message: str) -> None:
    data = node = json.loads(CODEC.encode(GOOD))
    for key in [0, *place[:-1]]:
        node = node[key]
    node[place[-1]] = value
    with pytest.raises(CodecError, match=message):
        CODEC.decode(json.dumps(data).encode())


@FEW
@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=8)).map(
        lambda data: json.dumps(data).encode()
    )
)
def test_nothing_but_a_codec_error_comes_of_garbage(data: bytes) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(data)


def test_what_cannot_be_read_back_is_not_sent() -> None:
    with pytest.raises(CodecError, match="it cannot be sent"):
        CODEC.encode(replace(GOOD, plain=object()))
    with pytest.raises(CodecError, match="it cannot be sent"):
        CODEC.encode(replace(GOOD, number="1"))  # type: ignore[arg-type]  # just that
