"""The search: never worse than the rule, the same every time, within what is fixed and what memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.roofline import Rates
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import PartitionError, check_partition
from ds_dip.partition import make_partition
from ds_dip.partition.chunks import chunk_ranks
from ds_dip.partition.memory import Memory
from ds_dip.partition.search import Found, search
from ds_dip.partition.space import SearchOptions
from ds_dip.planner.ordering import schedulers
from tests.partition_cases import QUICKSTART, digits, model_of, random_workload, scorer

RATES = st.sampled_from([Rates(layer_overhead=0.0), Rates(), Rates(layer_overhead=5e-4), Rates(link=1e6)])


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 50), min_size=3, max_size=7),
    st.lists(st.integers(1, 50), min_size=3, max_size=7),
    st.integers(1, 3),
    st.integers(0, 10**6),
    RATES,
)
def test_the_answer_is_a_partition_that_is_never_slower_than_the_rules(
    vision: list[int], language: list[int], ranks: int, seed: int, rates: Rates
) -> None:
    model = model_of(vision=[1000 * own for own in vision], language=[1000 * own for own in language])
    found = search(scorer(random_workload(model, seed), rates, model), ranks, SearchOptions(evaluations=60))
    assert found.rule is not None
    assert found.best.mean <= found.rule.mean
    assert [own.mean for own in found.candidates] == sorted(own.mean for own in found.candidates)
    for candidate in found.candidates:
        check_partition(model, candidate.partition)
        # Scored again by itself, it is what the search says.
        again = scorer(random_workload(model, seed), rates, model).score(candidate.partition, candidate.split)
        assert again == candidate


@pytest.mark.parametrize("rates", [Rates(layer_overhead=0.0), Rates(), Rates(layer_overhead=5e-4)])
@pytest.mark.parametrize("seed", [3, 7])
def test_every_partition_of_a_small_model_is_at_most_a_hundredth_faster(seed: int, rates: Rates) -> None:
    model = model_of(vision=[5000, 40000, 40000, 9000], language=[1000, 30000, 30000, 30000, 80000])
    own = scorer(random_workload(model, seed), rates, model)
    every = []
    for vision, language, limit, placement in product(cuts(4), cuts(5), (None, 1, 2, 3, 4), ("looped", "zigzag")):
        parts = {"vision": vision, "language": language}
        score = own.score(make_partition(model, 2, None, {"vision": limit}, parts=parts, placement=placement))
        assert score is not None
        every.append(score.mean)
    assert search(own, 2, SearchOptions(evaluations=10**6)).best.mean <= 1.01 * min(every)


def cuts(layers: int) -> Iterator[list[int]]:
    """Every way to make 2 or 4 chunks of so many layers."""
    for chunks in (2, 4):
        for bounds in combinations(range(1, layers), chunks - 1):
            yield [stop - start for start, stop in pairwise((0, *bounds, layers))]


def test_the_best_and_the_rule_are_scored_again_as_the_planner_schedules() -> None:
    own = scorer()
    final = own.by(schedulers("dip", 50)[1])
    found = search(own, 2, SearchOptions(evaluations=100, shown=3), None, final)
    assert found.rule is not None
    assert len(found.candidates) == 3
    for score in (found.rule, *found.candidates):
        assert final.score(score.partition, score.split) == score
        plain = own.score(score.partition)
        assert plain is not None
        assert score.mean <= plain.mean * (1 + 1e-9)
    assert found.best.mean <= found.rule.mean


@pytest.mark.parametrize("placement", ["looped", "zigzag"])
def test_a_fixed_placement_is_kept(placement: str) -> None:
    for candidate in find(placements=(placement,), evaluations=100).candidates:
        own = candidate.partition
        chunks = {name: len(own.of(name)) for name in ("vision", "language")}
        homes = chunk_ranks(QUICKSTART, chunks, 2, placement)
        assert {name: tuple(chunk.rank for chunk in own.of(name)) for name in chunks} == homes


def test_both_placements_are_searched() -> None:
    # Messages that take as long as stages make turning chains win.
    slow = scorer(rates=Rates(layer_overhead=3e-4, link_latency=5e-3))
    both = search(slow, 2).best.mean
    assert both == min(search(slow, 2, SearchOptions(placements=(own,))).best.mean for own in ("looped", "zigzag"))
    assert both < search(slow, 2, SearchOptions(placements=("looped",))).best.mean


def test_unknown_placements_are_refused() -> None:
    with pytest.raises(ValueError, match=r"placements are \('ring',\): name some of looped, zigzag"):
        find(placements=("ring",))


def find(**options: object) -> Found:
    return search(scorer(), 2, SearchOptions(**options))  # type: ignore[arg-type]


def test_the_same_inputs_give_the_same_answer() -> None:
    assert find() == find()


def test_the_budget_ends_the_search_but_the_rule_is_scored() -> None:
    small, large = find(evaluations=1), find()
    assert small.schedules < large.schedules
    assert small.rule == large.rule
    assert large.best.mean <= small.best.mean <= small.rule.mean  # type: ignore[union-attr]


def test_progress_counts_schedules_and_the_best_only_falls() -> None:
    told: list[tuple[int, int, float]] = []
    found = search(scorer(), 2, SearchOptions(), lambda *now: told.append(now))
    assert [made for made, _, _ in told] == sorted(made for made, _, _ in told)
    assert [best for _, _, best in told] == sorted((best for _, _, best in told), reverse=True)
    assert (told[-1][0], told[-1][2]) == (found.schedules, found.best.mean)


def test_on_a_processor_whole_microbatches_beat_small_ones() -> None:
    # The quickstart's batches: 64 samples in 8 microbatches.
    own = scorer(digits(batch_size=64, microbatches=8))
    looped = ("looped",)
    whole = SearchOptions(laps={"vision": 1, "language": 1}, sub_microbatch={"vision": None}, placements=looped)
    cut = SearchOptions(laps={"vision": 2, "language": 2}, sub_microbatch={"vision": 8}, placements=looped)
    assert search(own, 2, whole).best.mean < search(own, 2, cut).best.mean
    assert dict(search(own, 2).best.partition.sub_microbatch)["vision"] is None


def test_what_is_fixed_is_kept_and_the_rule_is_scored_beside_it() -> None:
    parts = {"language": (1, 3, 3, 1)}
    found = find(sub_microbatch={"vision": 3}, laps={"vision": 2}, parts=parts)
    assert found.rule is not None
    for candidate in found.candidates:
        chain = candidate.partition.of("language")
        assert tuple(own.stop - own.start for own in chain) == parts["language"]
        assert candidate.partition.of("vision")[-1].segment == 1
        assert dict(candidate.partition.sub_microbatch)["vision"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"laps": {"vision": 9}}, "set its laps to 3"),
        ({"laps": {"audio": 1}}, "laps names audio"),
        ({"parts": {"language": (4, 3)}}, "sum 7"),
        ({"sub_microbatch": {"language": 2}}, "never cut"),
    ],
)
def test_what_is_fixed_must_fit_the_model(options: dict[str, object], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        find(**options)


@pytest.mark.parametrize("option", ["evaluations", "most_laps", "shown"])
def test_counts_below_one_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 0"):
        find(**{option: 0})


def test_fewer_layers_than_ranks_are_refused_with_the_way_out() -> None:
    model = model_of(vision=[1] * 2, language=[1] * 9)
    with pytest.raises(PartitionError, match=r"vision has 2 layers, but 4 ranks x 1 laps.*at most 2 pipeline ranks"):
        search(scorer(random_workload(model, 0), model=model), 4)


def test_memory_rules_out_what_does_not_fit() -> None:
    free = search(scorer(digits(microbatches=1)), 2)
    used = max(map(sum, zip(free.best.state, free.best.activations, strict=True)))
    memory = Memory(bytes=0.7 * used, headroom=0.0, link_depth=1)
    tight = search(scorer(digits(microbatches=8), memory=memory), 2)
    for candidate in tight.candidates:
        assert max(map(sum, zip(candidate.state, candidate.activations, strict=True))) <= 0.7 * used


def test_nothing_that_fits_is_told_with_the_numbers_and_the_ways_out() -> None:
    with pytest.raises(PartitionError, match=r"no partition of quickstart on 2 ranks fits: rank 0 holds .*use more"):
        search(scorer(memory=Memory(bytes=1e6)), 2)


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_search_with_memory_strategies_is_never_slower_than_without(share: float) -> None:
    batch = digits(batches=1)
    free = search(scorer(batch), 2, SearchOptions(evaluations=1)).best
    memory = Memory(limits=tuple(share * max(free.activations) for _ in range(2)))
    own = scorer(batch, memory=memory, strategies=STRATEGIES).by(schedulers("dip", 60)[0])
    options = SearchOptions(evaluations=12, most_laps=2)
    found = search(own, 2, options)
    assert found.rule is None or found.best.mean <= found.rule.mean
    try:
        plain = search(scorer(batch, memory=memory), 2, options)
    except PartitionError:
        return
    assert found.best.mean <= plain.best.mean * (1 + 1e-9)
