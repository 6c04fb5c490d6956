"""PixArt behind T5: whatever the plan, the loss and gradients are those of the libraries' own forward."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from diffusers import DDPMScheduler, PixArtTransformer2DModel
from transformers import T5Config, T5EncoderModel

from ds_dip.data.metadata import SampleMetadata
from ds_dip.files import FileError
from ds_dip.models import load_model
from ds_dip.models.context import Context
from ds_dip.models.diffusion import drawn
from ds_dip.models.hf.diffusers import from_diffusers
from ds_dip.models.hf.latents import latents_of
from ds_dip.models.hf.pixart import Positions
from ds_dip.models.hf.shell import SplitError
from ds_dip.models.parameters import module_parameters
from ds_dip.models.spec import Sizes
from ds_dip.planning.cut import cut
from tests import hf_cases as cases
from tests import hf_models as models
from tests.distributed.ranks import run_ranks

CHANNELS, SIDE, STEP = 3, 2, 4


def encoder() -> T5EncoderModel:
    config = T5Config(vocab_size=50, d_model=12, d_kv=4, d_ff=20, num_layers=3, num_heads=3, dropout_rate=0.1,
                      feed_forward_proj="gated-gelu", relative_attention_num_buckets=8,
                      relative_attention_max_distance=10)  # fmt: skip
    return models.drawn(T5EncoderModel, config)


def transformer(**changes: Any) -> PixArtTransformer2DModel:
    torch.manual_seed(1)
    sizes = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": CHANNELS, "out_channels": 2 * CHANNELS,
             "cross_attention_dim": 16, "num_layers": 3, "sample_size": 8, "caption_channels": 12}  # fmt: skip
    return PixArtTransformer2DModel(**(sizes | changes))


def sample(index: int) -> models.Sample:
    """One or two pictures, each with its prompt."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    tokens, latents, places = [], [], []
    for _ in range(rng.randint(1, 2)):
        height, width = rng.randint(1, 4), rng.randint(1, 4)
        tokens.append(np.array([rng.randrange(50) for _ in range(rng.randint(1, 15))]))
        latents.append(noise.standard_normal((height * width, SIDE**2 * CHANNELS)))
        places.append(np.stack(np.unravel_index(np.arange(len(latents[-1])), (height, width)), 1))
    words, sizes = tuple(map(len, tokens)), tuple(map(len, latents))
    metadata = SampleMetadata(str(index), {"text": words, "image": sizes}, sum(sizes), {"text": words, "image": words})
    return models.Sample(metadata, {"tokens": tokens, "latents": latents, "places": places})


def dataset(count: int) -> models.Samples:
    """For ranks."""
    return models.Samples(sample, count)


def library(text: Any, image: Any, scheduler: Any, samples: list[models.Sample], dtype: torch.dtype) -> float:
    """The mean squared error of noise or velocity by both libraries' own forward, picture by picture, and gradients."""
    count, total = sum(own.metadata.loss_tokens for own in samples), 0.0
    for own in samples:
        for number, (words, rows, places) in enumerate(zip(*own.fields.values(), strict=True)):
            latents = torch.from_numpy(rows).to(dtype)
            context = Context(Sizes((len(rows),), (len(words),)), {}, (f"{own.metadata.id}/{number}",), STEP)
            times, noise = drawn(context, latents)
            grid, patch = tuple((places[-1] + 1).tolist()), (SIDE, SIDE)
            clean, noise = (latents_of(part, grid, patch)[None] for part in (latents, noise))
            step = (times * 1000).long()
            prompt = text(torch.from_numpy(words)[None]).last_hidden_state
            mixed = scheduler.add_noise(clean, noise, step)
            given = image(mixed, prompt, timestep=step, return_dict=False)[0]
            given = given.chunk(2, dim=1)[0] if given.shape[1] > CHANNELS else given
            velocity = scheduler.config.prediction_type == "v_prediction"
            wanted = scheduler.get_velocity(clean, noise, step) if velocity else noise
            loss = (given - wanted).square().mean() * len(rows) / count
            loss.backward()
            total += float(loss.detach())
    return total


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("ranks", "frozen", "kind"), [(1, ("text",), "epsilon"), (2, (), "v_prediction"), (4, ("text",), "epsilon")]
)
def test_loss_and_gradients_are_the_libraries(
    ranks: int, frozen: tuple[str, ...], kind: str, dtype: torch.dtype
) -> None:
    scheduler = DDPMScheduler(beta_schedule="scaled_linear", prediction_type=kind)
    text = encoder().to(dtype).eval()
    image = transformer(out_channels=CHANNELS * (1 + (ranks < 4))).to(dtype)
    pretrained = from_diffusers(image, text, scheduler=scheduler, frozen=frozen, dtype=dtype)
    rng, data = random.Random(ranks), models.Samples(sample, 5)
    samples = [data.metadata(index) for index in range(5)]
    partition = cases.placed(pretrained.model, ranks, 1 + (ranks == 1), rng)
    batch = cut(STEP, samples, [(0,), (1, 2), (3, 4)], pretrained.model, partition)
    layers = cases.real_layers(pretrained, dtype)
    loss = cases.pipelined(pretrained, layers, partition, batch, data, dtype, ranks)
    expected = library(text, image, scheduler, data.samples, dtype)
    bound = 1e-10 if dtype == torch.float64 else 1e-5
    assert loss == pytest.approx(expected, rel=bound)
    for name, model in (("text", text), ("image", image)):
        own = cases.errors_of(pretrained, layers, name, model)
        assert bool(own) == (name not in frozen)
        assert max(own.values(), default=0.0) <= bound, max(own, key=lambda weight: own[weight])


