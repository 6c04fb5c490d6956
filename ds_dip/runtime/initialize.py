"""``ds_dip.initialize()``: DeepSpeed's arguments and return values, with a DIPEngine."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfig

from ds_dip.config import ConfigError, DIPConfig, read_config
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.data import Dataset, DatasetReference, order_of
from ds_dip.files import FileError, read_object
from ds_dip.planner import PlanSource
from ds_dip.planner.codec import Codec
from ds_dip.runtime.engine import DIPEngine
from ds_dip.runtime.exchange import gather
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.peers import set_deadline
from ds_dip.runtime.plans import make_plans, make_recorder
from ds_dip.unsupported import refuse_unsupported

_DIGEST: Codec[str] = Codec(str, "a dataset's digest")
#: More than any configuration has.
_MOST_BYTES = 1 << 24


def load_config(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The DeepSpeed configuration as a dictionary, its ``"dip"`` block and what the engine carries checked.

    Raises ConfigError, one sentence naming the key.
    """
    if isinstance(config, Mapping):
        document = dict(config)
    else:
        try:
            document = read_object(config, "a DeepSpeed JSON", _MOST_BYTES)
        except FileError as error:
            raise ConfigError(str(error)) from error
    read_config(document)
    refuse_unsupported(document)
    return document


def initialize(
    args: Any = None,
    model: DIPModule | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: DatasetReference | None = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: str | Path | Mapping[str, Any] | None = None,
) -> tuple[DIPEngine, Any, None, Any]:
    """Make a DIPEngine: ``deepspeed.initialize()`` with the same arguments and four return values.

    ``model`` is a DIPModule and ``training_data`` a DatasetReference, which every rank and the
    planner's process open; the third value, DeepSpeed's data loader, is None, since the sampler
    owns the order. ``config`` defaults to ``args.deepspeed_config``.
    Raises ConfigError or ValueError, one sentence, the same on every rank.
    """
    if not isinstance(model, DIPModule):
        raise ValueError(
            f"model is a {type(model).__name__}, expected a DIPModule; deepspeed.initialize() takes other models"
        )
    if not isinstance(training_data, DatasetReference):
        raise ValueError(
            f"training_data is a {type(training_data).__name__}, expected a DatasetReference: the planner's process "
            "opens the dataset by its factory's name to read metadata ahead"
        )
    for name, value in (("mpu", mpu), ("collate_fn", collate_fn)):
        if value is not None:
            raise ValueError(f"{name} is given, but a DIPModule has its own; leave {name} out")
    config = config if config is not None else getattr(args, "deepspeed_config", None)
    if config is None:
        raise ConfigError("no DeepSpeed configuration is given; pass config= or --deepspeed_config")
    document = load_config(config)
    dip = read_config(document)

    dist.init_distributed(
        dist_backend=get_accelerator().communication_backend_name(),
        distributed_port=distributed_port,
        dist_init_required=dist_init_required,
    )
    set_deadline(max(dip.timeouts.start_s, dip.timeouts.rank_s))
    settings = _settings(document, model)
    _refuse_interval(dip, settings, model)
    dataset = training_data.open()
    order_of(dataset, settings.train_batch_size)  # refuses on every rank what the leaders' samplers would
    _refuse_unlike(dataset)

    recorder = make_recorder(dip, model)

    def plan(batch_size: int, microbatches: int) -> PlanSource:
        return make_plans(
            dip,
            model,
            training_data,
            batch_size=batch_size,
            microbatches=microbatches,
            compute=_compute(settings),
            recorder=recorder,
        )

    engine = make_engine(
        model,
        document,
        settings,
        plan(settings.train_batch_size, settings.gradient_accumulation_steps),
        dataset,
        replan=plan,
        recorder=recorder,
        args=args,
        optimizer=optimizer,
        model_parameters=model_parameters,
        lr_scheduler=lr_scheduler,
    )
    return engine, engine.optimizer, None, engine.lr_scheduler


def _refuse_unlike(dataset: Dataset) -> None:
    """Raise the same ValueError on every rank where ranks see other samples: one whose dataset has a ``digest``."""
    digests = gather(_DIGEST, str(getattr(dataset, "digest", "")))
    unlike = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if unlike:
        raise ValueError(
            f"rank {unlike[0]} finds other samples in the dataset than rank 0: have all ranks read the same files and "
            "the same index"
        )


def make_engine(
    model: DIPModule,
    document: Mapping[str, Any],
    settings: DeepSpeedConfig,
    plans: PlanSource,
    dataset: Dataset,
    **arguments: Any,
) -> DIPEngine:
    """The engine, as ``deepspeed.initialize()`` makes one; ``plans`` are closed if that fails."""
    deepspeed.zero.partition_parameters.shutdown_init_context()
    deepspeed.set_optimizer_flags(settings, model)
    try:
        engine = DIPEngine(
            model=model,
            mpu=model.mpu(),
            config=document,
            config_class=settings,
            dip=read_config(document),
            plans=plans,
            dataset=dataset,
            **{"args": None, **arguments},
        )
    except BaseException:
        plans.close()
        raise
    deepspeed.zero.partition_parameters.restore_init_context()
    engine._configure_python_gc()  # as deepspeed.initialize() does
    # What was imported and built stays for the run. A full collection of it takes a tenth of a second, and the
    # objects of every plan would bring one about every few steps; shutdown() takes this back.
    gc.collect()
    gc.freeze()
    return engine


def _settings(document: Mapping[str, Any], model: DIPModule) -> DeepSpeedConfig:
    """DeepSpeed's own reading of the configuration; what it refuses becomes one sentence."""
    try:
        settings = DeepSpeedConfig(document, model.mpu())
    except (AssertionError, TypeError, KeyError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"DeepSpeed refuses the configuration: {first}; correct that setting") from error
    replicas = int(model.mpu().get_data_parallel_world_size())
    if settings.train_batch_size < settings.gradient_accumulation_steps * replicas:
        raise ConfigError(
            f'"train_batch_size" is {settings.train_batch_size} and "gradient_accumulation_steps" '
            f"{settings.gradient_accumulation_steps}, for {replicas} replicas: give at least one sample a microbatch"
        )
    return settings


def _refuse_interval(dip: DIPConfig, settings: DeepSpeedConfig, model: DIPModule) -> None:
    """Only one may say what is computed again: with both, plans would count memory that is not kept."""
    interval = settings.pipeline["activation_checkpoint_interval"] or model.activation_checkpoint_interval
    if interval and dip.strategies != STRATEGIES[:1]:
        raise ConfigError(
            f'"activation_checkpoint_interval" is {interval}, and plans choose among the memory strategies '
            f'{", ".join(dip.strategies)}: leave the interval out, or set "dip.memory_strategies" to ["none"]'
        )


def _compute(settings: DeepSpeedConfig) -> str:
    if settings.bfloat16_config.enabled:
        return "bfloat16"
    return "float16" if settings.float16_config.enabled else "float32"
