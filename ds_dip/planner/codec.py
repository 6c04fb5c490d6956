"""Frozen values as JSON, and back with every field checked against its annotation.

No pickle: what arrives over a pipe or from a store is data, and wrong data is one sentence.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

T = TypeVar("T")


class CodecError(ValueError):
    """A value that is not what its type says; the message names the field, the value found and what was expected."""


class Codec(Generic[T]):
    """Reads and writes the values of one type: dataclasses of tuples, mappings, finite numbers and strings.

    Strict: a number is no string and ``true`` no number. ``name`` starts the place named in errors.
    """

    def __init__(self, kind: Any, name: str) -> None:
        self._name = name
        # In a tuple, since a dataclass itself takes no configuration from outside.
        config = ConfigDict(strict=True, allow_inf_nan=False, ser_json_inf_nan="constants")
        self._adapter: TypeAdapter[tuple[T]] = TypeAdapter(tuple[kind], config=config)

    def encode(self, value: T) -> bytes:
        """Raises CodecError for a value that could not be read back."""
        try:
            return self._adapter.dump_json((value,), warnings="error")
        except PydanticSerializationError as error:
            raise CodecError(f"{self._name} cannot be sent: {_line(str(error))}") from error

    def decode(self, data: bytes) -> T:
        """Raises CodecError for the first value that does not fit."""
        try:
            return self._adapter.validate_json(data)[0]
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(map(str, (self._name, *first["loc"][1:])))
            raise CodecError(f"{place} is {repr(first['input'])[:80]}: {_line(first['msg'])}") from error


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
