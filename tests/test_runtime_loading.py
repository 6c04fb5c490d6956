"""Checkpoint files are data: nothing that one holds is ever run, by us or by DeepSpeed."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

from ds_dip.runtime.drafts import RecordingEngine
from ds_dip.runtime.loading import data_only, read, refused_types


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Mine:
    """A type that a user trusts."""


STATE = {
    "weights": OrderedDict(a=torch.arange(3.0)),
    "groups": [{"lr": 1e-3, "betas": (0.9, 0.95)}],
    "scaler": DynamicLossScaler(2.0**16, 1000, 1.0, 1, False),
}


@pytest.fixture(params=[True, False], ids=["zip", "old form"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def save(state: Any) -> Path:
        path = tmp_path / "state.pt"
        torch.save(state, path, _use_new_zipfile_serialization=request.param)
        return path

    return save


def test_tensors_plain_values_and_deepspeeds_types_are_read(saved: Any) -> None:
    path = saved(STATE)
    found = read(path)
    assert torch.equal(found["weights"]["a"], STATE["weights"]["a"])  # type: ignore[index]  # a tensor in a dictionary
    assert found["groups"] == STATE["groups"]
    assert found["scaler"].cur_scale == 2.0**16
    assert refused_types(path) == ""


@pytest.mark.parametrize("by", ["ours", "DeepSpeed's engine", "DeepSpeed anywhere"])
def test_what_a_file_would_run_is_not_run(saved: Any, tmp_path: Path, by: str) -> None:
    path = saved({"weights": torch.zeros(1), "note": Harmful(tmp_path / "made")})

    def deepspeeds() -> Any:
        with data_only():  # as a load of a DIPEngine has it around all of DeepSpeed's
            return torch.load(path, weights_only=False)

    load = {
        "ours": lambda: read(path),
        "DeepSpeed's engine": lambda: RecordingEngine(TorchCheckpointEngine()).load(str(path)),
        "DeepSpeed anywhere": deepspeeds,
    }[by]
    with pytest.raises(Exception, match=r"Weights only load failed|WeightsUnpickler"):
        load()
    assert not (tmp_path / "made").exists()


def test_the_switch_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False)
    with data_only():
        assert os.environ[name] == "1"
    assert name not in os.environ
    monkeypatch.setenv(name, "0")
    with data_only():
        pass
    assert os.environ[name] == "0"


def test_a_type_that_will_not_be_read_back_is_named_when_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds_dip.runtime.drafts.dist.get_rank", lambda: 0)
    inner = TorchCheckpointEngine()
    inner.zipfile_serialization = True
    engine = RecordingEngine(inner)
    engine.begin(tmp_path)
    engine.save({"note": Mine()}, str(tmp_path / "state.pt"))
    assert f"rank 0 has written {tmp_path / 'state.pt'}, which holds tests.test_runtime_loading.Mine" in engine.problem
    assert "torch.serialization.add_safe_globals" in engine.problem
    engine.begin(tmp_path)
    with torch.serialization.safe_globals([Mine]):
        engine.save({"note": Mine()}, str(tmp_path / "state.pt"))
        assert engine.problem == ""
        assert isinstance(engine.load(str(tmp_path / "state.pt"))["note"], Mine)
