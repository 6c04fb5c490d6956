"""Saves a model of transformers that was trained in pieces as a folder that ``from_pretrained`` loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from deepspeed import comm as dist
from safetensors.torch import load_file, save_file
from torch import nn

from ds_dip.files import FileError, first_line, write_atomic
from ds_dip.models.hf.shell import ADAPTED, is_added
from ds_dip.models.hf.split import Pretrained
from ds_dip.models.hf.weights import FolderWeights
from ds_dip.planner.codec import Codec
from ds_dip.runtime.exchange import gather
from ds_dip.runtime.module import DIPModule

#: Beside weights and configuration: what a processor or tokenizer is made of, copied from where the model came from.
_BESIDE = ("*.json", "*.jinja", "*.txt", "*.model")
#: The folder of what peft added, in the model's.
ADAPTER = "adapter"
_PROBLEM: Codec[str] = Codec(str, "a rank's problem")


def save_pretrained(module: DIPModule, pretrained: Pretrained, folder: str | Path) -> None:
    """Write the trained model as transformers does: shards of weights, their list, the configuration, the processor.

    Every rank calls it and writes its own layers, of the first replica; weights that no layer has are written as they
    were. Of a diffusion transformer it is that alone, without the encoder of its prompts. Weights are of the data type
    that the run trains in. What peft added goes to the folder ``adapter``, as peft
    writes it. The folder takes its name when it is complete. Raises FileError, the same sentence on every rank.
    """
    final = Path(folder)
    draft = final.with_name(f".{final.name}.saving")
    first = dist.get_rank() == 0
    _agree(lambda: _begin(draft, final) if first else None)
    own = _weights(module, pretrained)
    shard = _shard(module.stage_id, module.partition.ranks)
    writes = int(module.mpu().get_data_parallel_rank()) == 0
    _agree(lambda: _write(draft, shard, own, pretrained) if writes else None)
    _agree(lambda: _finish(draft, final, pretrained, module) if first else None)


def _agree(work: Callable[[], None]) -> None:
    """Do it; FileError on every rank where one could not."""
    problem = ""
    try:
        work()
    except (OSError, ValueError) as error:
        problem = f"rank {dist.get_rank()}: {first_line(error)}"
    if found := next((text for text in gather(_PROBLEM, problem) if text), ""):
        raise FileError(found)


def _begin(draft: Path, final: Path) -> None:
    if final.exists():
        raise FileError(f"{final} is there already; name a folder that is not")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)


def _shard(stage: int, ranks: int) -> str:
    return f"model-{stage + 1:05d}-of-{ranks:05d}.safetensors"


def _weights(module: DIPModule, pretrained: Pretrained) -> dict[str, torch.Tensor]:
    """This rank's weights by the library's names."""
    found: dict[str, torch.Tensor] = {}
    for chunk in module.local_chunks:
        for index, layer in module.layers_of(chunk).items():
            factory = pretrained.layers[chunk.module][index]
            if factory.shell is not pretrained.shell:
                continue
            built: nn.Module = layer if isinstance(layer, nn.Module) else layer.args[0]
            names = factory.names(built)
            found |= {names[name]: tensor.detach() for name, tensor in built.state_dict().items()}
    return found


def _owners(pretrained: Pretrained, module: DIPModule) -> dict[str, int]:
    """The pipeline rank that writes each weight: of those that hold it, the one that comes first in the model."""
    found: dict[str, int] = {}
    for own in pretrained.model.modules:
        for chunk in module.partition.of(own.name):
            for factory in pretrained.layers[own.name][chunk.start : chunk.stop]:
                for name in factory.held() if factory.shell is pretrained.shell else ():
                    found.setdefault(name, chunk.rank)
    return found


def _stored(name: str, pretrained: Pretrained) -> str:
    """The name of a weight in files: the one that it was read by, or the library's."""
    name, source = name.replace(ADAPTED, ""), pretrained.shell.source
    return source.places[name][1] if isinstance(source, FolderWeights) and name in source.places else name


def _write(draft: Path, shard: str, own: dict[str, torch.Tensor], pretrained: Pretrained) -> None:
    plain = {_stored(name, pretrained): tensor for name, tensor in own.items() if not is_added(name)}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in plain.items()}
    save_file(tensors, draft / shard, metadata={"format": "pt"})
    added = {_adapter_name(name): tensor.cpu().contiguous() for name, tensor in own.items() if is_added(name)}
    if added:
        (draft / ADAPTER).mkdir(exist_ok=True)
        save_file(added, draft / ADAPTER / shard, metadata={"format": "pt"})


def _adapter_name(name: str) -> str:
    """As peft's files have it."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def _finish(draft: Path, final: Path, pretrained: Pretrained, module: DIPModule) -> None:
    ranks, dtype = module.partition.ranks, next(module.parameters()).dtype
    listed = {
        _stored(name, pretrained): _shard(rank, ranks)
        for name, rank in _owners(pretrained, module).items()
        if not is_added(name)
    }
    rest = {
        _stored(name, pretrained): tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in pretrained.rest()
    }
    if rest:
        save_file(rest, draft / "model-rest.safetensors", metadata={"format": "pt"})
        listed |= dict.fromkeys(rest, "model-rest.safetensors")
    size = sum((draft / name).stat().st_size for name in set(listed.values()))
    write_atomic(
        draft / pretrained.index, json.dumps({"metadata": {"total_size": size}, "weight_map": listed}, indent=2)
    )
    if pretrained.folder is not None:
        for pattern in _BESIDE:
            for path in sorted(pretrained.folder.glob(pattern)):
                if not path.name.endswith(".index.json"):
                    shutil.copy(path, draft)
    pretrained.save_config(draft, dtype)
    if (draft / ADAPTER).is_dir():
        _join(draft / ADAPTER, pretrained)
    os.replace(draft, final)


def _join(folder: Path, pretrained: Pretrained) -> None:
    """One file of what peft added, as it wants it, of the ranks' own."""
    parts = sorted(folder.glob("model-*.safetensors"))
    tensors = {name: tensor for part in parts for name, tensor in load_file(part).items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    for part in parts:
        part.unlink()
    pretrained.lora.save_pretrained(folder)
