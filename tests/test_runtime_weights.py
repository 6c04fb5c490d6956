"""Weight gradients put off: equal to those of a backward, hooks run, nothing is kept longer than needed."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_dip.runtime.weights import PutOff, let_put_off, putting_off, total_of


def network(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6, bias=bias), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3, bias=bias)).double()


def inputs(*shape: int) -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(*shape, 4, dtype=torch.float64, requires_grad=True)


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("shape", [(5,), (2, 5), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_both_parts_together_are_the_backward(shape: tuple[int, ...], bias: bool) -> None:
    whole, split = network(bias), network(bias)
    let_put_off(split)
    x, y = inputs(*shape), inputs(*shape)
    whole(x).square().sum().backward()
    put_off: PutOff = []
    with putting_off(put_off):
        output = split(y)
    output.square().sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert split[0].weight.grad is None
    assert split[1].weight.grad is not None, "what is no linear layer has its gradients at once"
    total_of(put_off).backward()
    assert not put_off
    for a, b in zip(gradients(whole), gradients(split), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_without_a_list_and_without_a_gradient_of_the_input_nothing_is_put_off() -> None:
    module = network()
    let_put_off(module)
    module(inputs(5)).sum().backward()
    assert module[0].weight.grad is not None
    put_off: PutOff = []
    with putting_off(put_off):
        output = module(inputs(5).detach())
    module.zero_grad()
    output.sum().backward()
    assert module[0].weight.grad is not None, "nobody waits for this backward's end"
    assert [layer for layer, _, _ in put_off] == [module[3]]


def test_frozen_weights_and_biases_get_no_gradient() -> None:
    module = network()
    let_put_off(module)
    module[0].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    put_off: PutOff = []
    with putting_off(put_off):
        output = module(inputs(5))
    output.sum().backward()
    total_of(put_off).backward()
    assert module[0].weight.grad is None
    assert module[3].bias.grad is None
    assert module[3].weight.grad is not None


def test_hooks_on_the_accumulation_run_once_and_a_layer_used_twice_adds_up() -> None:
    module, twin = network(), network()
    let_put_off(module)
    seen = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(seen.append)
    put_off: PutOff = []
    with putting_off(put_off):
        output = module(inputs(5)).sum() + module(2 * inputs(5)).sum()
    output.backward()
    assert len(seen) == 2, "the norm's"
    total_of(put_off).backward()
    assert {id(p) for p in seen} == {id(p) for p in module.parameters()}
    (twin(inputs(5)).sum() + twin(2 * inputs(5)).sum()).backward()
    for a, b in zip(gradients(module), gradients(twin), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_get_the_same_gradients(reentrant: bool) -> None:
    whole, split = network(), network()
    let_put_off(split)
    put_off: PutOff = []

    def run(x: torch.Tensor) -> torch.Tensor:
        with putting_off(put_off):
            return split(x)

    output = checkpoint(run, inputs(5), use_reentrant=reentrant)
    output.square().sum().backward()
    total_of(put_off).backward()
    whole(inputs(5)).square().sum().backward()
    for a, b in zip(gradients(whole), gradients(split), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_names_weights_and_kinds_of_layers_stay() -> None:
    module, other = network(), network()
    let_put_off(module)
    assert isinstance(module[0], nn.Linear)
    assert list(module.state_dict()) == list(other.state_dict())
    other.load_state_dict(module.state_dict())

    class Own(nn.Linear):
        pass

    own = Own(2, 2)
    let_put_off(own)
    assert type(own) is Own, "a linear layer of somebody else's is theirs"


def test_only_a_layers_input_and_its_outputs_gradient_wait() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Tanh())
    let_put_off(module)
    kept = []
    module[1].register_forward_hook(lambda _, __, output: kept.append(weakref.ref(output)))
    put_off: PutOff = []
    with putting_off(put_off):
        output = module(torch.randn(3, 4, requires_grad=True))
    output.sum().backward()
    del output
    gc.collect()
    assert kept[0]() is None
    assert [(tuple(x.shape), tuple(g.shape)) for _, x, g in put_off] == [((3, 4), (3, 4))]
    assert put_off[0][1].grad_fn is None


def test_every_thread_puts_off_to_its_own_list() -> None:
    module = network()
    let_put_off(module)

    def run(_: int) -> int:
        own: PutOff = []
        with putting_off(own):
            output = module(inputs(5))
        output.sum().backward()
        return len(own)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(16))) == {2}
