"""DIPModule: a PipelineModule whose rank holds several chunks of several modality modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_dip.data import DatasetReference
from ds_dip.models.context import Context
from ds_dip.models.dropout import Dropout
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model
from ds_dip.runtime.partitioning import partition_for
from ds_dip.runtime.recompute import operators_kept
from ds_dip.runtime.weights import current, putting_off

#: A layer that is still to be built: DeepSpeed's LayerSpec or TiedLayerSpec, or a factory without arguments.
LayerFactory: TypeAlias = "LayerSpec | Callable[[], nn.Module]"
#: The loss summed over a microbatch, from the loss chunk's output.
LossFunction: TypeAlias = Callable[[Any, Context], torch.Tensor]


class _FactorySpec(LayerSpec):
    """A LayerSpec that calls a factory, so that only the owning rank builds the layer."""

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        super().__init__(nn.Module)
        self._factory = factory

    def __repr__(self) -> str:
        return repr(self._factory)

    def build(self, log: bool = False) -> nn.Module:  # LayerSpec's signature
        """The layer."""
        return self._factory()


class _SharedSpec(TiedLayerSpec):
    """A TiedLayerSpec of a factory that says under ``shared`` what its module has in common with another layer's."""

    def __init__(self, factory: Any) -> None:
        shared = factory.shared
        super().__init__(shared.key, nn.Module, forward_fn=shared.call, tied_weight_attr=list(shared.weights))
        self._factory = factory

    def build(self, log: bool = False) -> nn.Module:  # LayerSpec's signature
        """The layer."""
        return self._factory()  # type: ignore[no-any-return]  # any factory's


def _spec(layer: LayerFactory) -> LayerSpec:
    if isinstance(layer, LayerSpec):
        return layer
    return _FactorySpec(layer) if getattr(layer, "shared", None) is None else _SharedSpec(layer)


