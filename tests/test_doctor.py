"""ds-dip doctor: what it finds, and when it says no."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.reporting import machine
from ds_dip.reporting.machine import Check, builds, examine, libraries, locks, packages, probe, shared_memory

CPU = {
    "accelerator": "cpu",
    "backend": "gloo",
    "backend_available": True,
    "bf16": True,
    "fp16": False,
    "cuda": None,
    "gpus": [],
    "chosen": "cpu",
    "fused_norms": False,
    "norms": "apex is not installed; norms are torch's own",
}
GPU = CPU | {"accelerator": "cuda", "backend": "nccl", "gpus": ["A (80 GB)"], "cuda": "12.8", "fp16": True}


def by_name(checks: "list[Check] | tuple[Check, ...]") -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture(scope="module")
def examined() -> tuple[Check, ...]:
    return examine()


def test_this_machine_can_train(examined: tuple[Check, ...]) -> None:
    assert [check for check in examined if check.status == "error"] == []


def test_it_tells_versions_accelerator_backend_cores_and_norms(examined: tuple[Check, ...]) -> None:
    found = by_name(examined)
    assert {"python", "torch", "deepspeed", "numba", "accelerator", "backend", "cores", "memory", "norms"} <= set(found)
    assert found["accelerator"].found.startswith("cpu")
    assert found["backend"].found == "gloo"
    assert found["deepspeed"].found[0].isdigit()


def test_whatever_is_not_ok_says_what_to_do(examined: tuple[Check, ...]) -> None:
    assert [check for check in examined if check.status != "ok" and not check.remedy] == []


def test_a_required_package_that_is_missing_or_old_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["torch>=999", "nowhere-to-be-found>=1", 'also-missing>=2; extra == "hf"']
    monkeypatch.setattr(machine.importlib.metadata, "requires", lambda _: needed)
    found = by_name(packages())
    assert (found["torch"].status, found["torch"].remedy) == ("error", "pip install 'torch>=999'")
    assert found["nowhere-to-be-found"].status == "error"
    assert (found["extra hf"].status, found["extra hf"].remedy) == ("optional", "pip install 'ds_dip[hf]'")


def test_a_library_that_crashes_on_import_is_a_finding() -> None:
    found = probe("import os; print('noise'); os.abort()")
    (check,) = libraries(found)
    assert check.status == "error"
    assert "exit status -6" in check.found


def test_a_library_that_raises_on_import_is_told_with_its_message() -> None:
    (check,) = libraries(probe("raise ImportError('libcuda.so is missing')"))
    assert "ImportError: libcuda.so is missing" in check.found


def test_a_backend_that_torch_lacks_is_an_error() -> None:
    found = by_name(libraries(GPU | {"backend_available": False}))
    assert (found["backend"].status, found["backend"].remedy) == ("error", "install a torch with nccl")


def test_fused_norms_are_offered_only_where_there_is_a_gpu() -> None:
    assert by_name(libraries(CPU))["norms"].status == "ok"
    on_gpu = by_name(libraries(GPU))["norms"]
    assert on_gpu.status == "optional"
    assert "not the PyPI project" in on_gpu.remedy
    assert by_name(libraries(GPU | {"fused_norms": True}))["norms"].status == "ok"


def test_a_missing_compiler_is_an_error_on_the_cpu_and_a_warning_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    assert {check.status for check in builds(gpu=False)} == {"error"}
    on_gpu = builds(gpu=True)
    assert {check.status for check in on_gpu} == {"warning"}
    assert [check.name for check in on_gpu] == ["compiler", "ninja", "nvcc"]
    assert all("torch_adam" in check.remedy for check in on_gpu)


def test_leftover_buffers_are_counted(tmp_path: Path) -> None:
    assert [check.name for check in shared_memory(tmp_path)] == ["shared memory"]
    for rank in range(3):
        (tmp_path / f"deepspeed_allreduce_buffer_0_127.0.0.1_29500_{rank}").write_bytes(b"x" * 8192)
    leftovers = by_name(shared_memory(tmp_path))["leftover buffers"]
    assert leftovers.status == "warning"
    assert leftovers.found.startswith("3 files")


def test_a_lock_that_a_killed_rank_left_is_named_when_it_is_old(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert locks(tmp_path) == []
    os.utime(lock, (0, 0))
    (check,) = locks(tmp_path)
    assert check.status == "warning"
    assert str(lock) in check.remedy


def test_missing_shared_memory_is_an_error(tmp_path: Path) -> None:
    (check,) = shared_memory(tmp_path / "none")
    assert check.status == "error"


@pytest.mark.parametrize(
    ("status", "exit_code", "works"),
    [("ok", 0, True), ("optional", 0, True), ("warning", 0, True), ("error", 1, False)],
)
def test_it_exits_with_1_only_where_training_cannot_work(
    status: str, exit_code: int, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "examine", lambda: (Check("torch", status, "missing", "install it"),))
    table = CliRunner().invoke(cli, ["doctor"])
    assert table.exit_code == exit_code
    assert ("Training works here." in table.output) == works
    as_json = CliRunner().invoke(cli, ["doctor", "--json"])
    assert as_json.exit_code == exit_code
    assert json.loads(as_json.output) == {
        "works": works,
        "checks": [{"name": "torch", "status": status, "found": "missing", "remedy": "install it"}],
    }
