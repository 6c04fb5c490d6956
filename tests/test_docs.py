"""README.md and docs/: every block of code runs, or says why it cannot; links, settings and commands are real."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from ds_dip.cli import cli
from ds_dip.config import BLOCK, read_config
from tests.docs_blocks import OTHERS, PAGES, PYTHON, ROOT, SHELL, Block, blocks, prepare, run

BLOCKS = [block for page in PAGES for block in blocks(page)]
#: Where a command ends in a line of the shell.
_ENDS = {"|", "||", "&&", ";", ">", "<", "2>"}


def test_every_block_has_a_language_and_a_mark_that_is_known() -> None:
    assert len(BLOCKS) > 60
    assert [str(block) for block in BLOCKS if block.language not in PYTHON + SHELL + OTHERS] == []
    assert {str(block): unknown for block in BLOCKS if (unknown := block.unknown())} == {}


def test_a_block_that_another_test_runs_is_named_there() -> None:
    for block in BLOCKS:
        if block.by:
            assert block.page.name in (ROOT / block.by).read_text(), f"{block} is not run by {block.by}"


def pages(nightly: bool) -> list[Path]:
    """Pages with blocks that this process can run, those of one tier."""
    return [
        page
        for page in PAGES
        if any(block.runs and not block.ranks and block.nightly is nightly for block in blocks(page))
    ]


@pytest.mark.parametrize("page", pages(nightly=False), ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    for block in blocks(page):
        if block.runs and not block.nightly and not block.ranks:
            run(block, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", pages(nightly=True), ids=lambda page: page.name)
def test_the_blocks_of_a_page_that_take_long_run_too(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    for block in blocks(page):
        if block.runs and not block.ranks:
            run(block, tmp_path, 1800.0)


def commands(block: Block) -> list[list[str]]:
    """The arguments of every call of ds-dip in a block of the shell or of a console."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        if not line.startswith("ds-dip "):
            continue
        words = shlex.split(line, comments=True)[1:]
        end = next((n for n, word in enumerate(words) if word in _ENDS), len(words))
        # [--json] may be given.
        found.append([word.strip("[]") for word in words[:end]])
    return found


CALLS = [(str(block), words) for block in BLOCKS if block.language in (*SHELL, "console") for words in commands(block)]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and its arguments."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize(("where", "words"), CALLS, ids=[f"{where}-{n}" for n, (where, _) in enumerate(CALLS)])
def test_a_documented_command_has_these_options(where: str, words: list[str]) -> None:
    command, arguments = resolve(words)
    assert not isinstance(command, click.Group), f"{where}: no such command: {' '.join(words)}"
    if "COMMAND" in words or command.name in words[1:]:
        return
    known = {option for parameter in command.get_params(click.Context(command)) for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    given = {word.partition("=")[0] for word in arguments if re.match(r"--?[a-zA-Z]", word)}
    assert given <= known, f"{where}: {', '.join(sorted(given - known))}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_a_documented_document_is_json_and_its_settings_are_known(block: Block) -> None:
    text = block.text if block.text.lstrip().startswith("{") else "{" + block.text + "}"
    document = json.loads(text)
    if BLOCK in document:
        read_config(document)


def test_the_script_for_slurm_is_the_documented_one() -> None:
    shown = next(block for block in blocks(ROOT / "docs" / "multi-node.md") if "#SBATCH" in block.text)
    assert shown.text == (ROOT / "launch" / "slurm.sh").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
