"""A rank of ``ds-dip bench neighbour``: the quickstart's training beside a planner that never rests, and without it.

``python -m ds_dip.benchmarks.neighbour plan FILE PARENT NICENESS`` is that planner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds_dip.ranks import settings, tell


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The quickstart's description and DeepSpeed JSON, ``ranks`` and how long to measure.

    ``nice`` is the planner's niceness.
    """

    model: str
    config: str
    ranks: int
    blocks: int = 8
    iterations: int = 6
    nice: int = 10


@contextmanager
def restless(own: Any, nice: int) -> Iterator[subprocess.Popen[bytes]]:
    """A stopped process that plans these settings' batches without an end, as a planner's process would."""
    from ds_dip.planner.wire import SETTINGS

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings")
        path.write_bytes(SETTINGS.encode(own))
        process = subprocess.Popen(
            [sys.executable, "-m", __name__.replace("__main__", "ds_dip.benchmarks.neighbour"), "plan", str(path),
             str(os.getpid()), str(nice)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"the planner ended with status {process.wait()} before its first plan")
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()
            process.wait()


def plan_without_end(path: str, parent: int, nice: int) -> None:
    """Plan step after step; a line on standard output after the first."""
    from ds_dip.planner import Planner
    from ds_dip.planner.__main__ import die_with, lower_priority
    from ds_dip.planner.wire import SETTINGS

    die_with(parent)
    planner, step = Planner(SETTINGS.decode(Path(path).read_bytes())), 0
    lower_priority(nice)
    while True:
        planner.plan(step)
        if step == 0:
            sys.stdout.write("planned\n")
            sys.stdout.flush()
        step += 1


def measure(s: Neighbour) -> None:
    """Blocks of training in turn: alone, and beside the planner."""
    import deepspeed
    from deepspeed import comm as dist

    import ds_dip
    from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
    from ds_dip.models import load_model

    deepspeed.init_distributed()
    config, model = ds_dip.load_config(s.config), load_model(s.model)
    # Plans far ahead: the run's own planner has done its work before the first block, and rests.
    steps = 4 + 2 * s.blocks * (s.iterations + 1)
    config["dip"] = {**config.get("dip", {}), "planner": {"lead": min(1000, steps), "evaluations": 100}}
    partition = ds_dip.partition_for(model, config, s.ranks)
    module = ds_dip.DIPModule(model, partition, ds_dip.layer_factories(model), ds_dip.token_cross_entropy)
    samples = (steps + 1) * config["train_batch_size"]
    reference = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples})
    engine, *_ = ds_dip.initialize(model=module, training_data=reference, config=config)

    def training(signalled: signal.Signals, process: subprocess.Popen[bytes] | None) -> Callable[[], Any]:
        def iteration() -> Any:
            if process is not None:
                process.send_signal(signalled)
            return engine.train_batch()

        return iteration

    with restless(_unpaced(engine, reference), s.nice) if dist.get_rank() == 0 else _nobody() as process:
        contenders = {
            "alone": training(signal.SIGSTOP, process),
            "beside a planner": training(signal.SIGCONT, process),
        }
        for _ in range(4):
            contenders["alone"]()
        blocks = interleave(contenders, s.blocks, s.iterations)
    if dist.get_rank() == 0:
        tell(
            {
                "settings": asdict(s),
                "machine": machine(),
                "seconds": {name: spread(values) for name, values in blocks.seconds.items()},
                "slowdown": ratios(blocks.seconds["beside a planner"], blocks.seconds["alone"]),
            }
        )
    ds_dip.shutdown(engine)


def _unpaced(engine: Any, reference: Any) -> Any:
    """The settings of the engine's planner, on one thread and without a pause for training."""
    from ds_dip.planner import PlannerSettings

    return PlannerSettings(
        model=engine.module.model,
        partition=engine.module.partition,
        dataset=reference,
        batch_size=engine.train_batch_size(),
        microbatches=engine.gradient_accumulation_steps(),
        evaluations=1000,
        paced=False,
    )


@contextmanager
def _nobody() -> Iterator[None]:
    yield None


def main() -> None:
    """Run as one rank, or as the planner beside them."""
    if sys.argv[1] == "plan":
        plan_without_end(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        measure(Neighbour(**settings()))


if __name__ == "__main__":
    main()
