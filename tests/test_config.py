"""The "dip" block."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from ds_dip.config import ConfigError, DIPConfig, read_config

WRONG_VALUES = [
    ({"planner": {"lead": 1}}, '"dip.planner.lead" is 1, expected an integer from 2 to 1000; the default is 2'),
    ({"planner": {"lead": "4"}}, '"dip.planner.lead" is "4", expected an integer from 2 to 1000'),
    ({"planner": {"lead": True}}, '"dip.planner.lead" is true, expected an integer from 2 to 1000'),
    ({"planner": {"lead": 2.5}}, '"dip.planner.lead" is 2.5, expected an integer from 2 to 1000'),
    ({"planner": {"deadline_s": 0}}, '"dip.planner.deadline_s" is 0, expected a number above 0'),
    ({"planner": {"deadline_s": float("inf")}}, '"dip.planner.deadline_s" is Infinity, expected a number above 0'),
    ({"planner": {"restart_limit": -1}}, '"dip.planner.restart_limit" is -1, expected an integer of at least 0'),
    ({"planner": {"nice": 20}}, '"dip.planner.nice" is 20, expected an integer from 0 to 19'),
    ({"planner": 3}, '"dip.planner" is 3, expected an object'),
    ({"planner": None}, '"dip.planner" is null, expected an object'),
    ({"laps": {"vision": 0}}, '"dip.laps.vision" is 0, expected an integer from 1 to 1000000 for each module'),
    ({"laps": {"vision": None}}, '"dip.laps.vision" is null, expected an integer from 1 to 1000000'),
    ({"laps": [1]}, '"dip.laps" is [1], expected an integer from 1 to 1000000 for each module'),
    (
        {"sub_microbatch": {"vision": "4"}},
        '"dip.sub_microbatch.vision" is "4", expected an integer from 1 to 1000000, or',
    ),
    ({"memory_gb": -1}, '"dip.memory_gb" is -1, expected a number above 0, at most 1e9, a list'),
    ({"memory_gb": [1, None, 0]}, '"dip.memory_gb" is [1, null, 0], expected a number above 0, at most 1e9, a list'),
    ({"memory_gb": float("nan")}, '"dip.memory_gb" is NaN, expected a number above 0'),
    ({"schedule": "gpipe"}, '"dip.schedule" is "gpipe", expected "dip", "1f1b" or "interleaved"'),
    ({"loss": None}, '"dip.loss" is null, expected "tokens" or "samples"'),
    ({"partition": ""}, '"dip.partition" is "", expected the path of a partition file, or null'),
    ({"link_depth": 0}, '"dip.link_depth" is 0, expected an integer from 1 to 1000; the default is 4'),
    ({"checked": 1}, '"dip.checked" is 1, expected true or false'),
    ({"deterministic": "yes"}, '"dip.deterministic" is "yes", expected true or false'),
    ({"timeouts": {"rank_s": -3}}, '"dip.timeouts.rank_s" is -3, expected a number from 0.1 to 1000000'),
    ({"trace": {"every": -1}}, '"dip.trace.every" is -1, expected an integer of at least 0; the default is 100'),
    ({"trace": {"keep": 0}}, '"dip.trace.keep" is 0, expected an integer of at least 1'),
    ({"trace": {"directory": 7}}, '"dip.trace.directory" is 7, expected the path of a folder, or null'),
    ({"record": {"every": -1}}, '"dip.record.every" is -1, expected an integer of at least 0; the default is 0'),
    ({"record": {"keep": 0}}, '"dip.record.keep" is 0, expected an integer of at least 1'),
    ({"record": True}, '"dip.record" is true, expected an object'),
    ({"replay": True}, '"dip.replay" is true, expected the path of a folder, or null'),
    ("fast", '"dip" is "fast", expected an object'),
]


@pytest.mark.parametrize(("block", "sentence"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_key_and_what_is_expected(block: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config({"dip": block})
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"planer": {}}, '"dip.planer" is unknown; did you mean "planner"?'),
        ({"planner": {"deadline": 3}}, '"dip.planner.deadline" is unknown; did you mean "deadline_s"?'),
        ({"Laps": {}}, '"dip.Laps" is unknown; did you mean "laps"?'),
        ({"zzz": 1}, '"dip.zzz" is unknown; use partition, laps,'),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(block: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config({"dip": block})
    assert str(error.value).startswith(sentence)


def test_the_blocks_name_in_another_case_is_refused() -> None:
    with pytest.raises(ConfigError, match='"DIP" is ignored by DeepSpeed; write the name of the block as "dip"'):
        read_config({"DIP": {}})


def test_no_block_gives_the_defaults() -> None:
    assert read_config({"train_batch_size": 4}) == read_config({"dip": {}}) == DIPConfig()


def test_every_key_is_read() -> None:
    config = read_config(
        {
            "dip": {
                "laps": {"vision": 1, "language": 3},
                "sub_microbatch": {"vision": 4, "language": None},
                "schedule": "1f1b",
                "planner": {"enabled": False, "lead": 3, "deadline_s": 2, "restart_limit": 0, "nice": 0, "seed": 7},
                "link_depth": 2,
                "checked": True,
                "loss": "samples",
                "deterministic": True,
                "timeouts": {"rank_s": 30, "plan_s": 20, "start_s": 40},
                "memory_gb": [1.5, None],
                "trace": {"directory": "runs/a", "every": 10, "keep": 3},
            }
        }
    )
    assert config.laps == {"vision": 1, "language": 3}
    assert config.sub_microbatch == {"vision": 4, "language": None}
    assert config.schedule == "1f1b"
    assert (config.planner.enabled, config.planner.lead, config.planner.deadline_s) == (False, 3, 2.0)
    assert config.timeouts.plan_s == 20
    assert config.trace.directory == "runs/a"


def test_the_configuration_cannot_be_changed() -> None:
    config = read_config({})
    with pytest.raises(ValueError, match="frozen"):
        config.link_depth = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value"), [("laps", {"vision": 2}), ("sub_microbatch", {"vision": 2}), ("placement", "looped")]
)
def test_a_partition_file_and_what_it_says_contradict_each_other(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f'"dip.{key}" is .* "dip.partition" says it already'):
        read_config({"dip": {"partition": "p.json", key: value}})


def test_a_rank_must_wait_longer_for_a_plan_than_the_leader_does() -> None:
    with pytest.raises(ConfigError, match='"dip.timeouts.plan_s" is 3, expected more than "dip.planner.deadline_s"'):
        read_config({"dip": {"timeouts": {"plan_s": 3}}})


def test_capacity_is_bytes_for_each_rank() -> None:
    assert read_config({}).capacity(3) == (None, None, None)
    assert read_config({"dip": {"memory_gb": 2}}).capacity(2) == (2e9, 2e9)
    assert read_config({"dip": {"memory_gb": [1.5, None]}}).capacity(2) == (1.5e9, None)
    with pytest.raises(ConfigError, match='"dip.memory_gb" has 2 entries, the pipeline has 4 ranks'):
        read_config({"dip": {"memory_gb": [1.5, None]}}).capacity(4)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a block and of those inside it, by its path, with its default."""
    for name, field in model.model_fields.items():
        yield prefix + name, field.get_default(call_default_factory=True)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")


