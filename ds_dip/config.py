"""The ``"dip"`` block of the DeepSpeed JSON, checked at start on every rank. Imports no torch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ds_dip.costs.strategies import STRATEGIES

BLOCK = "dip"
#: What a deadline may be: long enough to be kept, and what clocks can count.
SECONDS = "a number from 0.1 to 1000000"
#: Schedules that a batch's search scores at most by default: where it takes time from the ranks, and where it does not.
SCORED, SCORED_BY_SPARE_CORES = 1_000, 20_000

PositiveInt = Annotated[int, Field(ge=1, le=1_000_000)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e9)]


class ConfigError(ValueError):
    """A setting that cannot be used; the message is one sentence: the key, its value, what to do."""


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _setting(default: Any, expected: str, meaning: str, **limits: Any) -> Any:
    """A key of a block: ``expected`` is what errors say of its value, ``meaning`` what it does."""
    extra: dict[str, Any] = {"expected": expected}
    if callable(default):
        return Field(default_factory=default, description=meaning, json_schema_extra=extra, **limits)
    return Field(default, description=meaning, json_schema_extra=extra, **limits)


class PlannerConfig(_Block):
    """The planner's process."""

    enabled: bool = _setting(
        True, "true or false", "plan in a process of its own; false plans on the leader, between steps"
    )
    lead: int = _setting(2, "an integer from 2 to 1000", "batches planned ahead", ge=2, le=1000)
    deadline_s: float = _setting(
        5.0, "a number above 0", "how long the leader waits for a plan before it publishes a fallback", gt=0
    )
    restart_limit: int = _setting(
        3, "an integer of at least 0", "how often a planner that died is started again in one run", ge=0
    )
    evaluations: int | None = _setting(
        None,
        "an integer from 0 to 1000000, or null",
        "schedules that a batch's search scores at most; 0 searches none; null scores 1000, or 20000 where cores are "
        "to spare",
        ge=0,
        le=1000000,
    )
    workers: int | None = _setting(
        None,
        "an integer from 1 to 64, or null",
        "threads of a batch's search; null shares half of the node's cores among its planners, 8 each at most",
        ge=1,
        le=64,
    )
    balanced: bool = _setting(
        True,
        "true or false",
        "balance a batch's samples over replicas and microbatches by what they cost; false takes them in turn",
    )
    adaptive: bool = _setting(
        True,
        "true or false",
        "follow single ranks and shapes that take longer or shorter than the rest, and assign samples to replicas by "
        "what was measured",
    )
    nice: int = _setting(10, "an integer from 0 to 19", "niceness of the process; 19 yields most", ge=0, le=19)
    seed: int = _setting(
        0, "an integer from 0 to 2147483647", "seed of the order of samples and of the search", ge=0, le=2147483647
    )

    def scored(self, spare: bool = False) -> int:
        """Schedules that a search scores at most, where cores are to ``spare`` and where not."""
        return (SCORED_BY_SPARE_CORES if spare else SCORED) if self.evaluations is None else self.evaluations


class TimeoutConfig(_Block):
    """Deadlines in seconds; every wait of a run has one."""

    rank_s: float = _setting(300.0, SECONDS, "waits on another rank: messages and collectives", ge=0.1, le=1e6)
    plan_s: float = _setting(60.0, SECONDS, "a rank's wait for the leader's record of a step", ge=0.1, le=1e6)
    start_s: float = _setting(120.0, SECONDS, "start of the planner's process and of the links", ge=0.1, le=1e6)


class TraceConfig(_Block):
    """Which steps leave a planned and a measured timeline, for ``ds-dip trace`` and TensorBoard."""

    every: int = _setting(100, "an integer of at least 0", "write every n-th step and the last; 0 writes none", ge=0)
    keep: int = _setting(20, "an integer of at least 1", "timelines kept; older ones are removed", ge=1)
    directory: str | None = _setting(
        None, "the path of a folder, or null", "where timelines/ is made; null takes the run's folder", min_length=1
    )
    picture: int = _setting(
        100,
        "an integer of at least 0",
        "draw every n-th step's timeline for TensorBoard, if it is on; 0 draws none",
        ge=0,
    )


