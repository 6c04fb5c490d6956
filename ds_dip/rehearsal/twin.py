"""The twin of a model: everything that plans depend on, and tensors of one number an instance. No torch."""

from __future__ import annotations

from dataclasses import replace

from ds_dip.models.spec import Layer, Model, TensorSpec

#: The kind of all layers of a twin.
KIND = "emulated"


def twin_of(model: Model, compute: str) -> Model:
    """The model with layers that read nothing and hand on one number an instance.

    What they hand on counts as many bytes as what it stands for, in a run that trains in ``compute``. Problems of both
    are equal, but for what the costs say.
    """
    modules = tuple(
        replace(module, layers=tuple(_layer(layer, compute) for layer in module.layers)) for module in model.modules
    )
    return replace(model, modules=modules)


def _layer(layer: Layer, compute: str) -> Layer:
    return Layer(KIND, tuple(_spec(spec, compute) for spec in layer.output))


def _spec(spec: TensorSpec, compute: str) -> TensorSpec:
    # The ranks run in another data type than the model, so this one is told.
    real = replace(spec, dtype=compute) if spec.dtype == "compute" else spec
    return TensorSpec(("instances", 1), spec.dtype, real)
