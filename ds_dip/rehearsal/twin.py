"""The twin of a model: everything that plans depend on, and tensors of one number an instance. No torch."""

from __future__ import annotations

from dataclasses import replace

from ds_dip.models.spec import Layer, Model, TensorSpec


def twin_of(model: Model, compute: str) -> Model:
    """The model with layers that read nothing and hand on one number an instance.

    What they hand on counts as many bytes as what it stands for, in a run that trains in ``compute``. Kinds and options
    stay, so that all that follows from them does, and under the same costs both have the same problems.
    """
    modules = tuple(
        replace(module, layers=tuple(_layer(layer, compute) for layer in module.layers)) for module in model.modules
    )
    return replace(model, modules=modules)


def _layer(layer: Layer, compute: str) -> Layer:
    return replace(layer, output=tuple(_spec(spec, compute) for spec in layer.output), fields=())


def _spec(spec: TensorSpec, compute: str) -> TensorSpec:
    # The ranks may run in another data type than the model, so this one is told.
    real = replace(spec, dtype=compute) if spec.dtype == "compute" else spec
    return TensorSpec(("instances", 1), spec.dtype, real)
