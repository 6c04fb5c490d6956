"""Frozen values as plain lists for msgpack, and back with every field checked against its annotation.

No pickle: what arrives over a pipe or from a store is data, and wrong data is one sentence.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class CodecError(ValueError):
    """A value that is not what its type says; the message names the field, the value found and what was expected."""


def pack(value: Any) -> Any:
    """Dataclasses and sequences as lists, mappings as maps; a dataclass's fields lie in their order.

    Raises CodecError for a value that could not be read back.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if is_dataclass(value):
        return [pack(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [pack(item) for item in value]
    raise CodecError(f"a {type(value).__name__} cannot be sent: {_short(value)}")


def unpack(kind: type[T], data: Any, where: str) -> T:
    """The value of a type from ``pack``'s data; ``where`` starts the place named in errors.

    Understands dataclasses, ``tuple[X, ...]``, ``tuple[X, Y]``, mappings from strings, finite
    numbers, strings, bytes, booleans, one of these or None, unions of numbers and strings, and Any
    for plain data.
    Raises CodecError for the first value that does not fit.
    """
    return _unpack(kind, data, where)  # type: ignore[no-any-return]  # the type is a value here


def _unpack(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if kind in _SCALARS:
        return _scalar(kind, data, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union([argument for argument in get_args(kind) if argument is not type(None)], kind, data, where)
    if origin is tuple:
        return _tuple(get_args(kind), data, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict) or any(not isinstance(key, str) for key in data):
            raise CodecError(f"{where} is {_short(data)}, expected a map from names")
        return {key: _unpack(get_args(kind)[1], item, f"{where}.{key}") for key, item in data.items()}
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise TypeError(f"{where}: values of {kind!r} cannot be read")
    return _dataclass(kind, data, where)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    known = _fields(kind)
    if not isinstance(data, list) or len(data) != len(known):
        raise CodecError(f"{where} is {_short(data)}, expected the {len(known)} fields of {kind.__name__}")
    values = [_unpack(hint, item, f"{where}.{name}") for (name, hint), item in zip(known, data, strict=True)]
    try:
        return kind(*values)
    except CodecError:
        raise
    except ValueError as error:
        raise CodecError(f"{where}: {error}") from error


_SCALARS = {int: "a whole number", float: "a finite number", str: "a string", bool: "true or false", bytes: "bytes"}


def _scalar(kind: type, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        data = float(data)
    wrong = not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool)
    if wrong or (kind is float and not math.isfinite(data)):
        raise CodecError(f"{where} is {_short(data)}, expected {_SCALARS[kind]}")
    return data


def _union(inner: list[Any], kind: Any, data: Any, where: str) -> Any:
    if data is None and len(inner) < len(get_args(kind)):
        return None
    if len(inner) == 1:
        return _unpack(inner[0], data, where)
    for option in inner:
        if option in _SCALARS and isinstance(data, option) and not isinstance(data, bool):
            return _scalar(option, data, where)
    raise CodecError(f"{where} is {_short(data)}, expected {' or '.join(_SCALARS.get(o, str(o)) for o in inner)}")


def _tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise CodecError(f"{where} is {_short(data)}, expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = arguments[0]
        if inner in _SCALARS:
            return tuple([_scalar(inner, item, where) for item in data])
        return tuple([_unpack(inner, item, f"{where}[{index}]") for index, item in enumerate(data)])
    if len(data) != len(arguments):
        raise CodecError(f"{where} is {_short(data)}, expected a list of {len(arguments)}")
    pairs = enumerate(zip(arguments, data, strict=True))
    return tuple([_unpack(inner, item, f"{where}[{index}]") for index, (inner, item) in pairs])


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _short(value: object) -> str:
    return repr(value)[:80]
