"""Wan behind UMT5: whatever the plan, the loss and gradients are those of the libraries' own forward."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from diffusers import WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.context import Context
from ds_dip.models.diffusion import drawn
from ds_dip.models.hf.diffusers import from_diffusers
from ds_dip.models.hf.latents import latents_of
from ds_dip.models.hf.shell import SplitError
from ds_dip.models.spec import Sizes
from ds_dip.planning.cut import cut
from tests import hf_cases as cases
from tests import hf_models as models
from tests.distributed.ranks import run_ranks

CHANNELS, PATCH = 3, (1, 2, 2)
STEP = 4


def encoder() -> UMT5EncoderModel:
    config = UMT5Config(vocab_size=50, d_model=12, d_kv=4, d_ff=20, num_layers=3, num_heads=3, dropout_rate=0.1)
    return models.drawn(UMT5EncoderModel, config)


def transformer(**changes: Any) -> WanTransformer3DModel:
    torch.manual_seed(1)
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": CHANNELS, "out_channels": CHANNELS,
             "text_dim": 12, "freq_dim": 16, "ffn_dim": 32, "num_layers": 3, "rope_max_seq_len": 16}  # fmt: skip
    return WanTransformer3DModel(**(sizes | changes))


def sample(index: int) -> models.Sample:
    """One or two clips, each with its prompt."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    tokens, latents, places = [], [], []
    for _ in range(rng.randint(1, 2)):
        frames, height, width = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3)
        tokens.append(np.array([rng.randrange(50) for _ in range(rng.randint(1, 5))]))
        latents.append(noise.standard_normal((frames * height * width, 4 * CHANNELS)))
        places.append(np.stack(np.unravel_index(np.arange(len(latents[-1])), (frames, height, width)), 1))
    words, sizes = tuple(map(len, tokens)), tuple(map(len, latents))
    metadata = SampleMetadata(str(index), {"text": words, "video": sizes}, sum(sizes), {"text": words, "video": words})
    return models.Sample(metadata, {"tokens": tokens, "latents": latents, "places": places})


def dataset(count: int) -> models.Samples:
    """For ranks."""
    return models.Samples(sample, count)


def library(text: Any, video: Any, samples: list[models.Sample], dtype: torch.dtype) -> float:
    """The mean squared error of the velocities by both libraries' own forward, clip by clip, and gradients."""
    count, total = sum(own.metadata.loss_tokens for own in samples), 0.0
    for own in samples:
        for number, (words, rows, places) in enumerate(zip(*own.fields.values(), strict=True)):
            latents = torch.from_numpy(rows).to(dtype)
            context = Context(Sizes((len(rows),), (len(words),)), {}, (f"{own.metadata.id}/{number}",), STEP)
            times, noise = drawn(context, latents)
            grid = tuple((places[-1] + 1).tolist())
            mixed = latents_of(torch.lerp(latents, noise, times[:, None]), grid, PATCH)[None]
            prompt = text(torch.from_numpy(words)[None]).last_hidden_state
            velocity = video(mixed, times * 1000, prompt, return_dict=False)[0]
            wanted = latents_of(noise - latents, grid, PATCH)
            loss = (velocity[0] - wanted).square().mean() * len(rows) / count
            loss.backward()
            total += float(loss.detach())
    return total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("ranks", "frozen"), [(1, ("text",)), (2, ()), (4, ("text",))])
def test_loss_and_gradients_are_the_libraries(ranks: int, frozen: tuple[str, ...], dtype: torch.dtype) -> None:
    text, video = encoder().to(dtype).eval(), transformer().to(dtype)
    pretrained = from_diffusers(video, text, frozen=frozen, dtype=dtype)
    rng, data = random.Random(ranks), models.Samples(sample, 5)
    samples = [data.metadata(index) for index in range(5)]
    partition = cases.placed(pretrained.model, ranks, 1 + (ranks == 1), rng)
    batch = cut(STEP, samples, [(0,), (1, 2), (3, 4)], pretrained.model, partition)
    layers = cases.real_layers(pretrained, dtype)
    loss = cases.pipelined(pretrained, layers, partition, batch, data, dtype, ranks)
    expected = library(text, video, data.samples, dtype)
    bound = 1e-10 if dtype == torch.float64 else 1e-5
    assert loss == pytest.approx(expected, rel=bound)
    for name, model in (("text", text), ("video", video)):
        own = cases.errors_of(pretrained, layers, name, model)
        assert bool(own) == (name not in frozen)
        assert max(own.values(), default=0.0) <= bound, max(own, key=lambda weight: own[weight])


def test_folders_of_both_libraries_are_read(tmp_path: Path) -> None:
    text, video = encoder(), transformer()
    text.save_pretrained(tmp_path / "text_encoder")
    video.save_pretrained(tmp_path / "transformer", max_shard_size="20KB")
    pretrained = from_diffusers(tmp_path / "transformer", tmp_path / "text_encoder")
    for name, model in (("text", text), ("video", video)):
        for factory in pretrained.layers[name]:
            module = factory()
            for own, known in factory.names(module).items():
                assert torch.equal(module.state_dict()[own], model.state_dict()[known]), known


def test_other_transformers_are_refused() -> None:
    with pytest.raises(SplitError, match="image_embedder has 8 inputs"):
        from_diffusers(transformer(image_dim=8, added_kv_proj_dim=24), encoder())
    with pytest.raises(SplitError, match="takes 16 numbers, the text encoder gives 12"):
        from_diffusers(transformer(text_dim=16), encoder())
    with pytest.raises(SplitError, match="the text encoder is llama"):
        from_diffusers(transformer(), models.llama())
    with pytest.raises(SplitError, match="transformer is a Linear"):
        from_diffusers(torch.nn.Linear(1, 1), encoder())


@pytest.mark.nightly
def test_two_ranks_train_as_one_and_save_what_diffusers_loads(tmp_path: Path) -> None:
    encoder().save_pretrained(tmp_path / "text_encoder")
    transformer().save_pretrained(tmp_path / "transformer", max_shard_size="20KB")
    data = "tests.test_models_hf_wan:dataset"
    ((alone,),) = run_ranks("tests.distributed.hf_diffusion", 1, str(tmp_path), data)
    for (found,) in run_ranks("tests.distributed.hf_diffusion", 2, str(tmp_path), data):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert len(set(alone["losses"])) == 8
    one, two = (WanTransformer3DModel.from_pretrained(tmp_path / f"trained-{ranks}") for ranks in (1, 2))
    before = transformer()
    for name, own in one.named_parameters():
        assert torch.allclose(own, two.get_parameter(name), rtol=1e-3, atol=1e-5), name
        assert not torch.equal(own, before.get_parameter(name)), name
