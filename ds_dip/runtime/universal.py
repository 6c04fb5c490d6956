"""Universal checkpoints: DeepSpeed's format of one folder a parameter, which any partition can load.

Parameters are named ``<layer>.<name>`` by the layer's index over all modules, and tied ones by their
key, so names do not depend on the partition. Reading is mapped and one parameter is in memory at a
time. Beyond DeepSpeed's converter this one reads optimizer state without ZeRO, takes a tied parameter
from one rank whatever ranks hold it (slices of two ranks may be cut differently), and keeps the layer
files, without which frozen parameters and buffers would be lost.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.checkpoint.constants import (
    BASE_OPTIMIZER_STATE,
    CAT_DIM,
    DS_VERSION,
    OPTIMIZER_STATE_DICT,
    PARAM,
    PARAM_GROUPS,
    PARAM_SLICE_MAPPINGS,
    SINGLE_PARTITION_OF_FP32_GROUPS,
)
from deepspeed.runtime.pipe.module import TiedLayerSpec

from ds_dip.files import check_writable, write_atomic, write_json
from ds_dip.partition import checkpoint as manifests
from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.runtime.loading import read

if TYPE_CHECKING:
    from ds_dip.models.partition import Chunk
    from ds_dip.runtime.module import DIPModule

#: Told of files written so far and of all that are to be written.
Progress = Callable[[int, int], None]
_ZERO_FILE = re.compile(r"(?:fp16_|bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def layer_file(index: int) -> str:
    """DeepSpeed's name of a layer's file, by the layer's index over all modules."""
    return f"layer_{index:02d}-model_states.pt"


def first_layer(module: DIPModule, chunk: Chunk) -> int:
    """The index over all modules of a chunk's first layer."""
    names = [other.name for other in module.model.modules]
    before = module.model.modules[: names.index(chunk.module)]
    return sum(len(other.layers) for other in before) + chunk.start


def tied_sources(module: DIPModule) -> dict[str, tuple[int, bool]]:
    """For each tied key the layer whose file holds its weights, and whether DeepSpeed writes that file.

    DeepSpeed writes no file where a tied layer is used through a ``forward_fn``; a plain use is
    preferred, else the first use is taken.
    """
    sources: dict[str, tuple[int, bool]] = {}
    for index, spec in enumerate(module._layer_specs):
        if isinstance(spec, TiedLayerSpec):
            plain = spec.forward_fn is None
            if spec.key not in sources or (plain and not sources[spec.key][1]):
                sources[spec.key] = index, plain
    return sources


