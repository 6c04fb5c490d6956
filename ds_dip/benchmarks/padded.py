"""torch.distributed.pipelining on our layers: microbatches padded to the largest one, as its fixed shapes require."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn import functional

from ds_dip.benchmarks.blocks import idle_share, marking
from ds_dip.benchmarks.stock import Feed, chain, header, loss
from ds_dip.data import SampleMetadata
from ds_dip.models import Model
from ds_dip.planning.cut import sizes_of

#: What a stage needs beside its padded rows: the header, and how many rows are real where it begins and where it ends.
Side = tuple[Tensor, int, int]


class PaddedStage(nn.Module):
    """Consecutive layers of the chain on ``[capacity, width]`` rows, of which only the first are real."""

    def __init__(self, layers: Sequence[nn.Module], capacity: int) -> None:
        super().__init__()
        self.layers, self.capacity = nn.ModuleList(layers), capacity
        self.sides: deque[Side] = deque()

    def forward(self, x: Tensor) -> Tensor:
        """Run the next microbatch; microbatches come in order."""
        given, real, _ = self.sides.popleft()
        state: Any = (x[:real], given)
        for layer in self.layers:
            state = layer(state)
        output: Tensor = state if isinstance(state, Tensor) else state[0]
        return functional.pad(output, (0, 0, 0, self.capacity - len(output)))


class Padded:
    """A rank of torch's pipeline: stage s of the cut ``bounds`` on rank s mod P; calling it trains on the next batch.

    ``batches`` are all steps' microbatches, known ahead: the largest one decides every shape. With as many stages as
    ranks the schedule is 1F1B, else interleaved 1F1B. Raises ValueError where torch refuses the numbers.
    """

    def __init__(
        self,
        model: Model,
        feed: Feed,
        batches: Sequence[Sequence[Sequence[SampleMetadata]]],
        bounds: Sequence[int],
        config: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._model, self._feed, self._batches = model, feed, iter(batches)
        self._device = torch.device(get_accelerator().current_device_name())
        ranks, stages = dist.get_world_size(), len(bounds) - 1
        self._specs = [(module.name, layer.output[0]) for module in model.modules for layer in module.layers]
        self._bounds = bounds
        every = [self._shapes(microbatch) for step in batches for microbatch in step]
        capacity = [max(rows[place] for rows, _ in every) for place in range(stages + 1)]
        widths = every[0][1]
        self._capacity, self._last = capacity[0], stages - 1
        device, count = self._device, config["gradient_accumulation_steps"]
        layers = chain(model, seed)
        self._stages = {
            stage: PaddedStage(layers[bounds[stage] : bounds[stage + 1]], capacity[stage + 1]).to(device)
            for stage in range(dist.get_rank(), stages, ranks)
        }
        self._built: list[Any] = [
            PipelineStage(
                module, stage, stages, device,
                input_args=torch.zeros(capacity[stage], widths[stage], device=device, requires_grad=stage > 0),
                output_args=torch.zeros(capacity[stage + 1], widths[stage + 1], device=device, requires_grad=True),
            )
            for stage, module in self._stages.items()
        ]  # fmt: skip
        self._targets: list[tuple[int, tuple[Tensor, Tensor]]] = []
        self._schedule: Any = (
            Schedule1F1B(self._built[0], count, loss_fn=self._loss)
            if len(self._built) == 1
            else ScheduleInterleaved1F1B(self._built, count, loss_fn=self._loss)
        )
        parameters = [p for module in self._stages.values() for p in module.parameters()]
        options = {name: value for name, value in config["optimizer"]["params"].items() if name != "torch_adam"}
        self._parameters, self._clip = parameters, config.get("gradient_clipping", 0.0)
        self._optimizer = torch.optim.AdamW(parameters, **options)

    def _shapes(self, samples: Sequence[SampleMetadata]) -> tuple[list[int], list[int]]:
        """Rows and widths at every bound of the cut for a microbatch; before the first layer those of the pixels."""
        sizes = sizes_of(samples, self._model)
        encoder = self._model.modules[0]
        options = encoder.layers[0].options
        shapes = [(sum(sizes[encoder.name].tokens), options["patch"] ** 2 * options["channels"])]
        for bound in self._bounds[1:]:
            name, spec = self._specs[bound - 1]
            shapes.append(spec.shape(sizes[name]))  # type: ignore[arg-type]  # rows and width
        return [rows for rows, _ in shapes], [width for _, width in shapes]

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        real, labels = self._targets[int(target)]
        return loss(output[:real], labels)

    def __call__(self) -> Tensor:
        """Train on the next batch; the loss."""
        self._optimizer.zero_grad()
        microbatches = next(self._batches)
        arguments = self._load(microbatches)
        losses: list[Tensor] = []
        last = self._last in self._stages
        target = {"target": torch.arange(len(microbatches))} if last else {}
        self._schedule.step(*arguments, losses=losses if last else None, return_outputs=False, **target)
        self._step()
        total = torch.stack(losses).mean().detach() if last else torch.zeros((), device=self._device)
        dist.broadcast(total, self._last % dist.get_world_size())
        return total

    def _load(self, microbatches: Sequence[Sequence[SampleMetadata]]) -> list[Tensor]:
        """Fill every stage's sides and the targets; the padded pixels where the first stage is."""
        first, last, pixels = 0 in self._stages, self._last in self._stages, []
        self._targets = []
        count = sum(sample.loss_tokens for microbatch in microbatches for sample in microbatch)
        scale = torch.tensor(len(microbatches) / count, device=self._device)
        for samples in microbatches:
            rows, _ = self._shapes(samples)
            given = header(samples, self._model, self._feed.tokens(samples)).to(self._device)
            for stage, module in self._stages.items():
                module.sides.append((given, rows[stage], rows[stage + 1]))
            if first:
                real = self._feed.pixels(samples)
                pixels.append(functional.pad(real, (0, 0, 0, self._capacity - len(real))))
            if last:
                self._targets.append((rows[-1], (self._feed.labels(samples).to(self._device), scale)))
        return [torch.cat(pixels).to(self._device)] if first else []

    def _step(self) -> None:
        """Clip by the norm of the whole model, and step."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        square = torch.stack([g.square().sum() for g in gradients]).sum()
        dist.all_reduce(square)
        factor = self._clip / (float(square.sqrt()) + 1e-6) if self._clip else 1.0
        if factor < 1.0:
            torch._foreach_mul_(gradients, factor)
        self._optimizer.step()

    def bubble(self) -> float:
        """The share of ranks times span without a stage, over one batch measured for it."""
        names = ("forward_one_chunk", "backward_one_chunk")
        marks: list[tuple[float, float]] = []
        for stage in self._built:
            for name in names:
                setattr(stage, name, marking(getattr(stage, name), marks))
        self()
        for stage in self._built:
            for name in names:
                delattr(stage, name)
        return idle_share(marks)