def test_positions_of_a_picture_of_the_models_own_size_are_the_librarys() -> None:
    embedder = transformer().pos_embed
    own = Positions(16, embedder.base_size, embedder.interpolation_scale)
    assert torch.equal(own.of((4, 4), torch.device("cpu")), embedder.pos_embed[0])


def test_a_pipelines_folders_are_read_with_its_noise(tmp_path: Path) -> None:
    text, image = encoder(), transformer()
    text.save_pretrained(tmp_path / "text_encoder")
    image.save_pretrained(tmp_path / "transformer", max_shard_size="20KB")
    folders = tmp_path / "transformer", tmp_path / "text_encoder"
    drawn_with: Any = from_diffusers(*folders).loss
    assert drawn_with.scheduler.config.beta_start == DDPMScheduler().config.beta_start
    DDPMScheduler(beta_start=0.002, beta_end=0.03).save_pretrained(tmp_path / "scheduler")
    pretrained = from_diffusers(*folders)
    trained_with: Any = pretrained.loss
    assert trained_with.scheduler.config.beta_start == 0.002
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "PixArtSigmaPipeline"}))
    assert load_model(tmp_path) == from_diffusers(tmp_path).model == pretrained.model
    for own in load_model(tmp_path).modules:
        model = {"text": text, "image": image}[own.name]
        assert module_parameters(load_model(tmp_path), own.name) == sum(p.numel() for p in model.parameters())
    for name, model in (("text", text), ("image", image)):
        for factory in pretrained.layers[name]:
            module = factory()
            for own, known in factory.names(module).items():
                assert torch.equal(module.state_dict()[own], model.state_dict()[known]), known


def test_other_transformers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="adaln_single.emb.resolution_embedder takes each picture's resolution"):
        from_diffusers(transformer(use_additional_conditions=True), encoder())
    with pytest.raises(SplitError, match="caption_projection takes 16 numbers, the text encoder gives 12"):
        from_diffusers(transformer(caption_channels=16), encoder())
    with pytest.raises(SplitError, match="prediction_type is 'sample'"):
        from_diffusers(transformer(), encoder(), scheduler=DDPMScheduler(prediction_type="sample"))
    with pytest.raises(SplitError, match="proj_out gives 5 channels for 3"):
        from_diffusers(transformer(out_channels=5), encoder())
    with pytest.raises(FileError, match="has no config.json"):
        from_diffusers(tmp_path, encoder())
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))
    with pytest.raises(SplitError, match="transformer is a UNet2DConditionModel, expected"):
        from_diffusers(tmp_path, encoder())
    with pytest.raises(FileError, match="scheduler .* cannot be read"):
        from_diffusers(transformer(), encoder(), scheduler=tmp_path / "none")


@pytest.mark.nightly
def test_two_ranks_train_as_one_and_save_what_diffusers_loads(tmp_path: Path) -> None:
    encoder().save_pretrained(tmp_path / "text_encoder")
    transformer().save_pretrained(tmp_path / "transformer", max_shard_size="20KB")
    data = "tests.test_models_hf_pixart:dataset"
    ((alone,),) = run_ranks("tests.distributed.hf_diffusion", 1, str(tmp_path), data)
    for (found,) in run_ranks("tests.distributed.hf_diffusion", 2, str(tmp_path), data):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert len(set(alone["losses"])) == 8
    one, two = (PixArtTransformer2DModel.from_pretrained(tmp_path / f"trained-{ranks}") for ranks in (1, 2))
    before = transformer()
    changed = 0
    for name, own in one.named_parameters():
        assert torch.allclose(own, two.get_parameter(name), rtol=1e-3, atol=1e-5), name
        changed += not torch.equal(own, before.get_parameter(name))
    assert changed > 0.9 * len(list(before.parameters()))
