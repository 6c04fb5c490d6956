"""The index on disk: made once, anew for what changed, gone on with where it stopped, alike in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds_dip.data.conversations import Conversations, measuring
from ds_dip.data.conversations import index as module
from ds_dip.files import FileError
from tests.media_cases import asked, lines, picture, tiny_model

Counted = Callable[[], int]


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """How many media were opened since it was asked last."""
    seen: list[Any] = []
    real = measuring.facts_of
    monkeypatch.setattr(measuring, "facts_of", lambda *given: seen.append(given) or real(*given))

    def count() -> int:
        number = len(seen)
        seen.clear()
        return number

    return count


def opened(folder: Path, **options: Any) -> Conversations:
    processor = options.pop("processor", {"model": tiny_model(folder)})
    files = options.pop("files", str(folder / "a.jsonl"))
    return Conversations(files=files, processor=processor, index=str(folder / "index"), **options)


def four(folder: Path) -> None:
    for name in "wxyz":
        picture(folder / f"{name}.png")
    lines(folder / "a.jsonl", [asked(images=[f"{name}.png"]) for name in "wxyz"])


def test_media_are_opened_once(tmp_path: Path, looked: Counted) -> None:
    four(tmp_path)
    first = opened(tmp_path)
    assert looked() == 4
    again = opened(tmp_path)
    assert looked() == 0
    assert again.digest == first.digest
    assert [again.row(index) for index in range(4)] == [first.row(index) for index in range(4)]


def test_what_changed_is_looked_at_again(tmp_path: Path, looked: Counted) -> None:
    four(tmp_path)
    opened(tmp_path)
    looked()
    picture(tmp_path / "y.png", 100, 100)
    assert opened(tmp_path).metadata(2).modules["vision"] == (64,)
    assert looked() == 1
    (tmp_path / "z.png").unlink()
    assert opened(tmp_path, problems="skip").skipped == 1
    assert looked() == 1
    picture(tmp_path / "z.png")
    assert opened(tmp_path, problems="skip").skipped == 0
    assert looked() == 1


def test_a_media_change_may_be_left_to_the_load(tmp_path: Path, looked: Counted) -> None:
    four(tmp_path)
    opened(tmp_path)
    looked()
    picture(tmp_path / "y.png", 100, 100)
    assert opened(tmp_path, check_media=False).metadata(2).modules["vision"] == (4,)
    assert looked() == 0


def test_records_that_change_are_read_again_and_their_media_are_not(tmp_path: Path, looked: Counted) -> None:
    four(tmp_path)
    opened(tmp_path)
    looked()
    lines(tmp_path / "a.jsonl", [asked("<image>now?", images=["w.png"]), asked("<image>", images=["x.png"])])
    assert len(opened(tmp_path)) == 2
    assert looked() == 0


def test_a_file_that_was_only_touched_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four(tmp_path)
    opened(tmp_path)
    os.utime(tmp_path / "a.jsonl", (1, 1))
    monkeypatch.setattr(module, "_make", lambda *_, **__: pytest.fail("the index is made anew"))
    assert len(opened(tmp_path)) == 4


@pytest.mark.parametrize("damage", ["", "{}", '{"format": "other"}\n', "\0\0\0"])
def test_an_index_that_is_none_is_made_anew(tmp_path: Path, damage: str) -> None:
    four(tmp_path)
    opened(tmp_path)
    (tmp_path / "index" / "0-a.jsonl").write_text(damage)
    assert len(opened(tmp_path)) == 4
    for name in ("media.jsonl", "0-a.jsonl"):
        path = tmp_path / "index" / name
        path.write_bytes(path.read_bytes()[:-20] if name == "media.jsonl" else b"x")
    assert len(opened(tmp_path)) == 4


def test_other_options_make_another_index(tmp_path: Path) -> None:
    four(tmp_path)
    assert opened(tmp_path).skipped == 0
    assert opened(tmp_path, limits={"pixels": 2000}).skipped == 0
    files = [str(tmp_path / "a.jsonl"), str(lines(tmp_path / "b.jsonl", [asked("q")]))]
    assert opened(tmp_path, limits={"pixels": 100}, problems="skip", files=files).skipped == 4
    assert opened(tmp_path).skipped == 0


class StopError(Exception):
    pass


@pytest.mark.parametrize("torn", [b"", b'{"line": 3, "off'])
def test_it_goes_on_where_it_was_stopped(
    tmp_path: Path, looked: Counted, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    four(tmp_path)
    whole = opened(tmp_path)
    rows = [whole.row(index) for index in range(4)]
    lines(tmp_path / "a.jsonl", [asked("changed <image>", images=[f"{name}.png"]) for name in "wxyz"])
    (tmp_path / "index" / "media.jsonl").unlink()
    looked()

    def stop(_: Path, number: int, *__: int) -> None:
        if number == 2:
            raise StopError

    monkeypatch.setattr(module, "_FLUSH", 1)
    with pytest.raises(StopError):
        opened(tmp_path, progress=stop)
    part = tmp_path / "index" / "0-a.part"
    assert part.read_bytes().count(b"\n") == 3
    part.write_bytes(part.read_bytes() + torn)
    looked()
    told: list[int] = []
    again = opened(tmp_path, progress=lambda _, number, *__: told.append(number))
    assert told == [3, 4]
    assert looked() <= 2
    assert not part.exists()
    assert [again.row(index)["line"] for index in range(4)] == [row["line"] for row in rows]
    # A part of other content counts for nothing.
    part.write_text('{"format": "other"}\n{"line": 1}\n')
    lines(tmp_path / "a.jsonl", [asked("q")])
    assert len(opened(tmp_path)) == 1


def test_all_processes_find_the_same(tmp_path: Path) -> None:
    for number in range(40):
        picture(tmp_path / f"{number}.png", 20 + number)
    lines(tmp_path / "a.jsonl", [asked(images=[f"{number % 45}.png"]) for number in range(200)])
    code = (
        "import sys, json; from ds_dip.data.conversations import Conversations; "
        "d = Conversations(**json.loads(sys.argv[1])); print(d.digest, len(d), d.skipped)"
    )
    options = {"files": str(tmp_path / "a.jsonl"), "processor": {"model": tiny_model(tmp_path)}, "problems": "skip",
               "index": str(tmp_path / "index")}  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, "-c", code, json.dumps(options)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(told) == 1
    assert told.pop().split()[1:] == ["180", "20"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    four(tmp_path)
    (tmp_path / "index").write_text("")
    with pytest.raises(FileError, match="name a folder as index"):
        opened(tmp_path)


def test_another_process_is_waited_for_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four(tmp_path)
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    (tmp_path / "index").mkdir()
    with module._alone(tmp_path / "index"), pytest.raises(FileError, match="another process has made this index for"):
        opened(tmp_path)


def test_media_that_nothing_comes_of_are_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four(tmp_path)
    came = threading.Event()
    monkeypatch.setattr(measuring, "DEADLINE_S", 0.2)
    monkeypatch.setattr(measuring, "facts_of", lambda *_: came.wait(60.0))
    try:
        with pytest.raises(FileError, match=r"a\.jsonl: record 1 was not read within 0.2 s"):
            opened(tmp_path)
    finally:
        came.set()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    four(tmp_path)
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(FileError, match=r"b\.jsonl: is no plain file"):
        opened(tmp_path, files=str(tmp_path / "b.jsonl"))
