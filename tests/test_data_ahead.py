"""Loading ahead: in order, no more than is allowed, each sample once, and errors where the sample is asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from ds_dip.data import ahead as module
from ds_dip.data.ahead import Ahead, Arrays


class Loader:
    """Counts loads; those of samples in ``held`` wait for ``gate``."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, tuple[str, ...], bool]] = []
        self.gate, self.started = threading.Event(), threading.Event()
        self.held: set[str] = set()

    def load(self, sample: str, fields: Sequence[str]) -> Arrays:
        ours = threading.current_thread() is threading.main_thread()
        self.loads.append((sample, tuple(fields), ours))
        self.started.set()
        if sample in self.held:
            assert self.gate.wait(20)
        if sample == "bad":
            raise ValueError("no such picture")
        return {name: [np.array([len(sample)])] for name in fields}


@pytest.fixture
def loader() -> Loader:
    return Loader()


def test_what_is_announced_is_loaded_once_and_by_threads(loader: Loader) -> None:
    ahead = Ahead(loader.load, 1, 8)
    ahead.announce(["a", "b", "a"], ["pixels", "tokens"])
    for fields in (["pixels"], ["tokens"], ["pixels", "tokens"]):
        for sample in "ab":
            assert set(ahead.load(sample, fields)) == set(fields)
    assert loader.loads == [(sample, ("pixels", "tokens"), False) for sample in "ab"]
    ahead.announce(["b", "c"], ["pixels", "tokens"])  # the next step: what it shares stays
    ahead.load("c", ["pixels"])
    assert [sample for sample, *_ in loader.loads] == ["a", "b", "c"]
    ahead.load("a", ["pixels"])
    assert loader.loads[-1] == ("a", ("pixels",), True)
    ahead.load("b", ["labels"])
    assert loader.loads[-1] == ("b", ("labels",), True)
    ahead.close()


def test_a_sample_under_way_is_waited_for(loader: Loader) -> None:
    loader.held = {"a"}
    ahead = Ahead(loader.load, 1, 8)
    ahead.announce(["a"], ["pixels"])
    assert loader.started.wait(20)
    threading.Timer(0.01, loader.gate.set).start()
    assert ahead.load("a", ["pixels"])["pixels"][0].tolist() == [1]
    assert len(loader.loads) == 1
    ahead.close()


def test_no_more_are_held_than_allowed(loader: Loader) -> None:
    ahead = Ahead(loader.load, 2, 3)
    ahead.announce([str(number) for number in range(10)], ["pixels"])
    for number in range(10):
        ahead.load(str(number), ["pixels"])
    assert sorted(sample for sample, _, ours in loader.loads if not ours) == ["0", "1", "2"]
    ahead.close()


def test_errors_come_where_the_sample_is_asked_for(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = Ahead(loader.load, 1, 8)
    ahead.announce(["bad", "good"], ["pixels"])
    assert ahead.load("good", ["pixels"])
    with pytest.raises(ValueError, match="no such picture"):
        ahead.load("bad", ["pixels"])
    monkeypatch.setattr(module, "DEADLINE_S", 0.0)
    loader.held = {"slow"}
    ahead.announce(["slow"], ["pixels"])
    with pytest.raises(TimeoutError, match="'slow' was not loaded within 0 s"):
        ahead.load("slow", ["pixels"])
    loader.gate.set()
    ahead.close()


def test_without_workers_nothing_is_ahead(loader: Loader) -> None:
    ahead = Ahead(loader.load, 0, 8)
    ahead.announce(["a"], ["pixels"])
    ahead.load("a", ["pixels"])
    assert loader.loads == [("a", ("pixels",), True)]
    ahead.close()
