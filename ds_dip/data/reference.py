"""A dataset by name, so that every process opens its own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds_dip.data.metadata import Dataset


@dataclass(frozen=True, slots=True)
class DatasetReference:
    """An importable factory ``"package.module:callable"`` and the options it is called with, all JSON."""

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            same = json.loads(json.dumps(self.options, allow_nan=False)) == dict(self.options)
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(
                f"dataset factory {self.factory!r} has options {dict(self.options)!r}, expected what JSON can hold, "
                "since other processes open the dataset too; give numbers, strings, lists and objects with names"
            )

    def open(self) -> Dataset:
        """Open the dataset: call the factory with the options.

        Raises ValueError, one sentence, where the factory is not there, refuses the options, or gives no dataset.
        """
        where = f"dataset factory {self.factory!r}"
        module_name, _, name = self.factory.partition(":")
        if not module_name or not name:
            raise ValueError(f"{where} names no callable; write it as 'package.module:callable'")
        try:
            factory = getattr(importlib.import_module(module_name), name)
        except ImportError as error:
            raise ValueError(f"{where} cannot be imported ({error}); check the name and the Python path") from error
        except AttributeError as error:
            raise ValueError(f"{where}: module {module_name!r} has no {name!r}; check the name") from error
        try:
            dataset = factory(**self.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} refused the options {dict(self.options)!r}: {error}") from error
        for method in ("__len__", "metadata", "load"):
            if not hasattr(dataset, method):
                raise ValueError(
                    f"{where} gave a {type(dataset).__name__} without {method!r}; a dataset has __len__, metadata, load"
                )
        opened: Dataset = dataset
        return opened

    def document(self) -> dict[str, Any]:
        """The reference as a JSON object."""
        return {"factory": self.factory, "options": dict(self.options)}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> DatasetReference:
        """The reference of a JSON object as ``document`` gives it; ValueError for anything else."""
        factory, options = document.get("factory"), document.get("options", {})
        unknown = sorted(set(document) - {"factory", "options"})
        if unknown:
            raise ValueError(f"dataset field {unknown[0]!r} is unknown; use factory and options")
        if not isinstance(factory, str):
            raise ValueError(f"dataset field 'factory' is {factory!r}, expected a string 'package.module:callable'")
        if not isinstance(options, Mapping):
            raise ValueError(f"dataset field 'options' is {options!r}, expected an object")
        return cls(factory, dict(options))
