"""Where a layer's weights come from: a folder of safetensors shards, a model in memory, or nowhere yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from ds_dip.files import FileError, read_object

#: What save_pretrained calls the one file of weights, and the list of several.
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
#: The same for diffusers.
DIFFUSERS = "diffusion_pytorch_model"
#: More than the list of any model's weights has.
_MOST_BYTES = 1 << 28


class Source(Protocol):
    """Weights by the names that the library's model has for them."""

    @property
    def others(self) -> tuple[str, ...]:
        """Weights that the model has not."""
        ...

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Those of the names that the source has, one after the other."""
        ...


@dataclass(frozen=True)
class NoWeights:
    """Weights are drawn."""

    others: tuple[str, ...] = ()

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """None of them."""
        return iter(())


@dataclass(frozen=True)
class ModelWeights:
    """Weights of a model in memory."""

    model: nn.Module
    others: tuple[str, ...] = ()

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Those that the model has."""
        tensors = self.model.state_dict(keep_vars=True)
        yield from ((name, tensors[name].detach()) for name in names if name in tensors)


@dataclass(frozen=True)
class FolderWeights:
    """Weights of a folder that ``save_pretrained`` wrote: of every weight its file and its name there.

    A tensor is read when it is asked for, and from its place in the file. ``others`` are weights that the model has
    not, which stay what they are.
    """

    folder: Path
    places: Mapping[str, tuple[str, str]] = field(repr=False)
    others: tuple[str, ...] = ()

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Those that the folder has; FileError, with the name, where one cannot be read."""
        by_file: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            if name in self.places:
                file, key = self.places[name]
                by_file.setdefault(file, []).append((name, key))
        for file, wanted in by_file.items():
            with _opened(self.folder / file) as opened:
                for name, key in wanted:
                    yield name, opened.get_tensor(key)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of weights; FileError where it cannot be read."""
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            yield opened
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise FileError(f"{path} cannot be read ({error}); download the model again") from error


def folder_weights(folder: Path, model: Any) -> FolderWeights:
    """The weights in a folder, by the names that ``model`` has for them: older names are brought to today's.

    Raises FileError where there is none, or where the library would compute a weight from others.
    """
    files = _files(folder)
    if not hasattr(model, "base_model_prefix"):  # of diffusers, which renames nothing
        return FolderWeights(
            folder, {name: (file, name) for name, file in files.items()}, _others(folder, model, files)
        )
    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    known = model.state_dict()
    places = {}
    for key, file in files.items():
        name, converted = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
        if converted is not None:
            raise FileError(
                f"{folder}: weight {key!r} is stored in another form than {type(model).__name__} has; load it with "
                "transformers and save it with save_original_format=False"
            )
        places[name] = file, key
    return FolderWeights(folder, places, _others(folder, model, places))


def _others(folder: Path, model: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Weights that the model has not; FileError where they are of a layer more than its configuration says."""
    known = model.state_dict()
    found = tuple(name for name in names if name not in known)
    for name in found:
        if re.sub(r"\.\d+\.", ".0.", name, count=1) in known:
            raise FileError(
                f"{folder} has a weight {name!r}, which {type(model).__name__} of its config.json does not have; give "
                "the configuration that the weights were saved with"
            )
    return found


def _files(folder: Path) -> dict[str, str]:
    """The file of every weight in the folder, by the name that it has there."""
    single, index = SINGLE, INDEX
    if not (folder / SINGLE).exists() and not (folder / INDEX).exists():
        single, index = (name.replace("model", DIFFUSERS, 1) for name in (SINGLE, INDEX))
    if (folder / index).exists():
        document = read_object(folder / index, "a list of weights", _MOST_BYTES)
        found = document.get("weight_map")
        if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
            raise FileError(f"{folder / index}: field 'weight_map' is not an object of weight to file")
        outside = next((file for file in found.values() if Path(file).name != file), None)
        if outside is not None:
            raise FileError(f"{folder / index}: file {outside!r} is not in the folder; name files alone")
        return found
    if (folder / single).exists():
        with _opened(folder / single) as opened:
            return dict.fromkeys(opened.keys(), single)
    raise FileError(f"{folder} has neither {INDEX} nor {SINGLE}; give a folder that save_pretrained wrote")
