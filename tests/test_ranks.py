"""Ranks measured together: their leader is heard, and whatever happens none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ds_dip.ranks import DeadlineError, RanksError, run_ranks

SPEAKS = """
from ds_dip.ranks import settings, tell
import os
print("no message")
if os.environ["RANK"] == "0":
    tell(settings() | {"world": os.environ["WORLD_SIZE"], "threads": os.environ["OMP_NUM_THREADS"]})
"""
FAILS = """
import os, sys, time
open(os.environ["NOTE"] + os.environ["RANK"], "w").write(str(os.getpid()))
if os.environ["RANK"] == "1":
    sys.exit("rank 1 has had enough")
time.sleep(600)
"""
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    def write(text: str) -> str:
        (tmp_path / "ranks_script.py").write_text(text)
        return "ranks_script"

    return write


def test_an_error_of_ours_is_told_in_its_own_sentence(script: Any) -> None:
    text = "from ds_dip.files import read_object\nread_object('/nothing.json', 'a DeepSpeed JSON')"
    sentence = "/nothing.json: cannot be read (No such file or directory); give the path of a DeepSpeed JSON"
    with pytest.raises(RanksError) as caught:
        run_ranks(script(text), 1, 1, {}, 60.0, lambda _: None)
    assert str(caught.value) == sentence


def test_what_rank_0_says_is_heard(script: Any) -> None:
    heard: list[dict[str, Any]] = []
    run_ranks(script(SPEAKS), 2, 3, {"greeting": "hello"}, 60.0, heard.append)
    assert heard == [{"greeting": "hello", "world": "2", "threads": "3"}]


def test_a_rank_that_fails_is_named_and_the_others_end(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTE", str(tmp_path / "pid"))
    monkeypatch.setattr("ds_dip.ranks._NOTICE", 0.2)
    with pytest.raises(RanksError, match=r"rank 1 of ranks_script ended with 1; its output ends:\nrank 1 has had"):
        run_ranks(script(FAILS), 2, 1, {}, 60.0, lambda _: None)
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"pid{rank}").read_text()), 0)


def test_a_process_that_is_told_to_end_takes_its_ranks_along(script: Any, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    name = script(f"import os; open({str(note)!r}, 'w').write(str(os.getpid())); {SLEEPS}")
    code = f"from ds_dip.ranks import run_ranks; run_ranks({name!r}, 1, 1, {{}}, 60.0, print)"
    with subprocess.Popen([sys.executable, "-c", code]) as starter:
        end = time.monotonic() + 30.0
        while not note.exists() or not note.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        starter.terminate()
        assert starter.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_ranks_that_take_too_long_are_ended(script: Any) -> None:
    with pytest.raises(DeadlineError, match=r"rank 0 of ranks_script did not end within 0.5 s; raise --deadline"):
        run_ranks(script(SLEEPS), 1, 1, {}, 0.5, lambda _: None)
