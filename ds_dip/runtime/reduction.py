"""The part of the engine that turns a batch's backwards into one step: scaling, reduction, clipping, finiteness.

Everything that the stock engine takes for granted about a batch, a loss on every replica, a
gradient on every parameter, the whole norm on one rank, is put right here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.utils import register_output_backward_hooks
from deepspeed.utils import logger

from ds_dip.config import DIPConfig
from ds_dip.runtime.finite import NonFiniteError


class ReducingEngine(PipelineEngine):
    """Backwards, their reduction over replicas, and the step; a DIPEngine adds what runs before."""

    dip: DIPConfig
    _loss_scale: float
    _skip = False

    def backward_loss(self, loss: torch.Tensor) -> None:
        """Backward from a summed loss through DeepSpeed's own path (loss scaling, bf16 accumulation)."""
        scale = self._loss_scale if self.gradient_average else self._loss_scale / self.grid.data_parallel_size
        DeepSpeedEngine.backward(self, loss * scale)

    def backward_outputs(self, roots: Sequence[Any], gradients: list[torch.Tensor]) -> None:
        """One backward from the gradient edges of all outputs of a chunk."""
        self._running_engine_backward = True
        try:
            torch.autograd.backward(roots, gradients)
            self._backward_epilogue()
        finally:
            self._running_engine_backward = False

    def backward_weights(self, total: torch.Tensor) -> None:
        """Backward to weights alone, between the same two steps of DeepSpeed's as any other."""
        register_output_backward_hooks(total, self._backward_prologue)
        self.backward_outputs([total], [torch.ones_like(total)])

    def _backward_prologue_per_tensor(self, grad: torch.Tensor) -> torch.Tensor:
        return grad

    def _start_timers(self, _: Any) -> None:
        """Stages of many chunks overlap in DeepSpeed's per-phase timers; ours are in ``measured``."""

    def _stop_timers(self, _: Any) -> None:
        """See ``_start_timers``."""

    def _exec_reduce_tied_grads(self) -> None:
        """Give every trainable parameter a gradient first: all replicas must reduce, and weigh, the same ones."""
        self._skip = self._refuse(self._exchange())
        if self._skip:
            return
        if isinstance(self.optimizer, BF16_Optimizer):
            flags = self.optimizer.fp32_groups_has_gradients
            for group in flags:
                group[:] = [True] * len(group)
        else:
            for parameter in self.module.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        super()._exec_reduce_tied_grads()

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's gradients as they are accumulated."""
        name = "_hp_grad" if isinstance(self.optimizer, BF16_Optimizer) else "grad"
        found = [getattr(p, name, None) for p in self.module.parameters() if p.requires_grad]
        return [gradient for gradient in found if gradient is not None]

    @abstractmethod
    def _exchange(self) -> str | None:
        """Compare notes with all ranks; the sentence that names the first tensor that is not finite, or None."""

    @property
    def watched(self) -> bool:
        """Whether tensors are looked at; in fp16 an overflow is the loss scaler's everyday business."""
        return self.dip.nonfinite != "ignore" and not self.fp16_enabled()

    def _refuse(self, sentence: str | None) -> bool:
        """Whether the step must be left out; NonFiniteError, on every rank, where the policy is to stop."""
        if sentence is None:
            return False
        step = f"step {self.global_steps}, {sentence}"
        if self.dip.nonfinite == "stop":
            raise NonFiniteError(f'{step}; the weights are those of the step before ("dip.nonfinite" is "stop")')
        logger.warning(f'{step}; the step is skipped ("dip.nonfinite" is "skip")')
        return True

    def _exec_reduce_grads(self) -> None:
        if not self._skip:
            super()._exec_reduce_grads()

    def _exec_optimizer_step(self, lr_kwargs: Any = None) -> None:
        if not self._skip:
            super()._exec_optimizer_step(lr_kwargs)
            return
        if isinstance(self.optimizer, BF16_Optimizer):
            self.optimizer.clear_hp_grads()
            self.optimizer.clear_lp_grads()
        self.zero_grad()
        self.skipped_steps += 1
        self.global_steps += 1
        self.global_samples += self.train_batch_size()

    def clip_fp32_gradients(self) -> None:
        """Clip by the norm over all pipeline ranks (fp32 without ZeRO; DeepSpeed's takes one rank's)."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        owned = [p.grad for p in self.module.parameters() if p.grad is not None and not p.ds_pipe_replicated]
        square = torch.zeros((), device=self.device, dtype=torch.float64)
        for gradient in owned:
            square += gradient.double().square().sum()
        dist.all_reduce(square, group=self.grid.get_model_parallel_group())
        norm = float(square.sqrt())
        self._global_grad_norm = norm
        factor = self.gradient_clipping() / (norm + 1e-6)
        if factor < 1.0:
            for gradient in gradients:
                gradient.mul_(factor)

    _INSTRUCTION_MAP = {  # noqa: RUF012  # DeepSpeed reads it from the class
        **PipelineEngine._INSTRUCTION_MAP,  # the way in, see dualpipev
        schedule.ReduceTiedGrads: _exec_reduce_tied_grads,
        schedule.ReduceGrads: _exec_reduce_grads,
        schedule.OptimizerStep: _exec_optimizer_step,
    }
