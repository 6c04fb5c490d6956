"""DeepSpeed's settings that this engine does not carry, refused at start with the reason. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ds_dip.config import BLOCK, ConfigError, show


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A DeepSpeed setting that this engine does not carry, for the values ``refuses`` is true of."""

    key: str
    refuses: Callable[[Any], bool]
    why: str
    remedy: str


def _present(value: Any) -> bool:
    return value is not None


def _on(value: Any) -> bool:
    return value is True


def _off(value: Any) -> bool:
    return value is False


def _several(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def _offloads(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("device", "none") not in (None, "none")


def _compiles(value: Any) -> bool:
    carried = ("double_buffer", "keep_int_input_tensors", "offload_activation_pin_memory")
    return isinstance(value, Mapping) and any(
        setting is True or name == "passes" for name, setting in value.items() if name not in carried and setting
    )


def _compresses(value: Any) -> bool:
    return isinstance(value, str) and value.lower() in ("onebitadam", "onebitlamb", "zerooneadam")


_ZERO = "a pipeline's gradients are complete only at the end of the batch"
_ZERO_REMEDY = "use ZeRO stage 1 or 0"
_RESIDENT = "the pipeline's ranks keep parameters and optimizer state on their device"
_SPLIT = "tensors between ranks travel whole, in the shapes of the plan"
_EAGER = "chunks run eagerly, in another order for every batch"
_SHAPES = "the plan is made from the samples' metadata, which must say the true sizes"
_GONE = "DeepSpeed 0.19.8 has removed it"
_REMOVE = "remove the key"
_DISABLE = "disable it or remove the block"

_REMOVED = (
    "amp", "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "graph_harvesting",
    "nebula", "progressive_layer_drop", "quantize_training", "sparse_attention", "sparse_gradients",
)  # fmt: skip

UNSUPPORTED = (
    Unsupported("zero_optimization.stage", _several, _ZERO, _ZERO_REMEDY),
    Unsupported("zero_optimization.offload_optimizer", _offloads, _RESIDENT, "use ZeRO-1, which shards it"),
    Unsupported("zero_optimization.offload_param", _offloads, _RESIDENT, "remove the block, or use more ranks"),
    Unsupported("zero_optimization.cpu_offload", _on, _RESIDENT, _REMOVE),
    Unsupported("zero_optimization.cpu_offload_param", _on, _RESIDENT, _REMOVE),
    Unsupported("zero_optimization.zenflow", _present, _RESIDENT, "use ZeRO-1, which shards it"),
    Unsupported("zero_optimization.zero_quantized_weights", _on, "it belongs to ZeRO stage 3", _REMOVE),
    Unsupported("zero_optimization.zero_quantized_nontrainable_weights", _on, "it belongs to ZeRO stage 3", _REMOVE),
    Unsupported("zero_optimization.zero_quantized_gradients", _on, "it belongs to ZeRO stage 3", _REMOVE),
    Unsupported("zero_optimization.zero_hpz_partition_size", _several, "it belongs to ZeRO stage 3", _REMOVE),
    Unsupported("pipeline.pipe_partitioned", _on, _SPLIT, "set it to false"),
    Unsupported("pipeline.grad_partitioned", _on, _SPLIT, "set it to false"),
    Unsupported(
        "pipeline.stages",
        lambda value: value != "auto",
        "DeepSpeed reads it nowhere",
        "remove it; the number of pipeline ranks is DIPModule's",
    ),
    Unsupported(
        "pipeline.partition",
        lambda value: value != "best",
        "DeepSpeed reads it nowhere",
        f'remove it; "{BLOCK}.partition" and "{BLOCK}.laps" say where layers live',
    ),
    Unsupported(
        "pipeline.seed_layers", _on, "DeepSpeed reads it nowhere", "remove it; give seed_layers to the module instead"
    ),
    Unsupported("expert_parallel.enabled", _on, "no plan knows of exchanges inside a layer", _DISABLE),
    Unsupported("compile", _compiles, _EAGER, "remove the block"),
    Unsupported("hybrid_engine.enabled", _on, "it generates with an engine of its own", _DISABLE),
    Unsupported("tensor_parallel.autotp_size", _several, "layers are not sharded by DeepSpeed's AutoTP", _REMOVE),
    Unsupported("tensor_parallel.tp.tp_size", _several, "layers are not sharded by DeepSpeed's AutoTP", _REMOVE),
    Unsupported(
        "tensor_parallel.tensor_parallel.tp_size", _several, "layers are not sharded by DeepSpeed's AutoTP", _REMOVE
    ),
    Unsupported("sequence_parallel_size", _several, "a sequence lives whole on one rank", "remove it or set it to 1"),
    Unsupported("data_efficiency.enabled", _on, _SHAPES, _DISABLE),
    Unsupported("data_efficiency.data_sampling.enabled", _on, _SHAPES, _DISABLE),
    Unsupported("data_efficiency.data_sampling.curriculum_learning.enabled", _on, _SHAPES, _DISABLE),
    Unsupported("data_efficiency.data_routing.random_ltd.enabled", _on, _SHAPES, _DISABLE),
    Unsupported("autotuning.enabled", _on, "it tunes ZeRO and batch sizes of another engine", _DISABLE),
    Unsupported(
        "flops_profiler.enabled",
        _on,
        "it hooks a forward of the whole model, which no rank runs",
        f'{_DISABLE}; the monitor gets "DIP/tflops", and "{BLOCK}.trace" shows where time goes',
    ),
    Unsupported("torch_autocast.enabled", _on, "chunks run in the run's own data type", 'use "bf16" instead'),
    Unsupported("weight_quantization", _present, "it is for inference", "remove the block"),
    Unsupported("managed_gradient_accumulation", _off, "the engine steps at the end of each batch", "set it to true"),
    Unsupported(
        "optimizer.type",
        _compresses,
        "its compressed communication replaces the reduction at the end of a batch",
        'use "AdamW" or "Lamb"',
    ),
    *(Unsupported(key, _present, _GONE, _REMOVE) for key in _REMOVED),
)


def refuse_unsupported(ds_config: Mapping[str, Any], *, fp16_supported: bool | None = None) -> None:
    """Raise ConfigError for the first DeepSpeed setting that this engine does not carry.

    ``fp16_supported`` says whether the accelerator computes in fp16; ``None`` asks DeepSpeed's
    accelerator, only where the configuration enables fp16. Wrong types are left to DeepSpeed.
    """
    for rule in UNSUPPORTED:
        found, value = _lookup(ds_config, rule.key)
        if found and rule.refuses(value):
            raise ConfigError(f'"{rule.key}" is {show(value)}, which ds_dip does not carry: {rule.why}; {rule.remedy}')
    split = _lookup(ds_config, f"{BLOCK}.split_backward")[1]
    if split is not None and _lookup(ds_config, "pipeline.use_reentrant") == (True, True):
        raise ConfigError(
            f'"{BLOCK}.split_backward" is {show(split)} and "pipeline.use_reentrant" true, but a recomputation with a '
            "backward of its own leaves nothing to put off; set one to null, or the other to false"
        )
    if _lookup(ds_config, "fp16.enabled") == (True, True):
        if fp16_supported is None:
            from deepspeed.accelerator import get_accelerator

            fp16_supported = bool(get_accelerator().is_fp16_supported())
        if not fp16_supported:
            raise ConfigError(
                '"fp16.enabled" is true, but this accelerator does not compute in fp16; use "bf16" or neither'
            )


def _lookup(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value
