"""Costs from a table: operators summed by the model's description, corrected by whole layers, marked, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.composed import CostError, TableCosts, later_chunks
from ds_dip.costs.layers import Wanted, layer_shape, layer_sizes
from ds_dip.costs.model import sample_seconds
from ds_dip.costs.names import LAYER
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Sizes
from tests.profiling_cases import MODEL, row, sizes, table

COSTS = TableCosts(MODEL, table())
BLOCK = MODEL.module("language").layers[1]
TOKENS = st.lists(st.integers(4, 64), min_size=1, max_size=4)


def measured() -> LatencyTable:
    return table(rows=tuple(replace(r, source="measured") for r in table().rows))


@given(TOKENS)
def test_a_chunk_is_the_sum_of_its_layers(tokens: list[int]) -> None:
    instances = sizes(*tokens)
    for cost in (COSTS.forward, COSTS.backward, COSTS.activation_bytes):
        parts = sum(cost("language", index, index + 1, instances) for index in range(4))
        assert cost("language", 0, 4, instances) == pytest.approx(parts)


@given(TOKENS, st.integers(4, 64))
def test_more_instances_never_cost_less(tokens: list[int], another: int) -> None:
    before, after = sizes(*tokens), sizes(*tokens, another)
    assert COSTS.forward("language", 0, 4, after) >= COSTS.forward("language", 0, 4, before)
    assert COSTS.activation_bytes("language", 0, 4, after) > COSTS.activation_bytes("language", 0, 4, before)


def test_no_instance_costs_what_is_left_of_the_smallest() -> None:
    nothing = Sizes((), ())
    assert 0 < COSTS.forward("language", 0, 4, nothing) < COSTS.forward("language", 0, 4, sizes(4))
    assert sample_seconds(MODEL, COSTS, {"language": sizes(16), "vision": nothing}) > 0


def test_a_frozen_module_computes_no_gradients_of_weights() -> None:
    frozen = replace(MODEL, modules=(replace(MODEL.modules[0], frozen=True), replace(MODEL.modules[1], frozen=True)))
    costs = TableCosts(frozen, table())
    assert costs.backward("vision", 0, 3, sizes(16)) == 0.0
    assert costs.backward("language", 0, 4, sizes(16)) == 0.0
    trained = replace(MODEL, modules=(MODEL.modules[0], replace(MODEL.modules[1], frozen=True)))
    through = TableCosts(trained, table()).backward("language", 0, 4, sizes(16))
    assert 0 < through < COSTS.backward("language", 0, 4, sizes(16))


def test_a_whole_layers_row_corrects_the_sum_of_its_operators() -> None:
    wanted, base = Wanted.of(BLOCK), measured()
    instances = layer_sizes(BLOCK, 16, 4, 1)
    parts = TableCosts(MODEL, base).composed(BLOCK, instances).columns
    whole = Row(
        LAYER + "decoder_block", layer_shape(wanted, 16, 4, 1), 1, Seconds(2 * parts[0]), Seconds(1.5 * parts[1]),
        Seconds(1.5 * parts[2]), kept_bytes=3 * parts[3],
    )  # fmt: skip
    costs = TableCosts(MODEL, replace(base, rows=(*base.rows, whole)))
    forward, of_input, of_weight, kept = costs.layer(BLOCK, instances).columns
    assert (forward, kept) == (pytest.approx(2 * parts[0]), pytest.approx(3 * parts[3]))
    assert of_input + of_weight == pytest.approx(1.5 * (parts[1] + parts[2]))
    # Another packing of the same kind is corrected alike.
    other = costs.layer(BLOCK, sizes(20, 9)).columns[0]
    assert other == pytest.approx(2 * costs.composed(BLOCK, sizes(20, 9)).columns[0])


def test_what_was_not_measured_is_marked() -> None:
    costs = TableCosts(MODEL, measured())
    assert costs.mark("language", 0, 1, sizes(4)) in ("measured", "interpolated")
    assert costs.mark("language", 1, 2, sizes(37)) == "interpolated"
    assert costs.mark("language", 1, 2, sizes(5000)) == "outside the grid"
    assert COSTS.mark("language", 1, 2, sizes(16)) == "roofline"
    assert TableCosts(MODEL, LatencyTable("none", "float32")).mark("vision", 0, 3, sizes(16)) == "roofline"


def test_outside_the_grid_can_be_refused() -> None:
    costs = TableCosts(MODEL, measured(), outside="refuse")
    assert costs.forward("language", 1, 2, sizes(37)) > 0
    with pytest.raises(CostError, match="layer 1 of language .decoder_block. for 5000 tokens in 1 instances"):
        costs.forward("language", 1, 4, sizes(5000))
    with pytest.raises(ValueError, match="outside is 'guess': use one of roofline, refuse"):
        TableCosts(MODEL, measured(), outside="guess")


def test_the_engines_rows_are_added() -> None:
    base = table()
    extra = (
        row("stage:language", 1e-3, 2e-3), row("post:language", 1e-4, 2e-4), row("first:language", 5e-3),
        row("load:language", 1e-2, instances=2), row("load:language", 3e-2, instances=4), row("batch_end", 0.5),
    )  # fmt: skip
    slow = {"language/F": 2.0, "language/B": 3.0, "iteration": 1.5}
    plain, costs = TableCosts(MODEL, base), TableCosts(MODEL, replace(base, rows=(*base.rows, *extra), slowdown=slow))
    three = sizes(8, 8, 8)
    forward, backward = (plain.layers(kind, "language", 1, 3, three) for kind in "FB")
    assert costs.stage("F", "language", 1, 3, three) == pytest.approx(2 * forward + 6e-3)
    assert costs.stage("B", "language", 1, 3, three) == pytest.approx(3 * backward + 2e-3)
    # Blocks read no field; the embedding and the head read one each.
    assert costs.around("F", "language", 1, 3, three) == pytest.approx(1e-4)
    assert costs.around("F", "language", 0, 4, three) == pytest.approx(1e-4 + 2 * 2e-2)
    assert costs.around("B", "language", 0, 4, three) == pytest.approx(2e-4)
    assert costs.forward("language", 1, 3, three) == pytest.approx(2 * forward + 6e-3 + 1e-4)
    assert costs.iteration(2.0) == pytest.approx(1.5 * 2.0 + 0.5)


def test_only_the_first_chunk_of_a_rank_makes_what_all_use() -> None:
    chunks = [Chunk("language", index, index // 2, index % 2, index, index + 1) for index in range(4)]
    partition = Partition(2, (Chunk("vision", 0, 0, 0, 0, 3), *chunks), (("vision", None), ("language", None)))
    assert later_chunks(partition) == {("language", 2), ("language", 3)}
    base = table(rows=(*table().rows, row("first:language", 1.0)))
    known, unknown = TableCosts(MODEL, base, partition=partition), TableCosts(MODEL, base)
    assert known.forward("language", 0, 1, sizes(8)) > 1.0 > known.forward("language", 2, 3, sizes(8))
    assert unknown.forward("language", 2, 3, sizes(8)) > 1.0


def test_two_ranks_share_the_work_and_pay_for_reductions() -> None:
    shared = TableCosts(MODEL, table(), tensor_parallel=2)
    huge = sizes(*(64,) * 64)
    assert shared.activation_bytes("language", 1, 3, huge) < COSTS.activation_bytes("language", 1, 3, huge)


def test_a_transfer_is_interpolated() -> None:
    assert COSTS.transfer(1024) < COSTS.transfer(30000) < COSTS.transfer(10**7)


def test_the_share_outside_of_the_grid_is_told_by_seconds() -> None:
    measured = tuple(replace(one, source="measured") for one in table().rows)
    costs = TableCosts(MODEL, table(rows=measured))
    assert costs.outside_share([("vision", Sizes((16,) * 2, (4,) * 2)), ("language", sizes(10, 20))]) == 0.0
    assert costs.outside_share([("language", sizes(5000))]) == 1.0
    near, far = ("language", sizes(10, 20)), ("language", sizes(5000))
    assert 0.9 < costs.outside_share([near, far]) < 1.0
    assert costs.outside_share([]) == 0.0
