"""``ds-dip reproduce dip --quick``: golden figures, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.reproduction.dip import total
from ds_dip.reproduction.published import H20
from ds_dip.reproduction.report import report
from ds_dip.reproduction.results import (
    ASSUMPTIONS,
    OURS,
)

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"


#: Throughput of each figure in the order of the document; a change of more than 5 % of one is a change to explain.
GOLDEN: dict[str, list[float]] = {
    "ablation": [1.293, 1.797, 1.945, 1.945],
    "end_to_end": [0.847, 1.964, 0.867, 1.422],
    "h20": [1.591, 1.938],
    "unlimited": [1.309, 1.398, 1.413, 1.413],
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("quick") / "report"
    models, devices = map(str, FOLDERS)
    arguments = ["reproduce", "dip", "--quick", "--json", "--out", str(out), "--models", models, "--devices", devices]
    return CliRunner().invoke(cli, arguments), out


@pytest.fixture(scope="module")
def document(quick: tuple[Result, Path]) -> dict[str, Any]:
    result, _ = quick
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_quick_run_finds_what_it_found(document: dict[str, Any]) -> None:
    groups = {**document["comparisons"], **document["explained"]}
    found = {name: [own["ours"] for own in group] for name, group in groups.items()}
    assert found.keys() == GOLDEN.keys()
    for name, values in GOLDEN.items():
        assert found[name] == pytest.approx(values, rel=0.05), name


def test_as_many_systems_are_simulated_as_the_bar_counts(document: dict[str, Any]) -> None:
    assert total(quick=True) == sum(map(len, document["results"].values()))


def test_what_the_method_promises_holds_in_the_quick_run(document: dict[str, Any]) -> None:
    for name in ("ablation", "unlimited"):
        means = {own["system"]: own["mean_s"] for own in document["results"][name]}
        assert means["interleaving"] >= means["reordering"] >= means["memory"]
    for model in document["models"]:
        means = {own["system"]: own["mean_s"] for own in document["results"]["end_to_end"] if own["model"] == model}
        assert means.keys() == {"fsdp", "megatron", "static", "optimus", "balanced", "rule", OURS}
        assert means[OURS] < min(means[name] for name in ("megatron", "static", "optimus", "balanced"))
    assert all(own["bound_gap"] is None or own["bound_gap"] >= 0 for g in document["results"].values() for own in g)


def test_the_report_tells_differences_first(quick: tuple[Result, Path], document: dict[str, Any]) -> None:
    _, out = quick
    assert json.loads((out / "report.json").read_text()) == document
    text = (out / "report.md").read_text()
    assert text == report(document)
    first, _, rest = text.partition("## What is not here")
    every = [own for group in document["comparisons"].values() for own in group]
    assert f"{sum(not own['agrees'] for own in every)} of {len(every)} figures" in first
    assert "Without a memory limit, so that nothing is computed again, 4 of 4 figures of the ablation" in first
    for own in every:
        assert own["agrees"] or own["what"] in first
        assert set(own["assumptions"]) <= set(ASSUMPTIONS)
    assert all(missing in rest for missing in document["missing"])
    assert all(own["title"] in rest for group in document["results"].values() for own in group)


def test_what_was_not_simulated_is_told(document: dict[str, Any]) -> None:
    own = document["comparisons"]["h20"][0] | {"ours": None, "deviation": None, "agrees": False}
    row = document["results"]["h20"][0] | {"mean_s": None, "refusal": "does not fit"}
    changed = document | {
        "comparisons": document["comparisons"] | {"h20": [own]},
        "results": document["results"] | {"h20": [row]},
    }
    text = report(changed)
    assert f"{H20['fsdp'].what}: not simulated" in text
    assert "| does not fit |" in text


def test_missing_descriptions_are_one_sentence(tmp_path: Path) -> None:
    arguments = ["reproduce", "dip", "--quick", "--out", str(tmp_path / "out"), "--models", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "vlm_s.json" in result.output
    assert "Traceback" not in result.output
