"""Commands take every family's folder, with the sizes that the model's own processor makes of real media."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("diffusers")

from ds_dip.cli import cli
from ds_dip.data import read_batch
from ds_dip.models import load_model
from ds_dip.partition import read_partition
from tests import hf_models as models
from tests import pretrained_cases as folders
from tests.hf_folders import write_pipeline

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "tests" / "data" / "mllm_demo"
H800 = ROOT / "profiling" / "devices" / "h800.json"
IMAGES = {"image_token_id": folders.IMAGE, "video_token_id": folders.VIDEO}


def text(folder: Path) -> Any:
    folders.text_folder(folder)
    return models.llama_config(vocab_size=300)


def qwen(folder: Path) -> Any:
    folders.qwen_folder(folder)
    return models.qwen_vl(text={"vocab_size": 300}, **IMAGES).config


def llava(folder: Path) -> Any:
    folders.llava_folder(folder)
    return models.llava_config(text={"vocab_size": 300}, **IMAGES)


def internvl(folder: Path) -> Any:
    folders.internvl_folder(folder)
    return models.internvl(vision={"image_size": [28, 28], "patch_size": [7, 7]}).config


def audio(folder: Path) -> Any:
    folders.audio_folder(folder)
    config = models.qwen_audio_config()
    config.audio_token_id = folders.AUDIO
    return config


#: How a folder is written, and the conversations that are measured.
FAMILIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "llama": (text, "text.json"),
    "qwen2_5_vl": (qwen, "mllm_demo.json"),
    "llava_onevision": (llava, "mllm_demo.json"),
    "internvl": (internvl, "mllm_demo.json"),
    "qwen2_audio": (audio, "mllm_audio_demo.json"),
    "pixart": (lambda folder: write_pipeline(folder, ["Two players.", "A speech."]), "metadata.jsonl"),
}


def data_of(family: str, folder: Path, model: Path) -> list[str]:
    """Options that name a dataset of real media."""
    if family == "pixart":
        lines = [json.dumps({"file_name": f"mllm_demo_data/{n}.jpg", "text": "Two players."}) for n in (1, 2, 3)]
        path = folder / "metadata.jsonl"
        shutil.copytree(DEMO / "mllm_demo_data", folder / "mllm_demo_data")
        path.write_text("\n".join(lines))
        options: dict[str, Any] = {"files": str(path), "pipeline": str(model), "size": 64}
        return ["--dataset", "ds_dip.data.pictures:Pictures", "--dataset-options", json.dumps(options)]
    path = DEMO / FAMILIES[family][1]
    if family == "llama":
        path = folder / "text.json"
        asked = ([{"role": "user", "content": "Hello, you" * n}] for n in range(1, 5))
        said = {"role": "assistant", "content": "Good day."}
        path.write_text(json.dumps([{"messages": [*question, said]} for question in asked]))
    options = {"files": str(path), "index": str(folder / "index"), "processor": {"pretrained": str(model)}}
    return ["--dataset", "ds_dip.data.conversations:Conversations", "--dataset-options", json.dumps(options)]


def called(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_profile_partition_and_compare(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = FAMILIES[family][0](folder)
    if config is not None:
        config.save_pretrained(folder)
    model, data = load_model(folder), data_of(family, tmp_path, folder)
    called("profile", "--model", str(folder), "--data", *data, "--out", str(tmp_path / "sizes.json"))
    samples = read_batch(tmp_path / "sizes.jsonl")
    assert {name for sample in samples for name in sample.modules} == {own.name for own in model.modules}
    extents = {}
    for module in model.modules:
        sizes = [size for sample in samples for size in sample.modules[module.name]]
        most = max(len(sample.modules[module.name]) for sample in samples)
        extents[module.name] = {"sizes": [min(sizes), max(sizes)], "instances": most}
        if module.name == "vision" and family == "qwen2_5_vl":
            assert all(size % 4 == 0 for size in sizes)
    sweep = {"format": "ds-dip/sweep", "version": 1, "modules": extents, "transfer_bytes": [1024, 4096],
             "collective_bytes": [1024, 4096], "optimizer_elements": [100, 1000]}  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    table, out = str(tmp_path / "table.json"), str(tmp_path / "partition.json")
    device = ["--device", str(H800), "--dtype", "bfloat16"]
    called("profile", "--model", str(folder), "--sweep", str(tmp_path / "sweep.json"), *device, "--out", table)
    search = ["--batch-size", "2", "--microbatches", "2", "--batches", "1", "--evaluations", "10"]
    search += ["--table", table, "--compute", "bfloat16", "--ranks", "2", "--model", str(folder), *data]
    called("partition", *search, "--out", out)
    assert read_partition(out, model).ranks == 2
    compared = json.loads(called("compare", *search, "--partition", out, "--schedules", "1f1b,dip", "--json"))
    assert compared["format"] == "ds-dip/comparison"


def test_a_frozen_towers_projector_is_placed_behind_it(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", str(tmp_path / "partition.json")
    qwen(folder).save_pretrained(folder)
    data = data_of("qwen2_5_vl", tmp_path, folder)
    options = json.loads(data[-1])
    options["processor"]["encoders"] = ["vision", "projector"]
    search = ["--batch-size", "2", "--microbatches", "2", "--batches", "1", "--evaluations", "20", "--ranks", "2"]
    called("partition", "--model", str(folder), "--frozen", "vision", *data[:-1], json.dumps(options), *search,
           "--out", out)  # fmt: skip
    found = read_partition(out, load_model(folder, ["vision"]))
    (projector,) = found.of("projector")
    assert projector.rank == found.of("vision")[-1].rank
