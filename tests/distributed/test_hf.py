"""Models of transformers on real ranks: the library's gradients, and folders that it loads, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from peft import PeftModel
from safetensors.torch import load_file

from tests import hf_models as models
from tests.distributed.ranks import run_ranks

CASES: list[dict[str, Any]] = [
    {
        "name": "llama",
        "family": "llama",
        "mode": "fp32",
        "make": {"tie_word_embeddings": True},
        "dip": {"laps": {"language": 2}},
    },
    {
        "name": "lora",
        "family": "llava_onevision",
        "mode": "fp32",
        "frozen": ["vision", "projector"],
        "lora": True,
        "dip": {"memory_strategies": ["selective"]},
    },
    {"name": "frozen", "family": "qwen2_5_vl", "mode": "fp32", "frozen": ["vision"], "interval": 1},
    {"name": "bf16", "family": "qwen2_5_vl", "mode": "bf16"},
]
#: Every family whole, in both data types.
MORE = [
    {"name": f"{family}-{mode}", "family": family, "mode": mode}
    for family in models.FAMILIES
    for mode in ("fp32", "bf16")
]


def folders(path: Path, found: list[dict[str, Any]]) -> None:
    """Tiny models as transformers saves them, in several shards, and the list of cases."""
    for case in found:
        if not (path / case["family"]).exists():
            model = models.FAMILIES[case["family"]][0](**case.get("make", {}))
            model.save_pretrained(path / case["family"], max_shard_size="20KB")
    (path / "cases.json").write_text(json.dumps(found))


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All weights in a folder."""
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [(2, CASES), pytest.param(4, MORE, marks=pytest.mark.nightly), pytest.param(1, MORE, marks=pytest.mark.nightly)],
    ids=["2", "4", "1"],
)
def test_ranks_have_the_librarys_gradients_and_save_what_it_loads(
    ranks: int, chosen: list[dict[str, Any]], tmp_path: Path
) -> None:
    folders(tmp_path, chosen)
    found = run_ranks("tests.distributed.hf", ranks, str(tmp_path), seconds=500.0)
    for case, *rows in zip(chosen, *found, strict=True):
        for row in rows:
            bound = ("norm", 5e-2) if case["mode"] == "bf16" else ("worst", 1e-5)
            assert row[bound[0]] <= bound[1], row
            assert row["loss"] == pytest.approx(row["expected"], rel=1e-5 if case["mode"] == "fp32" else 2e-2), row
        assert sum(row["weights"] for row in rows) > 0
        same_folders(case, tmp_path / case["family"], tmp_path / f"saved-{case['name']}")


def same_folders(case: dict[str, Any], source: Path, saved: Path) -> None:
    """A model that was not changed is saved as it was, and the library loads both alike."""
    before, after = stored(source), stored(saved)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor.to(after[name].dtype), after[name]), name
    cls = type(models.FAMILIES[case["family"]][0]())
    model = cls.from_pretrained(saved)
    again = cls.from_pretrained(source, dtype=model.dtype)
    for (name, own), other in zip(again.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other), name
    assert (saved / "adapter").exists() == bool(case.get("lora"))
    if case.get("lora"):
        adapted = PeftModel.from_pretrained(model, saved / "adapter")
        assert len(load_file(saved / "adapter" / "adapter_model.safetensors")) == sum(
            "lora_" in name for name, _ in adapted.named_parameters()
        )


#: What is resumed: adapters beside a frozen tower, tied embeddings, everything.
RESUMED: list[dict[str, Any]] = [
    {"name": "lora", "family": "qwen2_5_vl", "frozen": ["vision"], "lora": True, "stage": 1},
    {"name": "tied", "family": "llama", "frozen": [], "lora": False, "stage": 0, "make": {"tie_word_embeddings": True}},
    {"name": "whole", "family": "llava_onevision", "frozen": [], "lora": False, "stage": 1},
]


def test_a_run_goes_on_from_its_checkpoint_also_under_another_partition(tmp_path: Path) -> None:
    folders(tmp_path, RESUMED)
    two = run_ranks("tests.distributed.hf_resume", 2, str(tmp_path), seconds=400.0)
    (one,) = run_ranks("tests.distributed.hf_resume", 1, str(tmp_path), seconds=200.0)
    for case, alone, *rows in zip(RESUMED, one, *two, strict=True):
        for row in rows:
            assert row["resumed"] == row["after"], row
            assert row["universal"] == pytest.approx(row["after"], rel=1e-5), row
            assert alone["universal"] == pytest.approx(row["after"], rel=1e-5), row
            assert len({*row["before"], *row["after"]}) == 4
        whole, resumed = (stored(tmp_path / f"{kind}-{case['name']}") for kind in ("whole", "resumed"))
        adapters = [tmp_path / f"{kind}-{case['name']}" / "adapter" for kind in ("whole", "resumed")]
        assert all(folder.exists() == case["lora"] for folder in adapters)
        for first, second in [(whole, resumed), tuple(stored(folder) for folder in adapters)]:
            assert first.keys() == second.keys()
            assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.nightly
@pytest.mark.parametrize("rank", range(4))
def test_no_rank_holds_more_than_its_own_layers(rank: int, tmp_path: Path) -> None:
    sizes = {"vocab_size": 8000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16}
    model = models.llama(**sizes, num_attention_heads=12, num_key_value_heads=12)
    whole = sum(4 * parameter.numel() for parameter in model.parameters())
    model.save_pretrained(tmp_path, max_shard_size="50MB")
    ((found,),) = run_ranks("tests.distributed.hf_memory", 1, str(tmp_path), "4", str(rank))
    print(f"rank {rank} of 4: {found['weights'] / 1e6:.0f} of {whole / 1e6:.0f} MB, {found['peak'] / 1e6:.0f} at most")
    assert whole / 6 < found["weights"] < whole / 3
    assert found["peak"] < found["weights"] + 0.15 * whole
