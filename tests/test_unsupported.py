"""DeepSpeed settings that the engine does not carry."""

import json
from typing import Any

import pytest

from ds_dip.config import ConfigError
from ds_dip.unsupported import UNSUPPORTED, refuse_unsupported


def test_every_refused_setting_is_documented(docs: str) -> None:
    table = docs.split("Refused at start")[1]
    for rule in UNSUPPORTED:
        first, *rest = rule.key.split(".")
        assert f"`{first}" in table
        assert not rest or f".{'.'.join(rest)}`" in table, f"docs/configuration.md misses {rule.key}"


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


REFUSED = {
    "zero_optimization.stage": [2, 3],
    "zero_optimization.offload_optimizer": [{"device": "cpu"}, {"device": "nvme", "nvme_path": "/x"}],
    "zero_optimization.offload_param": [{"device": "cpu"}],
    "zero_optimization.cpu_offload": [True],
    "zero_optimization.cpu_offload_param": [True],
    "zero_optimization.zenflow": [{}, {"topk_ratio": 0.1}],
    "zero_optimization.zero_quantized_weights": [True],
    "zero_optimization.zero_quantized_nontrainable_weights": [True],
    "zero_optimization.zero_quantized_gradients": [True],
    "zero_optimization.zero_hpz_partition_size": [2],
    "pipeline.pipe_partitioned": [True],
    "pipeline.grad_partitioned": [True],
    "pipeline.stages": [4],
    "pipeline.partition": ["uniform"],
    "pipeline.seed_layers": [True],
    "expert_parallel.enabled": [True],
    "compile": [{"deepcompile": True}, {"passes": ["z1"]}, {"offload_activation": True}],
    "hybrid_engine.enabled": [True],
    "tensor_parallel.autotp_size": [2],
    "tensor_parallel.tp.tp_size": [2],
    "tensor_parallel.tensor_parallel.tp_size": [4],
    "sequence_parallel_size": [2],
    "data_efficiency.enabled": [True],
    "data_efficiency.data_sampling.enabled": [True],
    "data_efficiency.data_sampling.curriculum_learning.enabled": [True],
    "data_efficiency.data_routing.random_ltd.enabled": [True],
    "autotuning.enabled": [True],
    "flops_profiler.enabled": [True],
    "torch_autocast.enabled": [True],
    "weight_quantization": [{}],
    "managed_gradient_accumulation": [False],
    "optimizer.type": ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"],
    "amp": [{"enabled": True}],
    "compression_training": [{}],
    "curriculum_learning": [{"enabled": True}],
    "eigenvalue": [{"enabled": False}],
    "elasticity": [{"enabled": True}],
    "graph_harvesting": [True],
    "nebula": [{}],
    "progressive_layer_drop": [{"enabled": True}],
    "quantize_training": [{}],
    "sparse_attention": [{}],
    "sparse_gradients": [True, False],
}


def test_the_table_below_covers_every_refused_setting() -> None:
    assert set(REFUSED) == {rule.key for rule in UNSUPPORTED}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_a_setting_that_is_not_carried_is_refused_with_key_value_reason_and_remedy(key: str, value: Any) -> None:
    rule = next(rule for rule in UNSUPPORTED if rule.key == key)
    with pytest.raises(ConfigError) as error:
        refuse_unsupported(nested(key, value))
    message = str(error.value)
    assert message.startswith(f'"{key}" is {json.dumps(value)}, which ds_dip does not carry: ')
    assert message.endswith(f"{rule.why}; {rule.remedy}")
    assert "\n" not in message


CARRIED: list[dict[str, Any]] = [
    {},
    {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "none"}, "zero_hpz_partition_size": 1}},
    {"zero_optimization": True},
    {"zero_optimization": {"stage": 0, "overlap_comm": True, "zenflow": None}},
    {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False, "stages": "auto", "partition": "best"}},
    {"pipeline": {"activation_checkpoint_interval": 1, "use_reentrant": False}},
    {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8},
    {"bf16": {"enabled": True, "immediate_grad_update": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    {"fp16": {"enabled": False}},
    {"compile": {"deepcompile": False, "double_buffer": True}},
    {"compile": {}},
    {"tensor_parallel": {"autotp_size": 0}, "sequence_parallel_size": 1},
    {"flops_profiler": {"enabled": False}, "autotuning": {"enabled": False}, "hybrid_engine": {"enabled": False}},
    {"data_efficiency": {"enabled": False, "data_routing": {"random_ltd": {"enabled": False}}}},
    {"wall_clock_breakdown": True, "memory_breakdown": True, "steps_per_print": 10},
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupLR"}},
    {"gradient_clipping": 1.0, "gradient_allreduce_op": "sum", "prescale_gradients": True},
    {"tensorboard": {"enabled": True}, "csv_monitor": {"enabled": True}, "comms_logger": {"enabled": True}},
    {"checkpoint": {"load_universal": True, "tag_validation": "FAIL"}},
    {"zero_optimization": "yes", "pipeline": 3, "compile": None},
]


@pytest.mark.parametrize("config", CARRIED)
def test_a_setting_that_is_carried_passes_and_wrong_types_are_left_to_deepspeed(config: dict[str, Any]) -> None:
    refuse_unsupported(config)


def test_fp16_is_refused_where_the_accelerator_lacks_it() -> None:
    refuse_unsupported({"fp16": {"enabled": True}}, fp16_supported=True)
    with pytest.raises(ConfigError, match='"fp16.enabled" is true, but this accelerator'):
        refuse_unsupported({"fp16": {"enabled": True}}, fp16_supported=False)


def test_a_recomputation_with_a_backward_of_its_own_puts_nothing_off() -> None:
    config = {"dip": {"split_backward": 0.05}, "pipeline": {"use_reentrant": True}}
    with pytest.raises(ConfigError, match=r'"dip.split_backward" is 0.05 and "pipeline.use_reentrant" true.*to null'):
        refuse_unsupported(config)
    refuse_unsupported(config | {"pipeline": {"use_reentrant": False}})
    refuse_unsupported(config | {"dip": {"split_backward": None}})
