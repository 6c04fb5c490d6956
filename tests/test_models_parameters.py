"""Parameter counts: by hand, by what is built, by one tensor-parallel device, and of the paper's models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ds_dip.models import kinds, load_model
from ds_dip.models.config import load_setups
from ds_dip.models.parameters import module_parameters, parameters
from ds_dip.models.spec import Layer

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "model_configs"
WIDTH = kinds.Width(hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, gated=True)
LATENT = kinds.Latent(patch=2, channels=3, side=4, frames=5)
#: What figures the published models are called by, and where each one is.
MODELS = {
    "ViT 5B": ("vlm_s", "vision", 5e9),
    "ViT 22B": ("vlm_l", "vision", 22e9),
    "Llama3 8B": ("vlm_s", "language", 8e9),
    "Qwen2 32B": ("vlm_m", "language", 32e9),
    "Qwen2 72B": ("vlm_l", "language", 72e9),
    "GPT 175B": ("vlm_xl", "language", 175e9),
    "DiT 5B": ("t2v_s", "video", 5e9),
    "DiT 30B": ("t2v_l", "video", 30e9),
}


def blocks(config: str, module: str, gated: bool) -> int:
    """Weights of a module's blocks, with a plain or a gated feed-forward."""
    layers = load_model(CONFIGS / f"{config}.json").module(module).layers[1:-1]
    return sum(parameters(Layer(own.kind, own.output, options={**own.options, "gated": int(gated)})) for own in layers)


@pytest.mark.parametrize(("config", "module", "named"), MODELS.values(), ids=MODELS)
def test_the_papers_models_have_about_the_size_they_are_called_by(config: str, module: str, named: float) -> None:
    count = module_parameters(load_model(CONFIGS / f"{config}.json"), module)
    assert count == pytest.approx(named, rel=0.13)
    if named != 5e9 or module != "vision":
        assert count == pytest.approx(named, rel=0.03)


def test_the_vit_of_5_billion_has_fewer_plain_and_more_gated() -> None:
    assert blocks("vlm_s", "vision", gated=False) == pytest.approx(4.28e9, rel=2e-3)
    assert blocks("vlm_s", "vision", gated=True) == pytest.approx(6.01e9, rel=2e-3)


def test_the_documented_counts_are_the_computed_ones() -> None:
    text = (ROOT / "docs/models.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) +\|.*?\| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    found = {name: (float(plain), float(gated)) for name, plain, gated in rows}
    assert set(found) == set(MODELS)
    for name, (config, module, _) in MODELS.items():
        around = module_parameters(load_model(CONFIGS / f"{config}.json"), module)
        layers = load_model(CONFIGS / f"{config}.json").module(module).layers
        around -= sum(map(parameters, layers[1:-1]))
        counted = [round((around + blocks(config, module, gated)) / 1e9, 2) for gated in (False, True)]
        assert found[name] == tuple(counted), name


def test_the_documented_counts_of_dflops_models_are_the_computed_ones() -> None:
    text = (ROOT / "docs/models.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| `(dflop_\w+)` \| (\w+) \| (.*?) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {file for _, file, *_ in rows} == {path.stem for path in CONFIGS.glob("dflop_*.json")}
    for name, file, module, sizes, counted in rows:
        model = load_model(CONFIGS / f"{file}.json")
        count = module_parameters(model, module)
        assert round(count / 1e9, 2) == float(counted), name
        own = model.module(module).layers[1].options
        layers = len(model.module(module).layers) - 2
        assert sizes == f"{layers} x {own['hidden']}, {own['ffn']}, {own['heads']}/{own['kv_heads']}"
        # As they are called, but for the two encoders that the authors scaled otherwise.
        if (called := re.search(r"([\d.]+)([MB])$", name)) and name != "InternViT 6B":
            assert count == pytest.approx(float(called[1]) * {"M": 1e6, "B": 1e9}[called[2]], rel=0.11)


def test_a_diffusion_transformers_layers_by_hand() -> None:
    attention = 8 * (8 + 2 * 4 + 8)
    biases = (8 + 8) + 8
    assert parameters(kinds.diffusion_block(WIDTH, 1)) == 2 * (attention + biases) + (3 * 8 * 16 + 2 * 16 + 8) + 6 * 8
    embedded = 12 * 8 + 8 + (2 * 4 + 5) * 8 + 6 * 8 + 8
    assert parameters(kinds.video_embedding(8, 6, LATENT)) == embedded + (256 * 8 + 8) + (64 + 8) + 6 * (64 + 8)
    assert parameters(kinds.video_output(8, LATENT)) == 8 * 12 + 12 + 2 * 8
    assert parameters(kinds.text_output(8)) == 8


def test_one_of_two_devices_holds_half_of_the_matrices_and_all_of_the_norms() -> None:
    block = kinds.decoder_block(WIDTH, 1, 100)
    assert parameters(block, 2) == (parameters(block) - 16) // 2 + 16
    assert parameters(kinds.token_embedding(8, 32, {}), 2) == 32 * 8 // 2
    assert parameters(kinds.head(8, 32), 2) == 32 * 8 // 2 + 8
    assert parameters(kinds.merger(8, 4, 6), 2) == (4 * 8 * 6 + 6 + 36) // 2 + 6 + 16
    assert parameters(kinds.patch_embedding(8, 2, 1, 4), 2) == parameters(kinds.patch_embedding(8, 2, 1, 4))


def test_fewer_groups_than_devices_are_held_more_than_once() -> None:
    block = kinds.decoder_block(WIDTH, 1, 100)
    # A head and a group of 2 each, and a quarter of the feed-forward.
    assert parameters(block, 4) == 8 * (2 + 2 + 2 + 2) + 3 * 8 * 4 + 16


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        ("vlm_s", (16, 16)), ("vlm_m", (32,)), ("vlm_l", (64,)), ("t2v_s", (16,)), ("t2v_l", (64,)),
        ("vlm_xl", (8192, 16384)), ("t2v_xl", (3072, 6144)), ("quickstart", ()),
    ],
)  # fmt: skip
def test_the_papers_setups_have_its_numbers_of_devices(config: str, devices: tuple[int, ...]) -> None:
    setups = load_setups(CONFIGS / f"{config}.json")
    assert tuple(setup.devices for setup in setups) == devices
    for setup in setups:
        assert (ROOT / "profiling" / "devices" / f"{setup.device}.json").exists()
