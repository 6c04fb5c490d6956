"""What a layer sees beside its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_dip.models.recompute import Projected
from ds_dip.models.spec import Sizes


@dataclass(frozen=True)
class Context:
    """The (sub-)microbatch a layer works on; every layer is called as ``layer(x, context)``.

    ``sizes`` are the instances of the layer's own module. ``fields`` hold the dataset fields the
    chunk's layers asked for, the instances concatenated along dimension 0, on the device.
    The first layer of a module gets as ``x`` a mapping from upstream module to its outputs
    (a tensor, or a tuple of tensors), sub-microbatches concatenated along dimension 0 in instance
    order; with no instance the tensors have 0 rows. Every other layer gets what the layer before
    it returned. ``instances`` names each instance (sample and position in it); with ``step``,
    ``seed`` and ``layer`` (the module and the layer's index in it, told to layers that hold
    a ``Dropout``) it is what anything random must be keyed by. ``selective`` says that the stage runs
    by that memory strategy (see ``cheap``).
    """

    sizes: Sizes
    fields: Mapping[str, torch.Tensor]
    instances: tuple[str, ...] = ()
    step: int = 0
    seed: int = 0
    layer: str = ""
    selective: bool = False

    def cheap(self, function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        """``function(*tensors)``; where the stage is ``selective`` only the tensors are kept for the backward.

        There the function runs again, up to the last tensor that its backward needs: a multiplication by weights at
        its end does not. It must give the same again, so it draws nothing from torch's global state.
        """
        if not self.selective or not torch.is_grad_enabled():
            return function(*tensors)
        result: torch.Tensor = checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)
        return result

    def projected(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        linear: nn.Linear,
        x: torch.Tensor,
        parameters: Iterable[torch.Tensor] = (),
    ) -> torch.Tensor:
        """``linear(function(x))``, like ``cheap`` but with less overhead; ``parameters`` are the function's."""
        if not self.selective or not torch.is_grad_enabled():
            return linear(function(x))  # type: ignore[no-any-return]  # a module gives anything
        result: torch.Tensor = Projected.apply(  # type: ignore[no-untyped-call]  # torch has no types here
            function, x, linear.weight, linear.bias, *parameters
        )
        return result
