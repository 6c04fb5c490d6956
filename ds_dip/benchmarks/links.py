"""A rank of ``ds-dip bench links``: the same plans with posted messages and with blocking ones, on an emulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepspeed import comm as dist

import ds_dip
from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
from ds_dip.ranks import tell
from ds_dip.rehearsal.emulation import Emulation, begun
from ds_dip.rehearsal.worker import WARM_UP, started


def _going_by(emulation: Emulation, transport: str) -> Callable[[], Any]:
    def run() -> Any:
        emulation.use(transport)
        return emulation.engine.train_batch()

    return run


def measure(s: Mapping[str, Any]) -> None:
    """Keep some plans, run them by both transports in turn; rank 0 tells what each took."""
    emulation = started(s, s["config"])
    engine, kept = emulation.engine, []
    for number in range(WARM_UP + s["iterations"] + 1):
        engine.train_batch()
        if number >= WARM_UP:
            kept.append(engine.plan)
    # As many as a block runs, so that every block has the same, and leaves out the same.
    emulation.plans.repeat(kept)
    bubbles: dict[str, float] = {}
    contenders = {name: _going_by(emulation, name) for name in emulation.transports}
    for name, run in contenders.items():
        run()
        bubbles[name] = engine.measured.bubble
        for _ in kept[1:]:
            run()
    blocks = interleave(contenders, s["blocks"], s["iterations"])
    dilation = s["costs"]["dilation"]
    document = {
        "emulated": True,
        "machine": machine(),
        "dilation": dilation,
        "simulated_seconds": sum(plan.makespan for plan in kept[1:]) / len(kept[1:]) / dilation,
        "transports": {
            name: {
                "seconds": spread([value / dilation for value in blocks.seconds[name]]),
                "over_posted": ratios(blocks.seconds[name], blocks.seconds["posted"]),
                "bubble": bubbles[name],
            }
            for name in contenders
        },
    }
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(engine)


def main() -> None:
    """Run as one rank."""
    measure(begun())


if __name__ == "__main__":
    main()