class DIPModule(PipelineModule):
    """All chunks of one rank, cut as the partition says.

    ``layers`` gives every module's layers in order: factories without arguments, LayerSpecs, or
    TiedLayerSpecs. Each layer is called as ``layer(x, context)`` (see ``models.context.Context``);
    a TiedLayerSpec's ``forward_fn`` as ``forward_fn(module, x, context)``. ``loss_fn(output,
    context)`` is the loss summed over the microbatch. Other arguments are PipelineModule's.

    Without a ``partition``, ``partition_method`` makes one for ``num_stages`` ranks as ``partition_for``
    does: DeepSpeed's ``parameters`` (the default), ``uniform`` and ``type:REGEX``, and ``profile``, which
    searches K, B and bounds by ``config`` and the batches of ``training_data``.

    Raises ValueError where layers, model and partition disagree.
    """

    _loading = False

    def __init__(
        self,
        model: Model,
        partition: Partition | None,
        layers: Mapping[str, Sequence[LayerFactory]],
        loss_fn: LossFunction,
        *,
        config: Mapping[str, Any] | None = None,
        training_data: DatasetReference | None = None,
        **kwargs: Any,
    ) -> None:
        if not dist.is_initialized():
            dist.init_distributed(dist_backend=get_accelerator().communication_backend_name())
        method = kwargs.pop("partition_method", None)
        if partition is None:
            ranks = _stages(kwargs)
            partition = partition_for(
                model, config or {}, ranks, method=method or "parameters", training_data=training_data
            )
        elif method is not None:
            raise ValueError(
                f"partition_method is {method!r}, and a partition is given; leave the method out, or give None as the "
                "partition"
            )
        _agree(model, partition, layers)
        if not kwargs.get("topology") and dist.get_world_size() % partition.ranks:
            raise ValueError(
                f"the job has {dist.get_world_size()} ranks, no multiple of the partition's {partition.ranks}: "
                "start another number of ranks, or make a partition for a number that divides it"
            )
        # nn.Module refuses attributes before its own __init__, which already partitions.
        self.__dict__["model"], self.__dict__["partition"] = model, partition
        specs = [_spec(layer) for module in model.modules for layer in layers[module.name]]
        kwargs.setdefault("num_stages", None if kwargs.get("topology") else partition.ranks)
        super().__init__(layers=specs, loss_fn=loss_fn, **kwargs)

    def _partition_layers(self, method: str = "uniform") -> None:  # the partition is given
        if self._topo.get_dim("pipe") != self.partition.ranks:
            raise ValueError(
                f"the partition is for {self.partition.ranks} pipeline ranks, the topology has "
                f"{self._topo.get_dim('pipe')}; make a partition for that many ranks"
            )
        offset, self._bounds = 0, {}
        for module in self.model.modules:
            for chunk in self.partition.of(module.name):
                self._bounds[chunk] = (offset + chunk.start, offset + chunk.stop)
            offset += len(module.layers)
        self.parts = [0, *(stop for _, stop in self._bounds.values())]
        self.local_chunks = self.partition.on(self.stage_id)
        self._set_bounds(*(self._bounds[self.local_chunks[0]] if self.local_chunks else (0, 0)))

    def stage_owner(self, layer_idx: int) -> int:
        """The pipeline rank that holds a layer, by its index over all modules."""
        for chunk, (start, stop) in self._bounds.items():
            if start <= layer_idx < stop:
                return int(chunk.rank)
        raise IndexError(f"layer {layer_idx} does not exist: the model has {self._num_layers} layers")

    def _build(self) -> None:
        self._functions: dict[Chunk, list[Any]] = {}
        #: Layers that are told their place, since what they draw depends on it.
        self._random: set[tuple[Chunk, int]] = set()
        for chunk in self.local_chunks:
            self._set_bounds(*self._bounds[chunk])
            self.forward_funcs: list[Any] = []
            super()._build()
            self._functions[chunk] = self.forward_funcs
        for chunk in self.local_chunks:
            for index, layer in self.layers_of(chunk).items():
                if isinstance(layer, nn.Module):
                    if _key_dropout(layer, f"{chunk.module}.{index}"):
                        self._random.add((chunk, index))
                    if self.model.module(chunk.module).frozen:
                        layer.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            # DeepSpeed's optimizers refuse a rank that trains nothing; this stays 0.
            self.anchor = nn.Parameter(torch.zeros(1))
            self.anchor.ds_pipe_replicated = False  # type: ignore[attr-defined]  # DeepSpeed's mark
        self._activate_first()

    def _activate_first(self) -> None:
        if self.local_chunks:
            self._activate(self.local_chunks[0])

    def _activate(self, chunk: Chunk) -> None:
        """Let PipelineModule's own methods see one chunk as the whole module."""
        self.forward_funcs = self._functions[chunk]
        self._set_bounds(*self._bounds[chunk])

    def layers_of(self, chunk: Chunk) -> dict[int, Any]:
        """A local chunk's layers by their index in the module."""
        return dict(enumerate(self._functions[chunk], chunk.start))

    def forward(self, chunk: Chunk, x: Any, context: Context) -> Any:
        """Run one local chunk; with an activation checkpoint interval, recompute in the backward."""
        functions, put_off = self._functions[chunk], current()
        graded, interval = torch.is_grad_enabled(), self.activation_checkpoint_interval

        def run(start: int, stop: int, x: Any) -> Any:
            for index in range(start, stop):
                place = chunk, chunk.start + index
                told = replace(context, layer=f"{chunk.module}.{place[1]}") if place in self._random else context
                # Layers of other libraries do not say what is cheap: torch selects by operator.
                selects = told.selective and graded and getattr(functions[index], "selects_operators", False)
                kept = {"context_fn": operators_kept}
                x = recomputed(functions[index], x, told, **kept) if selects else functions[index](x, told)
            return x

        def recomputed(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            def again(*arguments: Any) -> Any:
                # The second time is in the backward, on a thread of autograd's.
                with putting_off(put_off):
                    return function(*arguments)

            return checkpoint(again, *arguments, use_reentrant=False, **options)

        if not interval or not graded:
            return run(0, len(functions), x)
        for start in range(0, len(functions), interval):
            x = recomputed(run, start, min(start + interval, len(functions)), x)
        return x

    def save_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Write the layer files of every local chunk."""
        for chunk in self.local_chunks:
            self._activate(chunk)
            super().save_state_dict(*args, **kwargs)
        self._activate_first()

    def load_state_dir(self, *args: Any, **kwargs: Any) -> None:
        """Read the layer files of every local chunk, then let ranks that share a tied layer agree, once."""
        self._loading = True
        try:
            for chunk in self.local_chunks:
                self._activate(chunk)
                super().load_state_dir(*args, **kwargs)
        finally:
            self._loading = False
        self._activate_first()
        self._synchronize_tied_weights()

    def _synchronize_tied_weights(self) -> None:
        # The base class does it after each chunk, of which ranks may hold different numbers.
        if not self._loading:
            with torch.no_grad():  # a broadcast into a parameter is no part of what is trained
                super()._synchronize_tied_weights()


def _stages(arguments: Mapping[str, Any]) -> int:
    """The number of pipeline ranks that PipelineModule's arguments ask for."""
    if (topology := arguments.get("topology")) is not None:
        return int(topology.get_dim("pipe"))
    stages = arguments.get("num_stages")
    if not isinstance(stages, int) or stages < 1:
        raise ValueError(f"num_stages is {stages!r}, and there is no partition; give the number of pipeline ranks")
    return stages


def _key_dropout(layer: nn.Module, name: str) -> bool:
    """Give our dropout its place in the layer, and say whether there is any.

    Torch's draws from the order of execution and is refused with ValueError.
    """
    found = False
    for path, module in layer.named_modules():
        if isinstance(module, Dropout):
            module.key, found = path, True
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0.0:
            raise ValueError(
                f"layer {name} holds {module} at {path!r}, whose mask depends on the order that stages run in; "
                "use ds_dip.models.Dropout, or set p to 0"
            )
    return found


def _agree(model: Model, partition: Partition, layers: Mapping[str, Sequence[LayerFactory]]) -> None:
    for module in model.modules:
        given = len(layers.get(module.name, ()))
        if given != len(module.layers):
            raise ValueError(
                f"module {module.name!r}: {given} layers to build, the model describes {len(module.layers)}; "
                "give one layer for each"
            )
        chunks = partition.of(module.name)
        bounds = [0, *(chunk.stop for chunk in chunks)]
        if not chunks or bounds[-1] != given or [chunk.start for chunk in chunks] != bounds[:-1]:
            raise ValueError(
                f"module {module.name!r}: the partition's chunks end at layers {bounds[1:]}, expected a chain over "
                f"layers 0 to {given}; make the partition from this model"
            )