def test_every_key_is_documented_with_its_default(docs: str) -> None:
    for name, default in keys(DIPConfig):
        row = next((line for line in docs.splitlines() if line.startswith(f"| `{name}` ")), None)
        assert row is not None, f"docs/configuration.md has no row for {name}"
        if not isinstance(default, BaseModel):
            assert f"`{json.dumps(default)}`" in row, f"the row of {name} misses the default {default}"


def test_strategies_are_offered_under_a_memory_limit_and_where_they_are_asked_for() -> None:
    def of(**block: Any) -> tuple[str, ...]:
        return read_config({"dip": block}).strategies

    assert of() == ("none",)
    assert of(memory_gb=1.0) == of(memory_gb=[1.0, None]) == ("none", "selective", "full")
    assert of(memory_strategies=["full", "none", "full"], memory_gb=1.0) == ("none", "full")
    assert of(memory_strategies=["selective"]) == ("selective",)
    for wrong in ([], ["some"], "full"):
        with pytest.raises(ConfigError, match=r'"dip.memory_strategies" is .*, expected a list of "none", "selective"'):
            of(memory_strategies=wrong)


def test_reading_the_configuration_imports_neither_torch_nor_deepspeed() -> None:
    code = (
        "import sys; from ds_dip.config import read_config; from ds_dip.unsupported import refuse_unsupported; "
        "refuse_unsupported({}); read_config({}); assert not {'torch', 'deepspeed', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