class RecordConfig(_Block):
    """Which steps are recorded, for ``ds-dip replay`` and ``"dip": {"replay": ...}``."""

    every: int = _setting(0, "an integer of at least 0", "record every n-th step; 0 records none", ge=0)
    keep: int = _setting(1000, "an integer of at least 1", "recorded steps kept; older ones are removed", ge=1)
    directory: str | None = _setting(
        None, "the path of a folder, or null", "where recording/ is made; null takes the run's folder", min_length=1
    )


class DIPConfig(_Block):
    """The ``"dip"`` block; every key has a default, and an unknown key is refused."""

    partition: str | None = _setting(
        None,
        "the path of a partition file, or null",
        "where every layer lives; null cuts every module evenly over the ranks",
        min_length=1,
    )
    laps: dict[str, PositiveInt] = _setting(
        dict, "an integer from 1 to 1000000 for each module", "K of each module, its chunks on every rank; else 1"
    )
    sub_microbatch: dict[str, PositiveInt | None] = _setting(
        dict,
        "an integer from 1 to 1000000, or null, for each module",
        "B of each module in instances; null leaves its microbatch whole",
    )
    placement: Literal["looped", "zigzag"] = _setting(
        "looped",
        '"looped" or "zigzag"',
        "whether every lap starts on the first rank, or where the one before it ended (fewer messages)",
    )
    schedule: Literal["dip", "1f1b", "interleaved"] = _setting(
        "dip", '"dip", "1f1b" or "interleaved"', "how each batch is scheduled"
    )
    split_backward: float | None = _setting(
        None,
        "a number from 0 to 10, or null",
        "put weight gradients off where plans gain by it, a backward then being longer by this share; null never does",
        ge=0,
        le=10,
    )
    planner: PlannerConfig = _setting(PlannerConfig, "an object", "the planner's process")
    table: str | None = _setting(
        None,
        "the path of a latency table, or null",
        "what operators take on this machine, by ds-dip profile; null takes a roofline",
        min_length=1,
    )
    cost_rules: str | None = _setting(
        None, "the path of a file of cost rules, or null", "costs of your own, over the table's", min_length=1
    )
    link_depth: int = _setting(4, "an integer from 1 to 1000", "messages in flight on one link", ge=1, le=1000)
    checked: bool = _setting(
        False, "true or false", "headers travel with messages; content hashes of microbatches are compared"
    )
    loss: Literal["tokens", "samples"] = _setting(
        "tokens",
        '"tokens" or "samples"',
        "what the loss is divided by: the global batch's supervised tokens, or samples",
    )
    nonfinite: Literal["stop", "skip", "ignore"] = _setting(
        "stop",
        '"stop", "skip" or "ignore"',
        "a step with NaN or infinity in a loss, an activation or a gradient: end the run, leave it out, do not look",
    )
    deterministic: bool = _setting(False, "true or false", "bit-equal runs: no plan depends on a clock")
    timeouts: TimeoutConfig = _setting(TimeoutConfig, "an object", "deadlines")
    memory_gb: PositiveFloat | tuple[PositiveFloat | None, ...] | None = _setting(
        None,
        "a number above 0, at most 1e9, a list with one or null for each rank, or null",
        "memory for activations in 10^9 bytes, for every rank or each; null is no limit",
    )
    memory_strategies: tuple[Literal["none", "selective", "full"], ...] | None = _setting(
        None,
        'a list of "none", "selective" and "full", or null',
        "what a plan may choose from for each stage; null is all three where memory_gb is set, none else",
        min_length=1,
    )
    trace: TraceConfig = _setting(TraceConfig, "an object", "timelines of steps")
    record: RecordConfig = _setting(RecordConfig, "an object", "plans and measured times, to look at and to repeat")
    replay: str | None = _setting(
        None,
        "the path of a folder, or null",
        "a recorded run whose plans this one takes, step by step; null plans anew",
        min_length=1,
    )

    @property
    def _chooses(self) -> bool:
        """Whether strategies are offered without being asked for: a split backward keeps everything."""
        return self.memory_gb is not None and self.split_backward is None

    @property
    def strategies(self) -> tuple[str, ...]:
        """The memory strategies that a plan may choose from, the fastest first."""
        given = self.memory_strategies or (STRATEGIES if self._chooses else STRATEGIES[:1])
        return tuple(name for name in STRATEGIES if name in given)

    def capacity(self, ranks: int) -> tuple[float | None, ...]:
        """Bytes for activations on each of ``ranks`` ranks, ``None`` where there is no limit.

        Raises ConfigError where ``memory_gb`` is a list of another length.
        """
        limits = self.memory_gb if isinstance(self.memory_gb, tuple) else (self.memory_gb,) * ranks
        if len(limits) != ranks:
            raise ConfigError(
                f'"{BLOCK}.memory_gb" has {len(limits)} entries, the pipeline has {ranks} ranks; '
                "give one entry a rank, or one number for all"
            )
        return tuple(None if limit is None else limit * 1e9 for limit in limits)


