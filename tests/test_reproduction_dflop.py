"""DFLOP's evaluation in small: its data, its systems, its figures and its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.parallelism.optimizer import Effort
from ds_dip.planner.ordering import fastest
from ds_dip.reproduction import experiment
from ds_dip.reproduction.catalogue import EXPERIMENTS, parts_of
from ds_dip.reproduction.dflop import ends, evaluation, quality, times
from ds_dip.reproduction.dflop.jobs import MODELS, Case
from ds_dip.reproduction.dflop.mixes import AUDIO, MIXES, draw_mix
from ds_dip.reproduction.dflop.systems import SYSTEMS, Outcome, by_layers, by_parameters, systems
from ds_dip.reproduction.page import page
from ds_dip.reproduction.report import report
from ds_dip.reproduction.running import order, ordered
from ds_dip.reproduction.store import digest
from tests.parallelism_cases import job

ROOT = Path(__file__).resolve().parent.parent
FIXED = ["--models", str(ROOT / "model_configs"), "--devices", str(ROOT / "profiling" / "devices")]
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
    told: list[str] = []
    found = systems(own, lambda problem: fastest(problem, "dip"), SMALL, told=told.append)
    assert list(found) == list(SYSTEMS)
    assert sorted(told) == sorted(SYSTEMS)
    outcomes = {name: one for name, one in found.items() if isinstance(one, Outcome)}
    assert set(outcomes) == set(SYSTEMS)
    assert outcomes["both"].seconds <= min(own.seconds for own in outcomes.values()) * 1.001
    assert outcomes["scheduler"].layout.split(",")[0] == outcomes["megatron"].layout.split(",")[0]
    assert outcomes["optimizer"].layout.split(",")[0] == outcomes["dflop"].layout.split(",")[0]
    assert outcomes["dip"].layout.startswith("separated")
    for one in outcomes.values():
        assert one.memory <= 2e6
        assert 0 <= one.idle < 1
        assert one.bound <= one.seconds * (1 + 1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "mix"),
    [
        ("internvit_qwen_72b", "single image"),
        ("siglip_llama_70b", "video"),
        ("siglip_llama_70b", "multi image"),
        ("siglip_qwen_72b", "multi image"),
    ],
)
def test_the_whole_space_is_not_behind_a_part_of_it_where_layouts_are_hard_to_find(model: str, mix: str) -> None:
    settings = experiment.Settings(False, evaluation.FULL, ROOT / "model_configs", ROOT / "profiling" / "devices")
    rows = {row.system: row.seconds or 1e9 for row in ends.rows_of_case(settings, Case(model, mix, 8), lambda _: None)}
    assert rows["both"] <= min(rows.values())


def test_what_cannot_run_says_why() -> None:
    found = systems(job(1, 4, memory=2e5), lambda problem: fastest(problem, "dip"), SMALL)
    assert found["megatron"] == "no layout of the grid fits"
    assert "fits" in str(found["both"])
    assert found["optimizer"] == found["dflop"]


def test_a_baseline_is_one_chain_over_its_ranks() -> None:
    from ds_dip.parallelism import SEPARATED, Layout, Mesh

    mesh = Mesh(1, 3, 1)
    layout = Layout(SEPARATED, mesh, mesh, 2, (1, 1), "none")
    for cutter in (by_parameters, by_layers):
        ranks = [chunk.rank for chunk in cutter(job(3, 6), layout).chunks]
        assert ranks == sorted(ranks)
        assert set(ranks) == {0, 1, 2}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("dflop") / "report"
    given = ["reproduce", "dflop", "--quick", "--jobs", "1", "--out", str(out), "--json", *FIXED]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return out, document


def test_the_report_is_that_of_the_document(quick: tuple[Path, dict[str, Any]]) -> None:
    out, document = quick
    assert json.loads((out / "report.json").read_text()) == document
    assert (out / "report.md").read_text() == report(document)
    assert (out / "report.html").read_text() == page(document)
    assert {path.stem for path in (out / "parts-quick").iterdir()} == set(parts_of(True, "dflop"))
    assert [own["key"] for own in document["experiments"]] == ["end-to-end", "audio", "scheduler", "optimizer"]
    named = {name for own in document["experiments"] for figure in own["comparisons"] for name in figure["assumptions"]}
    assert named == set(document["assumptions"])
    assert all(own["text"].count("The quick run: ") == 1 for own in document["experiments"])


def test_figures_are_those_of_the_rows(quick: tuple[Path, dict[str, Any]]) -> None:
    _, document = quick
    places = document["experiments"][0]
    own = {row["system"]: row for row in places["rows"]}
    assert list(own) == list(SYSTEMS)
    least, largest, megatron, pytorch = places["comparisons"]
    speeds = [own[name]["seconds"] / own["dflop"]["seconds"] for name in ("megatron", "pytorch")]
    assert (least["ours"], largest["ours"]) == pytest.approx((min(speeds), max(speeds)))
    idle = {name: row["seconds"] * row["values"]["idle"] for name, row in own.items()}
    assert megatron["ours"] == pytest.approx(idle["dflop"] / idle["megatron"])
    assert pytorch["changed"]["objective"] == pytest.approx(idle["both"] / idle["pytorch"])
    # Balanced samples on the same layout do not wait longer for the slowest replica here.
    assert own["scheduler"]["seconds"] <= own["megatron"]["seconds"]
    assert own["both"]["seconds"] <= min(own["dip"]["seconds"], own["dflop"]["seconds"])
    assert all(row["gap"] >= -1e-9 for row in places["rows"])


def test_balancing_is_between_the_bound_and_longest_first(quick: tuple[Path, dict[str, Any]]) -> None:
    _, document = quick
    rows = document["experiments"][2]["rows"]
    for group in {row["group"] for row in rows}:
        own = {row["system"]: row["gap"] for row in rows if row["group"] == group}
        assert 0 <= own["ours"] <= own["lpt"] <= own["round-robin"]
        assert own["ours"] <= 0.01


def test_the_same_command_goes_on(quick: tuple[Path, dict[str, Any]]) -> None:
    out, document = quick
    kept = {path: path.stat().st_mtime_ns for path in (out / "parts-quick").iterdir()}
    again = CliRunner().invoke(cli, ["reproduce", "dflop", "--quick", "--out", str(out), "--json", *FIXED])
    assert json.loads(again.stdout) == document
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_papers_do_not_take_each_others_parts() -> None:
    settings = experiment.Settings(True, evaluation.QUICK, ROOT / "model_configs", ROOT / "profiling" / "devices")
    mine = replace(settings, paper="dflop")
    assert digest(settings) != digest(mine)
    part = parts_of(True, "dflop")["audio"]
    assert ordered(order(mine, part, Path("parts"))) == ("audio", Path("parts"), mine)


def test_the_whole_evaluation_covers_the_papers() -> None:
    parts = parts_of(False, "dflop")
    assert {f"places-{model.replace('_', '-')}" for model in MODELS if model != "qwen2_audio"} <= set(parts)
    assert ends.NODES == (1, 2, 4, 8)
    assert (quality.SIZES[0], quality.SIZES[-1], times.SIZES[-1]) == (64, 2048, 1024)
    assert all((ROOT / "model_configs" / f"dflop_{model}.json").exists() for model in MODELS)
    assert str(Case("qwen2_audio", AUDIO, 1)) == "Qwen2-Audio, audio, 1 node"
    assert len({own.key for own in EXPERIMENTS["dflop"]}) == len(EXPERIMENTS["dflop"])
