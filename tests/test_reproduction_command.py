"""``ds-dip reproduce dip --quick``: golden figures, the report's files, and runs that go on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.reproduction import charts
from ds_dip.reproduction.catalogue import parts_of
from ds_dip.reproduction.convergence import QUICK_EXACT, QUICK_LIMIT
from ds_dip.reproduction.page import page
from ds_dip.reproduction.report import report
from ds_dip.reproduction.systems import OURS, SYSTEMS
from ds_dip.reproduction.tables import drawings, every

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"


#: Every figure in the order of the document; a change of more than 5 % of one is a change to explain. None is what
#: depends on how fast the machine is.
GOLDEN: dict[str, list[float | None]] = {
    "motivation": [0.1667, 0.2337, 0.1899],
    "end-to-end": [0.8388, 1.946, 0.8667, 1.422],
    "h20": [1.591, 1.938],
    "ablation": [1.293, 1.797, 1.945, 1.946],
    "varying": [1.782, 1.575, 1.625],
    "cutting": [0.2304, 0.2158, 4.0, 0.0],
    "search": [None, None],
    "memory": [0.1833, 1.61],
    "scale": [0.2561],
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("quick") / "report"
    return CliRunner().invoke(cli, arguments(out, "--json", "--jobs", "1")), out


def arguments(out: Path, *more: str) -> list[str]:
    models, devices = map(str, FOLDERS)
    return ["reproduce", "dip", "--quick", "--out", str(out), "--models", models, "--devices", devices, *more]


@pytest.fixture(scope="module")
def document(quick: tuple[Result, Path]) -> dict[str, Any]:
    result, _ = quick
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    (part,) = (own for own in document["experiments"] if own["key"] == key)
    return list(part["rows"])


def test_the_quick_run_finds_what_it_found(document: dict[str, Any]) -> None:
    found = {own["key"]: [figure["ours"] for figure in own["comparisons"]] for own in document["experiments"]}
    assert found.keys() == GOLDEN.keys()
    for name, values in GOLDEN.items():
        for ours, golden in zip(found[name], values, strict=True):
            assert golden is None or ours == pytest.approx(golden, rel=0.05, abs=0.01), name


def test_every_schedule_has_its_distance_from_its_lower_bound(document: dict[str, Any]) -> None:
    for part in document["experiments"]:
        for row in part["rows"]:
            if row["seconds"] is None:
                assert row["notes"]["refusal"]
            elif row["system"] in ("fsdp", "exposed"):
                assert row["gap"] is None
            else:
                assert row["gap"] >= -1e-9


def test_what_the_method_promises_holds_in_the_quick_run(document: dict[str, Any]) -> None:
    ablated = rows(document, "ablation")
    for group in {row["group"] for row in ablated}:
        means = {row["system"]: row["seconds"] for row in ablated if row["group"] == group}
        assert means["interleaving"] >= means["reordering"] >= means["memory"]
    ends = rows(document, "end-to-end")
    for group in {row["group"] for row in ends}:
        means = {row["system"]: row["seconds"] for row in ends if row["group"] == group}
        assert means.keys() == SYSTEMS.keys()
        assert means["exposed"] > means["fsdp"]
        assert means[OURS] < min(means[name] for name in ("megatron", "static", "optimus", "balanced"))
    searched = {row["system"]: row for row in rows(document, "search") if row["group"] == "methods"}
    assert searched["portfolio"]["seconds"] <= searched["dfs"]["seconds"]
    assert searched["portfolio"]["gap"] < 0.05
    iterations = rows(document, "varying")
    assert all(row["speed"] > 1 for row in iterations if row["system"] == "rule")
    memory = {row["system"]: row["values"] for row in rows(document, "memory")}
    assert memory["equal"]["peak"] <= memory["optimus"]["peak"] * 1.05
    dealt = {row["system"]: row["values"] for row in rows(document, "scale")}
    assert dealt["even"]["heaviest"] < dealt["rule"]["heaviest"]
    assert all(0 < own["MFU"] < 1 for own in dealt.values())


def test_the_report_tells_differences_first(quick: tuple[Result, Path], document: dict[str, Any]) -> None:
    _, out = quick
    assert json.loads((out / "report.json").read_text()) == document
    text = (out / "report.md").read_text()
    assert text == report(document)
    first, _, rest = text.partition("## What is not here")
    for own in every(document):
        assert own["agrees"] or own["what"] in first
        assert set(own["assumptions"]) | set(own["changed"]) <= set(document["assumptions"])
        assert set(own["changed"]) <= set(own["assumptions"])
    assert document["calibration"]["text"] in first
    named = {name for own in every(document) for name in own["assumptions"]}
    assert named == set(document["assumptions"])
    assert all(missing in rest for missing in document["missing"])
    assert all(f"## {own['title']}" in rest and own["text"] in rest for own in document["experiments"])
    shown = re.findall(r"\]\((plots/[^)]+)\)", text)
    assert sorted(shown) == sorted(f"plots/{name}.svg" for name in drawings(document))
    assert all((out / name).read_text().startswith("<svg") for name in shown)


def test_the_page_needs_nothing_else(quick: tuple[Result, Path], document: dict[str, Any]) -> None:
    _, out = quick
    text = (out / "report.html").read_text()
    assert text == page(document)
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    assert "<script" not in text
    assert "prefers-color-scheme:dark" in text
    assert text.count("<svg") == len(drawings(document))
    first, _, _ = text.partition('id="missing"')
    for own in every(document):
        assert own["agrees"] or own["what"].replace("'", "&#x27;") in first
    for own in document["experiments"]:
        assert f'id="{own["key"]}"' in text


def test_the_quick_run_says_what_it_leaves_out(document: dict[str, Any]) -> None:
    told = {own["key"]: own["text"].partition(" The quick run: ")[2] for own in document["experiments"]}
    assert {key for key, text in told.items() if not text} == {"motivation", "memory"}
    (varying,) = (own for own in document["experiments"] if own["key"] == "varying")
    groups = {row["group"] for row in varying["rows"] if "without" not in row["group"]}
    assert told["varying"].startswith(f"{len(groups)} iterations")
    (proven,) = (own for own in every(document) if own["what"].startswith("most microbatches"))
    assert proven["where"].startswith(f"{QUICK_LIMIT:g} s each, one core")
    assert proven["where"].endswith("and no more were tried") == (proven["ours"] == QUICK_EXACT[-1])


def test_the_same_command_goes_on_with_what_is_there(quick: tuple[Result, Path], document: dict[str, Any]) -> None:
    _, out = quick
    keys = set(parts_of(quick=True))
    assert {path.stem for path in (out / "parts-quick").iterdir()} == keys
    kept = {path: path.stat().st_mtime_ns for path in (out / "parts-quick").iterdir() if path.stem != "motivation"}
    (out / "parts-quick" / "motivation.json").write_text("{")
    again = CliRunner().invoke(cli, arguments(out, "--json"))
    assert json.loads(again.stdout) == document
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_an_interrupted_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ds_dip.reproduction.dip.run_parts", stopped)
    result = CliRunner().invoke(cli, arguments(tmp_path / "out"))
    assert result.exit_code == 130
    count = len(parts_of(quick=True))
    assert (
        f"interrupted: 0 of {count} parts are in {tmp_path / 'out' / 'parts-quick'}; the same command" in result.output
    )
    assert not (tmp_path / "out" / "report.md").exists()


def test_what_was_not_simulated_is_told(document: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(document))
    part = next(own for own in changed["experiments"] if own["key"] == "h20")
    part["comparisons"][0] |= {"ours": None, "deviation": None, "agrees": False, "changed": {}}
    part["rows"][0] |= {"seconds": None, "speed": None, "gap": None, "notes": {"refusal": "does not fit"}}
    for text in (report(changed), page(changed)):
        assert "not simulated" in text
        assert "does not fit" in text


def test_missing_descriptions_are_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["reproduce", "dip", "--quick", "--out", str(tmp_path / "out"), "--models", str(tmp_path)]
    )
    assert result.exit_code == 2
    assert re.search(r"(vlm|t2v)_\w+.json", result.output)
    assert "Traceback" not in result.output
    none = str(tmp_path / "none")
    result = CliRunner().invoke(cli, ["reproduce", "dip", "--quick", "--out", str(tmp_path / "out"), "--models", none])
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_what_cannot_be_written_is_said_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, taken in (("a", "parts-quick/motivation.json"), ("b", "plots/figures.svg"), ("c", "report.html")):
        (tmp_path / name / taken).mkdir(parents=True)
        result = CliRunner().invoke(cli, arguments(tmp_path / name))
        assert result.exit_code == 2
        assert f"{taken}: is a folder" in result.output
        assert not (tmp_path / name / "report.json").exists()
    result = CliRunner().invoke(cli, arguments(tmp_path / "file" / "out"))
    assert result.exit_code == 2
    assert "is no folder and none can be made (Not a directory)" in result.output


def test_drawings_that_stand_alone_have_their_style() -> None:
    drawing = charts.bars([("a", [("ours", 1.0)])], "title")
    assert charts.alone(drawing).startswith('<svg class="chart"')
    assert 'xmlns="http://www.w3.org/2000/svg"' in charts.alone(drawing)
    assert charts.style() in charts.alone(drawing)
    assert charts.style() not in drawing


def test_each_paper_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: list[Path] = []

    def stopped(models: Path, devices: Path, folder: Path, **_: object) -> None:
        used.append(folder)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    for paper, module in (("dip", "dip"), ("dflop", "dflop.evaluation")):
        monkeypatch.setattr(f"ds_dip.reproduction.{module}.reproduce", stopped)
        models, devices = map(str, FOLDERS)
        assert CliRunner().invoke(cli, ["reproduce", paper, "--models", models, "--devices", devices]).exit_code == 130
    assert used == [Path("reproduction/parts"), Path("reproduction-dflop/parts")]
