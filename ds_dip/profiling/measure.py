"""One operator of one shape -> a row of the latency table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ds_dip.costs.table import Row, Seconds
from ds_dip.profiling.cases import Case, Outputs, Place
from ds_dip.profiling.memory import kept_bytes, peak_bytes
from ds_dip.profiling.timing import Patience, Sample, note, repeat, timed

#: Copies of an operator run one after another, so that starting and timing a backward are shared among them.
_COPIES = 12
#: Seconds of a forward beyond which one copy is enough.
_LONG = 3e-4


def measure(name: str, shape: dict[str, int], make: Callable[[], Case], patience: Patience) -> Row:
    """Measure forward, both parts of the backward, and bytes.

    The weights' part is what a backward takes longer where weights want gradients; they have some already, as in all
    microbatches but the first.
    """
    first = make()
    once = min(timed(first.run) for _ in range(3))
    copies = [first, *(make() for _ in range(1 if once > _LONG else _COPIES - 1))]
    whole = _both(copies, patience)
    notes = [note(whole, patience)]
    forward, backward = (sample.seconds for sample in whole)
    of_input, of_weight = backward, Seconds()
    if not first.inputs:
        of_input, of_weight = Seconds(), backward
    elif first.weights:
        for case in copies:
            for weight in case.weights:
                weight.requires_grad_(False)
        part = _both(copies, patience)
        notes.append(note(part, patience))
        of_input = part[1].seconds
        of_weight = Seconds(max(0.0, backward.median - of_input.median), max(backward.spread, of_input.spread))
    return Row(
        name=name,
        shape=shape,
        forward=_each(forward, len(copies)),
        backward_input=_each(of_input, len(copies)),
        backward_weight=_each(of_weight, len(copies)),
        kept_bytes=kept_bytes(lambda: _fresh(make)),
        peak_bytes=peak_bytes(lambda: _step(make())),
        repeats=len(whole[0].values),
        note=next(filter(None, notes), ""),
    )


def _each(seconds: Seconds, copies: int) -> Seconds:
    return Seconds(seconds.median / copies, seconds.spread / copies)


def _fresh(make: Callable[[], Case]) -> Outputs:
    return make().run()


def _step(case: Case) -> None:
    outputs = case.run()
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _both(cases: Sequence[Case], patience: Patience) -> tuple[Sample, ...]:
    """Seconds of all forwards, and of one backward through all."""
    outputs: list[torch.Tensor] = []
    gradients = [torch.ones_like(output) for case in cases for output in case.run()]

    def forward() -> None:
        for case in cases:
            outputs.extend(case.run())

    def backward() -> None:
        torch.autograd.backward(outputs, gradients)

    def once() -> tuple[float, float]:
        for case in cases:
            for x in case.inputs:
                x.grad = None
        outputs.clear()
        return timed(forward), timed(backward)

    return repeat(once, patience)


def optimizer_step(elements: int, place: Place, patience: Patience) -> Row:
    """AdamW's step on one flat parameter of so many elements in fp32, as ZeRO-1 keeps them; the forward's column."""
    parameter = torch.nn.Parameter(torch.zeros(elements, device=place.device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-6)
    samples = repeat(lambda: (timed(optimizer.step),), patience)
    (sample,) = samples
    return Row(
        "optimizer_step",
        {"elements": elements},
        forward=sample.seconds,
        repeats=len(sample.values),
        note=note(samples, patience),
    )