def read_config(ds_config: Mapping[str, Any]) -> DIPConfig:
    """The ``"dip"`` block of a DeepSpeed configuration; its defaults where there is none.

    Raises ConfigError, one sentence that names the first wrong key, its value and what is expected.
    """
    for key in ds_config:
        if key != BLOCK and key.lower() == BLOCK:
            raise ConfigError(f'"{key}" is ignored by DeepSpeed; write the name of the block as "{BLOCK}"')
    block = ds_config.get(BLOCK, {})
    if not isinstance(block, Mapping):
        raise ConfigError(f'"{BLOCK}" is {show(block)}, expected an object with keys such as "schedule"')
    try:
        # By way of JSON, so that strict types mean JSON's: a list is a tuple, "4" and true are no integers.
        config = DIPConfig.model_validate_json(json.dumps(block, default=str))
    except ValidationError as error:
        raise ConfigError(_sentence(error, block)) from None
    _refuse_contradictions(config)
    return config


def _refuse_contradictions(config: DIPConfig) -> None:
    if config.partition is not None:
        for key in ("laps", "sub_microbatch", "placement"):
            if key in config.model_fields_set and getattr(config, key):
                raise ConfigError(
                    f'"{BLOCK}.{key}" is {show(getattr(config, key))}, but the file of "{BLOCK}.partition" says it '
                    "already; leave one of the two out"
                )
    if config.split_backward is not None and config.strategies != STRATEGIES[:1]:
        raise ConfigError(
            f'"{BLOCK}.split_backward" is {show(config.split_backward)}, and plans choose among the memory strategies '
            f'{", ".join(config.strategies)}; set "{BLOCK}.memory_strategies" to ["none"], or leave the split out'
        )
    if config.timeouts.plan_s <= config.planner.deadline_s:
        raise ConfigError(
            f'"{BLOCK}.timeouts.plan_s" is {config.timeouts.plan_s:g}, expected more than '
            f'"{BLOCK}.planner.deadline_s" ({config.planner.deadline_s:g}), after which the leader publishes a '
            "fallback; raise the one or lower the other"
        )


def _sentence(error: ValidationError, block: Mapping[str, Any]) -> str:
    """The first failure in words: its place is followed as far as the block goes."""
    first = error.errors(include_url=False)[0]
    path, field = [BLOCK], None
    value: Any = block
    model: type[BaseModel] | None = DIPConfig
    for part in first["loc"]:
        if not isinstance(value, Mapping) or part not in value:
            break
        path.append(str(part))
        value = value[part]
        if model is not None:
            if part not in model.model_fields:
                return _unknown(".".join(path), str(part), tuple(model.model_fields))
            field = model.model_fields[str(part)]
            kind = field.annotation
            model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if field is None:
        return f'"{BLOCK}" cannot be read: {first["msg"]}; write the block as plain JSON'
    assert isinstance(field.json_schema_extra, dict)
    default = field.get_default(call_default_factory=True)
    remedy = "leave it out for the defaults" if isinstance(default, _Block) else f"the default is {show(default)}"
    return f'"{".".join(path)}" is {show(value)}, expected {field.json_schema_extra["expected"]}; {remedy}'


def _unknown(key: str, name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=2)
    hint = "did you mean " + " or ".join(f'"{name}"' for name in close) + "?" if close else f"use {', '.join(known)}"
    return f'"{key}" is unknown; {hint}'


def show(value: Any) -> str:
    """A setting's value as JSON, cut to a readable length."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
