"""DFLOP's evaluation in small: its data, its systems, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.parallelism.optimizer import Effort
from ds_dip.planner.ordering import fastest
from ds_dip.reproduction.dflop import evaluation
from ds_dip.reproduction.dflop.mixes import AUDIO, MIXES, draw_mix
from ds_dip.reproduction.dflop.systems import Outcome, by_layers, by_parameters, systems
from tests.parallelism_cases import job

ROOT = Path(__file__).resolve().parent.parent
SMALL = Effort(pool=6, batches=1, held_out=2, shown=3)


@pytest.mark.parametrize("mix", [*MIXES, AUDIO])
def test_a_mix_has_what_it_is_called_by(mix: str) -> None:
    for patches in (729, 1024):
        drawn = draw_mix(mix, 300, patches)
        assert drawn == draw_mix(mix, 300, patches)
        module = "audio" if mix == AUDIO else "vision"
        counts = [len(sample.modules[module]) for sample in drawn]
        for sample in drawn:
            assert sum(sample.merged[module]) + sample.loss_tokens == sample.modules["language"][0]
        bounds = {"single image": (1, 5), "multi image": (2, 8), "video": (1, 32), "mixed": (1, 32), AUDIO: (1, 3)}
        low, high = bounds[mix]
        assert low <= min(counts) <= low + 2
        assert max(counts) == high
        assert len({sample.id for sample in drawn}) == 300
    with pytest.raises(ValueError, match="mix is 'text': use one of single image"):
        draw_mix("text", 1, 729)


def test_systems_are_compared_on_the_same_batches() -> None:
    own = job(4, 16, seed=2, memory=2e6)
    found = systems(own, lambda problem: fastest(problem, "dip"), SMALL)
    assert set(found) == set(evaluation.SYSTEMS)
    outcomes = {name: one for name, one in found.items() if isinstance(one, Outcome)}
    assert set(outcomes) == set(evaluation.SYSTEMS)
    assert outcomes["both"].seconds <= min(outcomes["DFLOP"].seconds, outcomes["DIP"].seconds) * 1.001
    assert outcomes["both"].seconds <= outcomes["Megatron-like"].seconds
    assert outcomes["scheduler"].layout.split(",")[0] == outcomes["Megatron-like"].layout.split(",")[0]
    assert all(one.memory <= 2e6 and 0 <= one.idle < 1 for one in outcomes.values())


def test_a_baseline_is_one_chain_over_its_ranks() -> None:
    from ds_dip.parallelism import SEPARATED, Layout, Mesh

    mesh = Mesh(1, 3, 1)
    layout = Layout(SEPARATED, mesh, mesh, 2, (1, 1), "none")
    for cutter in (by_parameters, by_layers):
        ranks = [chunk.rank for chunk in cutter(job(3, 6), layout).chunks]
        assert ranks == sorted(ranks)
        assert set(ranks) == {0, 1, 2}


def test_the_report_has_a_row_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = evaluation.Case("qwen2_audio", AUDIO, 1)
    monkeypatch.setattr(evaluation, "cases", lambda quick: [case])
    fixed = ["--models", str(ROOT / "model_configs"), "--devices", str(ROOT / "profiling" / "devices")]
    result = CliRunner().invoke(cli, ["reproduce", "dflop", "--quick", "--out", str(tmp_path), *fixed])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "report.json").read_text())
    text = (tmp_path / "report.md").read_text()
    assert result.output == text
    assert "| qwen2_audio | audio | 1 | " in text
    (row,) = document["cases"]
    base = row["systems"]["Megatron-like"]["seconds"]
    assert f"({base / row['systems']['DIP']['seconds']:.2f}x)" in text


def test_the_whole_evaluation_names_models_that_are_there() -> None:
    every = evaluation.cases(False)
    assert {case.nodes for case in every} == {1, 2, 4, 8}
    assert {case.mix for case in every} == {*MIXES, AUDIO}
    for case in every:
        assert (ROOT / "model_configs" / f"dflop_{case.model}.json").exists()
