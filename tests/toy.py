"""Random small LMMs with data, for tests: modules that mix rows within an instance, tuple boundaries, real shapes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from deepspeed.runtime.pipe.module import TiedLayerSpec
from torch import nn

from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.context import Context
from ds_dip.models.dropout import Dropout
from ds_dip.models.spec import Layer, Model, Module, Sizes, TensorSpec

ENCODERS = ("vision", "audio")


class Mix(nn.Module):
    """Rows of an instance see each other, rows of different instances do not."""

    def __init__(self, width: int, carry: str, dropout: float = 0.0, seed: int | None = None) -> None:
        super().__init__()
        if seed is None:
            self.linear = nn.Linear(width, width)
        else:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.linear = nn.Linear(width, width)
        self.carry, self.dropout = carry, Dropout(dropout)

    def forward(self, x: Any, context: Context) -> Any:
        mask, hidden, rest = unpack(x, self.carry)
        parts = hidden.split(list(context.sizes.tokens))
        mean = torch.cat([part.mean(0, keepdim=True).expand_as(part) for part in parts])
        out = hidden + context.cheap(self._mixed(context), hidden + mean)
        if mask is not None:
            out = out * (1 + mask.unsqueeze(1).to(out.dtype) / 10)
        return pack(mask, out, rest, self.carry)

    def _mixed(self, context: Context) -> Any:
        return lambda x: self.dropout(torch.tanh(self.linear(x)), context)


class Load(nn.Module):
    """First layer of an encoder: reads its field."""

    def __init__(self, name: str, width: int, carry: str) -> None:
        super().__init__()
        self.linear, self.name, self.carry = nn.Linear(3, width), name, carry

    def forward(self, x: Mapping[str, Any], context: Context) -> Any:
        assert not x
        hidden = self.linear(context.fields[self.name])
        return pack(torch.arange(len(hidden)) % 2, hidden, hidden.detach()[:, :1].clone(), self.carry)


class Merge(nn.Module):
    """Last layer of an encoder: two rows become one."""

    def __init__(self, width: int, out: int, carry: str) -> None:
        super().__init__()
        self.linear, self.carry = nn.Linear(2 * width, out), carry

    def forward(self, x: Any, context: Context) -> torch.Tensor:
        _, hidden, _ = unpack(x, self.carry)
        assert len(hidden) == sum(context.sizes.tokens)
        return self.linear(hidden.reshape(len(hidden) // 2, -1))


class Fuse(nn.Module):
    """First layer of the backbone: upstream rows go where the slots are."""

    def __init__(self, upstream: Sequence[str], width: int, carry: str) -> None:
        super().__init__()
        self.linear, self.carry = nn.Linear(3, width), carry
        self.projections = nn.ModuleDict({name: nn.Linear(width, width) for name in upstream})

    def forward(self, x: Mapping[str, Any], context: Context) -> Any:
        hidden = self.linear(context.fields["text"])
        for number, (name, projection) in enumerate(self.projections.items(), 1):
            rows = (context.fields["slots"] == number).nonzero().squeeze(1)
            hidden = hidden.index_add(0, rows, projection(x[name]))
        return pack(context.fields["slots"] % 2, hidden, hidden[:, :1] * 2, self.carry)


class Head(nn.Module):
    """Last layer: reads labels at the loss."""

    def __init__(self, width: int, carry: str) -> None:
        super().__init__()
        self.linear, self.carry = nn.Linear(width, 2), carry

    def forward(self, x: Any, context: Context) -> torch.Tensor:
        return self.linear(unpack(x, self.carry)[1])


def pack(mask: Any, hidden: torch.Tensor, rest: Any, carry: str) -> Any:
    return hidden if carry == "tensor" else (mask, hidden, rest)


def unpack(x: Any, carry: str) -> tuple[Any, torch.Tensor, Any]:
    return (None, x, None) if carry == "tensor" else x


def loss_sum(output: torch.Tensor, context: Context) -> torch.Tensor:
    return (output - context.fields["labels"].to(output.dtype)).square().sum()


class Toy:
    """A random model: ``model`` describes it, ``layers()`` builds it, the same every time.

    ``tied`` shares the backbone's second and last but one layer, ``dropout`` is that of all mixing layers.
    """

    def __init__(
        self,
        seed: int,
        *,
        encoders: int,
        layers: int,
        frozen: Sequence[str] = (),
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        self.tied = tied and layers >= 4
        rng = random.Random(seed)
        self.seed, self.encoders = seed, ENCODERS[:encoders]
        self.width = {name: rng.choice((4, 6)) for name in (*self.encoders, "language")}
        carry = {name: rng.choice(("tensor", "tuple")) for name in self.width}
        backbone = self.width["language"]
        self.factories: dict[str, list[Any]] = {}
        modules = []
        for name in self.encoders:
            width = self.width[name]
            self.factories[name] = [
                lambda name=name, width=width: Load(name, width, carry[name]),
                *[lambda name=name, width=width: Mix(width, carry[name], dropout)] * (layers - 2),
                lambda name=name, width=width: Merge(width, backbone, carry[name]),
            ]
            specs = [
                Layer("toy", self._output(width, carry[name]), (name,) if n == 0 else ()) for n in range(layers - 1)
            ]
            specs.append(Layer("toy", (TensorSpec(("merged", backbone)),)))
            modules.append(Module(name, tuple(specs), frozen=name in frozen))
        self.factories["language"] = [
            lambda: Fuse(self.encoders, backbone, carry["language"]),
            *[lambda: Mix(backbone, carry["language"], dropout)] * (layers - 2),
            lambda: Head(backbone, carry["language"]),
        ]
        if self.tied:
            spec = TiedLayerSpec(
                "mix",
                Mix,
                backbone,
                carry["language"],
                dropout,
                seed,
                tied_weight_attr=["linear.weight", "linear.bias"],
            )
            self.factories["language"][1] = self.factories["language"][layers - 2] = spec
        output = self._output(backbone, carry["language"])
        specs = [Layer("toy", output, ("text", "slots") if n == 0 else ()) for n in range(layers - 1)]
        specs.append(Layer("toy", (TensorSpec(("tokens", 2)),), ("labels",)))
        modules.append(Module("language", tuple(specs)))
        self.model = Model(f"toy-{seed}", tuple(modules), tuple((name, "language") for name in self.encoders))

    @staticmethod
    def _output(width: int, carry: str) -> tuple[TensorSpec, ...]:
        hidden = TensorSpec(("tokens", width))
        if carry == "tensor":
            return (hidden,)
        return (TensorSpec(("tokens",), "int64"), hidden, TensorSpec(("tokens", 1)))

    def layers(self, dtype: torch.dtype = torch.float64) -> dict[str, list[nn.Module]]:
        built = {}
        for module in self.model.modules:
            built[module.name] = []
            for index, factory in enumerate(self.factories[module.name]):
                layer = self.build(module.name, index, factory).to(dtype)
                for path, inner in layer.named_modules():
                    if isinstance(inner, Dropout):
                        inner.key = path
                built[module.name].append(layer.requires_grad_(not module.frozen))
        if self.tied:
            built["language"][-2] = built["language"][1]
        return built

    def specs(self, dtype: torch.dtype) -> dict[str, list[Any]]:
        """For a DIPModule: layers that are built already, and the spec where two are one."""
        return {
            name: [
                factory if isinstance(factory, TiedLayerSpec) else lambda layer=layer: layer
                for factory, layer in zip(self.factories[name], chain, strict=True)
            ]
            for name, chain in self.layers(dtype).items()
        }

    def build(self, module: str, index: int, factory: Any) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(hash((self.seed, ENCODERS.index(module) if module in ENCODERS else 9, index)) % 2**31)
            return factory.build() if isinstance(factory, TiedLayerSpec) else factory()

    def reference(
        self, dataset: ToyDataset, samples: Sequence[SampleMetadata], count: int, layers: Mapping[str, Any]
    ) -> torch.Tensor:
        """One process, the whole global batch at once: the mean loss, and gradients in ``layers``."""
        outputs: dict[str, Any] = {}
        context = None
        for module in self.model.modules:
            sizes = sizes_of(samples, module.name)
            if not len(sizes):
                width = self.width["language"]
                outputs[module.name] = torch.zeros(0, width, dtype=next(layers["language"][0].parameters()).dtype)
                continue
            names = [name for layer in module.layers for name in layer.fields]
            dtype = next(layers["language"][0].parameters()).dtype
            instances = tuple(f"{s.id}/{n}" for s in samples for n in range(len(s.modules[module.name])))
            context = Context(sizes, dataset.tensors(samples, names, dtype), instances)
            x: Any = {name: outputs[name] for name in self.model.upstream(module.name)}
            for index, layer in enumerate(layers[module.name]):
                x = layer(x, replace(context, layer=f"{module.name}.{index}"))
            outputs[module.name] = x
        assert context is not None
        loss = loss_sum(outputs["language"], context) / count
        if loss.requires_grad:
            loss.backward()
        return loss.detach()


def sizes_of(samples: Sequence[SampleMetadata], module: str) -> Sizes:
    tokens = tuple(size for sample in samples for size in sample.modules.get(module, ()))
    merged = tuple(size for s in samples for size in s.merged.get(module, s.modules.get(module, ())))
    return Sizes(tokens, merged)


class ToyDataset:
    """Samples with random instance counts and sizes; ``share`` is how often a sample has a modality."""

    def __init__(self, length: int = 64, seed: int = 0, share: float = 0.6, encoders: int = 2) -> None:
        self.length, self.seed, self.share, self.encoders = length, seed, share, ENCODERS[:encoders]

    def __len__(self) -> int:
        return self.length

    def metadata(self, index: int) -> SampleMetadata:
        rng = random.Random(self.seed * 100003 + index)
        modules, merged, slots = {}, {}, 0
        for name in self.encoders:
            count = rng.randint(1, 3) if rng.random() < self.share else 0
            modules[name] = tuple(2 * rng.randint(1, 3) for _ in range(count))
            merged[name] = tuple(size // 2 for size in modules[name])
            slots += sum(merged[name])
        tokens = slots + rng.randint(1, 5)
        return SampleMetadata(str(index), {**modules, "language": (tokens,)}, tokens, merged)

    def load(self, sample: str, fields: Sequence[str]) -> dict[str, list[np.ndarray]]:
        metadata = self.metadata(int(sample))
        rng = np.random.default_rng((self.seed, int(sample)))
        tokens = metadata.modules["language"][0]
        slots = np.zeros(tokens, dtype=np.int64)
        position = 0
        for number, name in enumerate(self.encoders, 1):
            rows = sum(metadata.merged[name])
            slots[position : position + rows] = number
            position += rows
        whole = {name: [rng.standard_normal((size, 3)) for size in metadata.modules[name]] for name in self.encoders}
        whole["text"] = [rng.standard_normal((tokens, 3))]
        whole["labels"] = [rng.standard_normal((tokens, 2))]
        whole["slots"] = [slots]
        return {name: whole[name] for name in fields}

    def tensors(
        self, samples: Sequence[SampleMetadata], names: Sequence[str], dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        fields = {}
        for name in names:
            tensor = torch.from_numpy(np.concatenate([a for s in samples for a in self.load(s.id, [name])[name]]))
            fields[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return fields
