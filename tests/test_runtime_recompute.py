"""A forward that runs again: exact whatever it draws, one backward, and outputs that are gone in between."""

from __future__ import annotations

import weakref

import torch
from torch.nn import functional

from ds_dip.models.context import Context
from ds_dip.models.spec import Sizes
from ds_dip.runtime.recompute import Again, as_it_was, random_states, roots_of

CPU = torch.device("cpu")


def test_what_draws_from_the_global_state_draws_the_same_again_and_leaves_it_alone() -> None:
    again = Again({}, Context(Sizes((), ()), {}), random_states(CPU))
    first = functional.dropout(torch.ones(100))
    torch.rand(3)
    state = torch.get_rng_state()
    with as_it_was(again, CPU):
        second = functional.dropout(torch.ones(100))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_root_keeps_no_output() -> None:
    x = torch.ones(10, requires_grad=True)
    output, number = x * 2, torch.arange(3)
    seen = weakref.ref(output)
    roots = roots_of([number, output, torch.zeros(2)])
    del output
    assert seen() is None
    assert roots[1] is None
    torch.autograd.backward([roots[0]], [torch.ones(10)])
    assert torch.equal(x.grad, torch.full((10,), 2.0))
