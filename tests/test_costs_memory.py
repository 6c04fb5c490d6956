"""Bytes of layers: what they say is what torch's allocator counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ds_dip.costs.memory import footprint
from ds_dip.models import kinds, token_cross_entropy
from ds_dip.models.build import LayerFactory
from ds_dip.models.context import Context
from ds_dip.models.spec import Layer, Sizes, TensorSpec

GATED, PLAIN = kinds.Width(64, 4, 2, 16, 160, True), kinds.Width(64, 4, 4, 16, 256, False)
EQUAL, RISING, MIXED = ((128,) * 4, (64, 120, 128, 200), (128, 64, 200, 120))
CASES = [
    *((kinds.decoder_block(GATED, 4, 10000), tokens, False) for tokens in (EQUAL, RISING, MIXED)),
    *((kinds.encoder_block(PLAIN, 4), tokens, False) for tokens in (EQUAL, (64, 16, 144, 64))),
    (kinds.encoder_block(GATED, 4), EQUAL, False),
    (kinds.merger(64, 4, 96), (64,) * 8, False),
    (kinds.head(64, 200), EQUAL, True),
    *((kinds.diffusion_block(PLAIN, 4), tokens, False) for tokens in (EQUAL, MIXED)),
    (kinds.diffusion_block(kinds.Width(64, 4, 4, 16, 160, True), 4), MIXED, False),
    (kinds.diffusion_block(kinds.Width(64, 4, 4, 16, 64, False), 4), EQUAL, False),
    (kinds.video_output(64, kinds.Latent(2, 16, 8, 64)), MIXED, False),
]
#: What each layer of a diffusion transformer takes beside the patches: rows of text, and numbers of every instance.
CONDITIONED = ("diffusion_block", "video_output")


def allocated(run: Callable[[], None]) -> dict[str, tuple[int, int]]:
    """Bytes held at a mark, and at most from it to the next, by the allocator's own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events: list[tuple[int, Any]] = []
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            events.append((event.start_ns(), event.nbytes()))
        elif event.name().startswith("at "):
            events.append((event.start_ns(), event.name()))
    held, mark = 0, ""
    marks: dict[str, tuple[int, int]] = {}
    for _, value in sorted(events, key=lambda entry: entry[0]):
        if isinstance(value, str):
            mark, marks[value] = value, (held, held)
        else:
            held += value
            if mark:
                marks[mark] = (marks[mark][0], max(marks[mark][1], held))
    return marks


def mark(name: str) -> None:
    with record_function(f"at {name}"):
        pass


@pytest.mark.parametrize(("layer", "tokens", "loss"), CASES)
@pytest.mark.parametrize("selective", [False, True])
def test_a_layer_keeps_and_needs_what_the_allocator_counts(
    layer: Layer, tokens: tuple[int, ...], loss: bool, selective: bool
) -> None:
    rows, width = sum(tokens), layer.options["hidden"]
    sizes = Sizes(tokens, tuple(size // layer.options.get("merge", 1) for size in tokens))
    if layer.kind in CONDITIONED:
        sizes = Sizes(tokens, tuple(range(8, 8 + len(tokens))))
    built = LayerFactory(layer, 1, False)()
    labels = {"labels": torch.zeros(rows, dtype=torch.int64)} if loss else {}
    context = Context(sizes, labels, selective=selective)
    given = [torch.randn(rows, width)]
    if layer.kind in CONDITIONED:
        given += [torch.randn(sum(sizes.merged), width), torch.randn(len(tokens), kinds.MODULATIONS * width)]

    def run() -> None:
        x = [own.clone().requires_grad_() for own in given]
        mark("forward")
        y = built(tuple(x) if layer.kind in CONDITIONED else x[0], context)
        # Text and modulation go on as they are.
        y = y[0] if isinstance(y, tuple) else y
        if loss:
            y = token_cross_entropy(y, context)
        mark("kept")
        gradient = torch.ones_like(y)
        root = torch.autograd.graph.get_gradient_edge(y)
        output = 4 * y.numel()
        del y
        mark("backward")
        torch.autograd.backward([root], [gradient])
        mark("end")
        outputs.append(output)

    outputs: list[int] = []
    run()  # constants are made, and the weights have gradients from now on
    marks = allocated(run)
    predicted = footprint(layer, sizes, "float32", loss=loss)
    # The input was there before, and labels are the dataset's; the gradient of the output came in.
    beside = 4 * sum(own.numel() for own in (given if layer.kind == "diffusion_block" else given[:1]))
    beside += 8 * rows if loss else 0
    kept = (predicted.selective if selective else predicted.kept) - beside
    before = marks["at forward"][0]
    assert marks["at backward"][0] - outputs[-1] - before == pytest.approx(kept, rel=0.01)
    workspace = predicted.backward + (predicted.recomputed if selective else 0.0)
    assert marks["at backward"][1] - outputs[-1] - before == pytest.approx(kept + workspace, rel=0.02)


@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float64"])
def test_more_instances_never_need_less_and_none_nothing_to_keep(compute: str) -> None:
    for (layer, tokens, loss), (less, more) in itertools.product(CASES, [(1, 2), (2, 4)]):
        merge = layer.options.get("merge", 1)
        some, all_ = (Sizes(tokens[:n], tuple(size // merge for size in tokens[:n])) for n in (less, more))
        one, two = (footprint(layer, sizes, compute, loss=loss) for sizes in (some, all_))
        assert 0 < one.selective <= one.kept
        assert (one.selective, one.backward, one.forward) <= (two.selective, two.backward, two.forward)
        assert footprint(layer, Sizes((), ()), compute, loss=loss).kept == 0


def test_a_layer_of_ones_own_tells_what_it_keeps() -> None:
    output = (TensorSpec(("tokens", 8)),)
    plain = Layer("mine", output, options={"flops_per_token": 1, "kept_per_token": 12})
    lean = Layer("mine", output, options={**plain.options, "selective_per_token": 5})
    sizes = Sizes((10,), (10,))
    assert footprint(plain, sizes, "float32").selective == footprint(plain, sizes, "float32").kept == 480
    assert (footprint(lean, sizes, "float32").selective, footprint(lean, sizes, "float32").recomputed) == (200, 280)
