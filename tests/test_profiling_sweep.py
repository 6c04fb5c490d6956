"""Which shapes are measured: all operators of the model, from the smallest to the largest that its stages see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.layers import layer_place, wanted_layers
from ds_dip.costs.names import LAYER, RECOMPUTED
from ds_dip.costs.operators import OPERATORS
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.files import FileError
from ds_dip.models import load_model
from ds_dip.models.spec import Sizes
from ds_dip.profiling.sweep import Extent, Sweep, between, layer_lines, link_lines, operator_lines, read_sweep
from tests.profiling_cases import CLIPS, MODEL, SWEEP, sizes

ROOT = Path(__file__).parent.parent
DOCUMENT: dict[str, Any] = {
    "format": "ds-dip/sweep", "version": 1,
    "modules": {"vision": {"sizes": [16, 16], "instances": 4}, "language": {"sizes": [4, 64], "instances": 4}},
    "transfer_bytes": [1024, 65536], "collective_bytes": [1024, 65536], "optimizer_elements": [100, 10000],
}  # fmt: skip


def test_every_stage_of_the_sweeps_sizes_is_inside_the_grid() -> None:
    rows: dict[object, Row] = {}
    for line in operator_lines(MODEL, SWEEP):
        for point in line.points:
            row = Row(line.name, line.shape(point), forward=Seconds(1.0))
            rows[row.key] = row
    costs = TableCosts(MODEL, LatencyTable("here", "float32", rows=tuple(rows.values())))
    for tokens in ((4,), (64,), (10, 20, 30), (4, 4, 60)):
        assert costs.mark("language", 0, 4, sizes(*tokens)) in ("measured", "interpolated")
    for count in (1, 2, 4):
        images = Sizes((16,) * count, (4,) * count)
        assert costs.mark("vision", 0, 3, images) in ("measured", "interpolated")


def test_lines_name_known_operators_and_start_at_both_ends() -> None:
    lines = operator_lines(MODEL, SWEEP)
    assert {line.name for line in lines} <= set(OPERATORS)
    assert len({(line.name, line.fixed, line.axis) for line in lines}) == len(lines)
    assert all(list(line.points) == sorted(set(line.points)) for line in lines)


def test_tensor_parallel_degrees_have_rows_of_their_own(tmp_path: Path) -> None:
    sweep = read_sweep_of(DOCUMENT | {"tensor_parallel": [1, 2]}, tmp_path)
    wide = {dict(line.fixed)["outputs"] for line in operator_lines(MODEL, sweep)
            if line.name == "linear" and line.tensor_parallel == 2}  # fmt: skip
    assert wide
    assert {line.tensor_parallel for line in operator_lines(MODEL, sweep)} == {1, 2}


def read_sweep_of(document: dict[str, Any], folder: Path) -> Any:
    path = folder / "sweep.json"
    path.write_text(json.dumps(document))
    return read_sweep(path, MODEL)


def test_whole_layers_are_measured_once_a_kind_and_named_so_that_costs_find_them() -> None:
    lines = layer_lines(MODEL, SWEEP)
    names = {wanted.name for wanted in wanted_layers(MODEL).values()}
    assert {name for _, name in lines} == names
    for line, name in lines:
        if line.name.startswith(LAYER):
            place = layer_place(Row(line.name, line.shape(2)))
            assert place is not None
            assert place[0] == name
    assert {line.name for line, _ in lines if line.name.startswith(RECOMPUTED)} == {
        "recomputed:encoder_block", "recomputed:decoder_block"
    }  # fmt: skip


def test_links_need_two_ranks_and_grow_with_them() -> None:
    assert link_lines(SWEEP, 1) == []
    groups = {dict(line.fixed).get("group") for line in link_lines(SWEEP, 4)}
    assert groups == {None, 2, 4}


def test_points_between_two_ends() -> None:
    assert between(1, 100, 1) == (1, 10, 100)
    assert between(5, 5, 3) == (5,)


def test_the_sweep_that_comes_along_fits_its_model() -> None:
    model = load_model(ROOT / "model_configs" / "quickstart.json")
    sweep = read_sweep(ROOT / "profiling" / "sweeps" / "quickstart.json", model)
    assert operator_lines(model, sweep)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modules": {"vision": {}}}, "expected the model's vision, language"),
        ({"modules": DOCUMENT["modules"] | {"vision": {"sizes": [1, 2]}}}, "expected sizes and instances"),
        ({"modules": DOCUMENT["modules"] | {"vision": {"sizes": [2, 1], "instances": 1}}}, "the smaller one first"),
        ({"transfer_bytes": [0, 5]}, "expected whole numbers of at least 1"),
        ({"transfer_bytes": 5}, "expected the smallest and the largest"),
        ({"tensor_parallel": []}, "expected a list of degrees"),
        ({"speed": 1}, "the file has the unknown field 'speed'"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FileError) as refused:
        read_sweep_of(DOCUMENT | changes, tmp_path)
    assert said in str(refused.value)


def test_a_diffusion_transformer_is_measured_by_its_operators() -> None:
    sweep = Sweep({"text": Extent(4, 16, 4), "video": Extent(8, 64, 4)}, (1024, 65536), (1024, 65536), (100, 10000))
    lines = operator_lines(CLIPS, sweep)
    crossed = {dict(line.fixed)["text"]: line.points for line in lines if line.name == "cross_attention"}
    assert set(crossed) == {4, 16}
    assert all(points[0] == 8 and points[-1] > 64 for points in crossed.values())
    assert {"modulate", "gate", "latent_embedding", "attention"} <= {line.name for line in lines}
    rows: dict[object, Row] = {}
    for line in lines:
        for point in line.points:
            row = Row(line.name, line.shape(point), forward=Seconds(1.0))
            rows[row.key] = row
    costs = TableCosts(CLIPS, LatencyTable("a device", "float32", rows=tuple(rows.values())))
    for layer in range(4):
        assert costs.mark("video", layer, layer + 1, Sizes((16, 32, 16), (5, 9, 4))) in ("measured", "interpolated")
    assert not [line for line, _ in layer_lines(CLIPS, sweep) if "video" in line.name or "diffusion" in line.name]
