"""The page: one file that asks for nothing else, and the command that writes it."""

import configparser
import json
import re
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.reporting.viewer.document import Report, document, explained
from ds_dip.reporting.viewer.page import SCRIPTS, STYLES, page
from ds_dip.reporting.viewer.planned import view_of_plan
from ds_dip.scheduling.documents import read_problem, write_plan, write_problem
from tests.viewer_cases import plan_of, run_folder, small

ASSETS = {own.name for own in files("ds_dip.reporting.viewer").joinpath("assets").iterdir()}
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def report() -> Report:
    return Report("Plan", (view_of_plan(small(), plan_of(small())),))


def test_every_asset_is_used_and_every_one_used_is_there() -> None:
    assert {"page.html", *(f"{name}.js" for name in SCRIPTS), *(f"{name}.css" for name in STYLES)} == ASSETS


def test_a_wheel_has_every_asset() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = [own.strip() for own in config["options.package_data"]["ds_dip.reporting.viewer"].split(",")]
    assert all(any(fnmatch(f"assets/{name}", pattern) for pattern in patterns) for name in ASSETS)


def test_assets_are_short_and_say_what_they_are() -> None:
    for name in ASSETS - {"page.html"}:
        text = files("ds_dip.reporting.viewer").joinpath("assets", name).read_text()
        assert len(text.splitlines()) <= 250, name
        assert text.startswith(("// ", "/* ")), name


def test_the_page_asks_for_nothing_else(report: Report) -> None:
    text = page(report)
    code = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    for asking in ("http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "import("):
        assert asking not in code, asking
    assert set(re.findall(r'href="([^"]*)"', code)) == {"#timeline"}
    assert "default-src 'none'" in text


def test_the_data_is_the_document_and_nothing_in_it_ends_its_element(report: Report) -> None:
    nasty = "</script><script>alert(1)</script><!-- {{data}} "
    view = explained(report.views[0], {"text": [nasty]})
    text = page(Report(nasty, (view,), notes=(nasty,)))
    assert text.count("<script") == text.count("</script>") == 2
    (found,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(found) == json.loads(json.dumps(document(Report(nasty, (view,), notes=(nasty,)))))
    assert "alert(1)</title>" not in text


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("plan")
    write_problem(folder / "problem.json", small())
    problem, digest = read_problem(folder / "problem.json")
    write_plan(folder / "plan.json", plan_of(problem, digest=digest))
    return folder / "plan.json", folder / "problem.json"


def test_the_command_writes_a_plans_page(planned: tuple[Path, Path], tmp_path: Path) -> None:
    plan, problem = planned
    result = invoke(plan, "--problem", problem, "--out", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert result.output == f"plan.json, planned, 248 stages on 4 ranks: {tmp_path}/report.html\n"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_command_writes_a_runs_page(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", 4)
    result = invoke(run, "--step", 2, "--steps", 2, "--out", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    first, second = result.output.splitlines()
    assert first.startswith("step 2, planned and measured, ")
    assert second == "2 of the run's 4 timelines are in this file."


def test_what_cannot_be_shown_is_refused_in_a_sentence(planned: tuple[Path, Path], tmp_path: Path) -> None:
    plan, problem = planned
    out = tmp_path / "report.html"
    other = tmp_path / "other.json"
    other.write_text(problem.read_text() + " ")
    for arguments, sentence in (
        ((plan, "--out", out), "a plan names only its tasks; give the problem it is for by --problem"),
        ((plan, "--problem", other, "--out", out), "give the problem that it was made for"),
        ((plan, "--problem", problem, "--step", 3, "--out", out), "--step goes with a run's folder"),
        ((tmp_path, "--problem", problem, "--out", out), "--problem and --unitless go with a plan file"),
        ((tmp_path, "--out", out), "holds no step-*.json; name the folder of a run"),
        ((tmp_path / "none", "--problem", problem, "--out", out), "cannot be read (No such file or directory)"),
        ((plan, "--problem", problem, "--out", problem), "is read as well and would be replaced"),
        ((plan, "--problem", problem, "--out", tmp_path / "no" / "r.html"), "cannot be written"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert sentence in " ".join(result.output.split()), result.output
    assert not out.exists()
    assert json.loads(problem.read_text())["format"] == "ds-dip/problem"
