"""The paper's rule, step by step."""

from __future__ import annotations

import pytest

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.models.spec import Sizes
from ds_dip.partition.rule import efficient_size, rule_laps, rule_partition, sub_microbatch_sizes
from tests.partition_cases import QUICKSTART, digits


class PerInstance:
    """``overhead`` seconds a call and ``each`` an instance, whatever the layers."""

    def __init__(self, overhead: float, each: float) -> None:
        self.overhead, self.each = overhead, each

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return self.overhead + self.each * len(sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 0.0

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 0.0

    def transfer(self, bytes: float) -> float:
        return 0.0


def test_the_profiled_sizes_are_powers_of_two_and_what_lies_between() -> None:
    assert sub_microbatch_sizes(13) == (1, 2, 3, 4, 6, 8, 12)
    assert sub_microbatch_sizes(1) == (1,)


@pytest.mark.parametrize(("overhead", "size"), [(0.0, 1), (0.1, 2), (1.0, 12), (100.0, 24)])
def test_b_is_the_smallest_size_with_95_percent_of_the_peak_efficiency(overhead: float, size: int) -> None:
    # Instances per second at B are B / (overhead + B); the peak is at the largest size, 24.
    sizes = sub_microbatch_sizes(24)
    assert efficient_size(QUICKSTART, "vision", PerInstance(overhead, 1.0), digits(), sizes) == size
    rates = {own: own / (overhead + own) for own in sizes}
    assert rates[size] >= 0.95 * max(rates.values())
    assert all(rates[own] < 0.95 * max(rates.values()) for own in sizes if own < size)


@pytest.mark.parametrize(
    ("seconds", "ranks", "laps"),
    [
        ({"vision": 1.0, "language": 1.0}, 4, {"vision": 1, "language": 1}),
        ({"vision": 1.0, "language": 2.9}, 4, {"vision": 1, "language": 2}),
        ({"vision": 3.2, "language": 1.0}, 4, {"vision": 3, "language": 1}),
        ({"vision": 0.1, "language": 0.3}, 4, {"vision": 1, "language": 3}),
        ({"vision": 1.0, "language": 50.0}, 4, {"vision": 1, "language": 8}),
        ({"vision": 0.0, "language": 5.0}, 4, {"vision": 1, "language": 1}),
    ],
)
def test_k_is_how_often_a_module_takes_as_long_as_the_shortest(
    seconds: dict[str, float], ranks: int, laps: dict[str, int]
) -> None:
    assert rule_laps(seconds, {"vision": 65, "language": 34}, ranks) == laps


def test_chunks_have_as_many_layers_as_each_other() -> None:
    workload = digits()
    partition = rule_partition(QUICKSTART, 2, Roofline(QUICKSTART, Rates()), workload, {"vision": 20, "language": 8})
    sizes = {name: [own.stop - own.start for own in partition.of(name)] for name in ("vision", "language")}
    assert all(max(own) - min(own) <= 1 for own in sizes.values())
    limits = dict(partition.sub_microbatch)
    assert limits["vision"] in sub_microbatch_sizes(20)
    assert limits["language"] is None


def test_an_encoder_without_instances_is_left_whole() -> None:
    partition = rule_partition(QUICKSTART, 2, Roofline(QUICKSTART, Rates()), digits(), {"vision": 0, "language": 8})
    assert dict(partition.sub_microbatch)["vision"] is None