def convert(source: str | Path, target: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write the universal form of the checkpoint in ``source`` as the new folder ``target``; its manifest.

    ``target`` appears when it is complete, and then ``latest_universal`` beside it names it. The
    client state is kept. Raises CheckpointError where ``source`` is incomplete, damaged, universal
    already or cannot be converted, or ``target`` exists, lies in ``source`` or cannot be written.
    """
    source, target = Path(source), Path(target)
    manifest = manifests.read_manifest(source)
    manifests.check_files(source, manifest)
    if manifest["universal"]:
        raise CheckpointError(f'{source}: is universal already; load it with "checkpoint": {{"load_universal": true}}')
    if os.path.lexists(target):
        raise CheckpointError(f"{target}: exists already; name a folder that does not, or remove it")
    if target.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(f"{target}: lies in the checkpoint {source} itself; name a folder beside it")
    draft = target.with_name(f".{target.name}.converting")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_writable(target.parent / manifests.LATEST_UNIVERSAL)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written ({error.strerror}); name another folder") from error
    try:
        groups = _write(source, draft, manifest, progress)
        written = {str(path.relative_to(draft)): path for path in sorted(draft.rglob("*")) if path.is_file()}
        files = {name: path.stat().st_size for name, path in written.items()}
        sums = {name: manifests.sum_of(path) for name, path in written.items()}
        document = {**manifest, "universal": True, "parameter_groups": groups, "files": files, "sha256": sums}
        write_json(draft / manifests.NAME, document)
        draft.rename(target)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise CheckpointError(
            f"{source}: its files do not hold what a checkpoint of ds_dip does ({type(error).__name__}: {error}); "
            "take another checkpoint"
        ) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    write_atomic(target.parent / manifests.LATEST_UNIVERSAL, target.name)
    return document


def _write(source: Path, draft: Path, manifest: Mapping[str, Any], progress: Progress | None) -> int:
    """Every file of the universal form but the manifest; the number of parameter groups."""
    states = [source / f"mp_rank_{rank:02d}_model_states.pt" for rank in range(manifest["pipeline_ranks"])]
    if lacking := [path.name for path in states if path.name not in manifest["files"]]:
        raise CheckpointError(
            f"{source}: is of {len(states)} pipeline ranks and has no file {lacking[0]}; take another checkpoint"
        )
    layers = [source / name for name in manifest["files"] if re.fullmatch(r"layer_\d+-model_states\.pt", name)]
    read = [path.name for path in states]
    manifests.check_contents(source, manifest, read)
    heads = [_read(path) for path in states]
    names = {name for head in heads for group in head["ds_dip"]["parameters"] for name in group}
    if outside := [name for name in names if not manifests.is_inside(name) or "/" in name]:
        raise CheckpointError(f"{source}: has a parameter named {outside[0]!r}; take another checkpoint")
    whole, done = len(manifest["files"]) + len(layers) + len(heads) + len(names), 0
    known: set[str] = set()

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, whole)

    for name in manifest["files"]:
        if name not in read:
            manifests.check_contents(source, manifest, [name])
        tell()
    for path in layers:
        shutil.copyfile(path, draft / path.name)
        tell()
    counts: set[int] = set()
    common: dict[str, Any] | None = None
    for rank, head in enumerate(heads):
        optimizer = _Optimizer(source, manifest, rank, head)
        if optimizer.groups:
            counts.add(len(optimizer.groups))
            common = common if common is not None else optimizer.common()
        for name, pieces in optimizer.parameters(known):
            known.add(name)
            folder = draft / "zero" / name
            folder.mkdir(parents=True)
            for key, piece in pieces.items():
                held = {CAT_DIM: 0, PARAM: piece} if key != "step" else piece
                torch.save(held, folder / f"{key}.pt")
            tell()
        torch.save({**head, "optimizer": None}, draft / states[rank].name)
        tell()
    if len(counts) > 1:
        raise CheckpointError(
            f"{source}: its ranks have different numbers of parameter groups ({', '.join(map(str, sorted(counts)))}), "
            "which cannot be told apart under another partition; give the optimizer one group"
        )
    (draft / "zero").mkdir(exist_ok=True)
    torch.save(common or {PARAM_GROUPS: []}, draft / "zero" / "optimizer_state.pt")
    return counts.pop() if counts else 0


class _Optimizer:
    """The optimizer's state of one pipeline rank, over all replicas."""

    def __init__(self, source: Path, manifest: Mapping[str, Any], rank: int, head: Mapping[str, Any]) -> None:
        self._source, self._tied = source, head["ds_dip"]["tied"]
        #: Per parameter group the shape of every parameter.
        self.groups: list[dict[str, tuple[int, ...]]] = head["ds_dip"]["parameters"]
        found = {
            int(match[1]): source / name
            for name in manifest["files"]
            if (match := _ZERO_FILE.fullmatch(name)) and int(match[2]) == rank
        }
        self._slices = [_read(path)[OPTIMIZER_STATE_DICT] for _, path in sorted(found.items())]
        self._whole, self._version = head["optimizer"], head[DS_VERSION]
        base = self._slices[0][BASE_OPTIMIZER_STATE] if self._slices else self._whole
        if self.groups and (not isinstance(base, dict) or PARAM_GROUPS not in base):
            raise CheckpointError(
                f"{source}: its optimizer state has a form that cannot be converted ({manifest['optimizer']}); "
                'train with "zero_optimization": {"stage": 1} and without "elastic_checkpoint"'
            )
        self._base = base

    def common(self) -> dict[str, Any]:
        """What all parameters share: the groups' settings and, of ZeRO, its scalars."""
        skipped = (BASE_OPTIMIZER_STATE, PARAM_SLICE_MAPPINGS, SINGLE_PARTITION_OF_FP32_GROUPS)
        scalars = {k: v for k, v in self._slices[0].items() if k not in skipped} if self._slices else {}
        return {DS_VERSION: self._version, **scalars, PARAM_GROUPS: self._base[PARAM_GROUPS]}

    def parameters(self, known: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every parameter that is not ``known``: its name, fp32 weights and optimizer state, whole."""
        for number, group in enumerate(self.groups):
            for place, (name, shape) in enumerate(group.items()):
                if name not in known:
                    yield name, self._sliced(number, name, shape) if self._slices else self._plain(number, place, name)

    def _sliced(self, number: int, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        parts: dict[str, list[torch.Tensor]] = {}
        whole: dict[str, Any] = {}
        for piece in self._slices:
            address = piece[PARAM_SLICE_MAPPINGS][number].get(name)
            if address is None:
                continue
            flat = piece[SINGLE_PARTITION_OF_FP32_GROUPS][number]
            state = piece[BASE_OPTIMIZER_STATE]["state"].get(number, {})
            for key, value in {**state, "fp32": flat}.items():
                if key == "step":
                    whole[key] = value
                elif torch.is_tensor(value) and value.dim() == 1 and value.numel() >= address.start + address.numel:
                    parts.setdefault(key, []).append(value.narrow(0, address.start, address.numel))
        for key, slices in parts.items():
            whole[key] = torch.cat(slices)
            if whole[key].numel() != math.prod(shape):
                raise CheckpointError(
                    f"{self._source}: holds {whole[key].numel()} of {math.prod(shape)} values of {key} of {name}; "
                    "take another checkpoint"
                )
            whole[key] = whole[key].view(shape)
        return whole

    def _plain(self, number: int, place: int, name: str) -> dict[str, Any]:
        index = self._base[PARAM_GROUPS][number]["params"][place]
        layer, _, local = name.partition(".")
        if layer == "tied_modules":
            key, _, local = local.partition(".")
            layer = self._tied[key][0]
        weights = _read(self._source / layer_file(int(layer)))[local]
        state = dict(self._base["state"].get(index, {}))
        if "step" in state:
            # DeepSpeed's FusedAdam counts in the last parameter of a group alone.
            indices = self._base[PARAM_GROUPS][number]["params"]
            state["step"] = max(self._base["state"][i]["step"] for i in indices if i in self._base["state"])
        return {**state, "fp32": weights.float()}


def load_parameters(folder: Path, optimizer: Any, names: Mapping[Any, str], *, states: bool) -> None:
    """Load a universal checkpoint into an optimizer without ZeRO: weights and, with ``states``, its state."""
    index, state, groups = 0, {}, []
    saved = _read(folder / "zero" / "optimizer_state.pt")[PARAM_GROUPS]
    for group, kept in zip(optimizer.param_groups, saved, strict=False):
        indices = []
        for parameter in group["params"]:
            entries = {path.stem: _read(path) for path in (folder / "zero" / names[parameter]).glob("*.pt")}
            held = {key: value if key == "step" else value[PARAM].clone() for key, value in entries.items()}
            parameter.data.copy_(held.pop("fp32"))
            if held:
                state[index] = held
            indices.append(index)
            index += 1
        groups.append({**kept, "params": indices})
    if states and groups:
        optimizer.load_state_dict({"state": state, PARAM_GROUPS: groups})


def _read(path: Path) -> Any:
    """A file's content, mapped where its form allows."""
    try:
        return read(path, mmap=True)
    except Exception as error:  # a damaged pickle raises whatever its bytes say
        if "mmap" not in str(error):
            raise _unreadable(path, error) from error
    try:
        return read(path)
    except Exception as error:  # as above
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    return CheckpointError(f"{path}: cannot be read ({reason}); take another checkpoint")
