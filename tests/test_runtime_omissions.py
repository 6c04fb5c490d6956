"""What a step's loss is divided by once broken samples are left out; among ranks: distributed/test_conversations.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ds_dip.data import SampleMetadata
from ds_dip.data.faults import Fault, Lost
from ds_dip.models.spec import Sizes
from ds_dip.planning.batch import Batch, Microbatch
from ds_dip.runtime.omissions import Omissions
from tests.order_cases import Sized


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Broken(Sized):
    """Samples of 5 tokens, of which some are broken."""

    finds_faults = True

    def __init__(self, *broken: str) -> None:
        super().__init__([(0, 5)] * 8)
        self.broken, self.left_out, self.asked = set(broken), set[str](), list[list[str]]()

    def faults(self, samples: Any, fields: Any) -> list[Fault]:
        self.asked.append(list(samples))
        return [Fault(own, f"line {own}: broken") for own in samples if own in self.broken - self.left_out]

    def leave_out(self, samples: Any) -> None:
        self.left_out |= set(samples)

    def lost(self, samples: Any) -> Lost:
        own = self.left_out & set(samples)
        return Lost(5 * len(own), len(own))


def batch(step: int, *samples: int, loss: str = "tokens") -> Batch:
    metadata = tuple(SampleMetadata(f"s{index}", {"language": (5,)}, 5) for index in samples)
    sizes = {"language": Sizes((5,) * len(samples), (5,) * len(samples))}
    count = len(samples) * (5 if loss == "tokens" else 1)
    return Batch(step, (Microbatch(metadata, sizes, {"language": ((0, len(samples)),)}),), count)


def omissions(loss: str = "tokens", fields: tuple[str, ...] = ("tokens",)) -> Omissions:
    return Omissions(fields, loss, counts=True, device=torch.device("cpu"))


def test_whole_batches_are_as_they_are() -> None:
    own, dataset = omissions(), Broken("s7")
    assert own.agree(dataset, batch(0, 1, 2)) == 10
    assert dataset.asked == [["s1", "s2"]]
    assert own.faults == []


@pytest.mark.parametrize(("loss", "counts"), [("tokens", [10, 15, 5]), ("samples", [2, 3, 1])])
def test_what_is_broken_counts_for_nothing_whenever_it_comes(loss: str, counts: list[int]) -> None:
    own, dataset = omissions(loss), Broken("s2")
    batches = [(1, 2, 3), (4, 5, 6), (2, 3)]
    assert [own.agree(dataset, batch(step, *samples, loss=loss)) for step, samples in enumerate(batches)] == counts
    assert own.faults == [Fault("s2", "line s2: broken")]
    assert dataset.left_out == {"s2"}


def test_a_rank_that_loads_nothing_looks_at_nothing() -> None:
    own, dataset = omissions(fields=()), Broken("s2")
    assert own.agree(dataset, batch(0, 2)) == 5
    assert dataset.asked == []


def test_a_batch_of_nothing_else_ends_the_run() -> None:
    own, dataset = omissions(), Broken("s1", "s2")
    with pytest.raises(ValueError, match=r"step 3 has nothing left to learn from: .* newest since line s2: broken"):
        own.agree(dataset, batch(3, 1, 2))


def test_a_dataset_that_finds_none_is_not_asked() -> None:
    dataset = Broken("s1")
    dataset.finds_faults = False
    assert omissions().agree(dataset, batch(0, 1)) == 5
    assert omissions().agree(Sized([(0, 5)]), batch(0, 1)) == 5
    assert dataset.asked == []
