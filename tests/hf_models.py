"""Tiny models of transformers and samples for them: what the split model reads, and what the library is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
)
from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches
from transformers.vision_utils import get_vision_position_ids

from ds_dip.data.metadata import SampleMetadata

VOCABULARY = 90
#: Kinds of samples: how many images and videos.
KINDS = {"text": (0, 0), "image": (1, 0), "images": (3, 0), "video": (0, 1), "mixed": (1, 1)}


@dataclass(frozen=True)
class Sample:
    """One sample: fields as the split model reads them, and ``library``, what the library's forward is called with."""

    metadata: SampleMetadata
    fields: Mapping[str, list[np.ndarray]]
    library: Mapping[str, Any] = field(default_factory=dict)


class Samples:
    """A dataset of ``count`` samples that ``make`` draws, each from its index."""

    def __init__(self, make: Callable[[int], Sample], count: int) -> None:
        self.samples = [make(index) for index in range(count)]

    def __len__(self) -> int:
        return len(self.samples)

    def metadata(self, index: int) -> SampleMetadata:
        return self.samples[index].metadata

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        return {name: self.samples[int(sample)].fields[name] for name in fields}


def rows_of(tiles: np.ndarray, side: int) -> np.ndarray:
    """Images [tiles, channels, edge, edge] as rows of patches, each image's row by row."""
    count, channels, edge, _ = tiles.shape
    cut = tiles.reshape(count, channels, side, edge // side, side, edge // side)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(count * side**2, -1)


def labels_of(tokens: np.ndarray, rng: random.Random, ignored: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(labels as the library takes them, the next token of every row), some not supervised."""
    labels = np.where([rng.random() < 0.7 for _ in tokens], tokens, -100)
    labels[np.isin(tokens, ignored)] = -100
    labels[-1] = tokens[-1]
    return labels, np.concatenate([labels[1:], [-100]])


def text_sample(index: int) -> Sample:
    rng = random.Random(index)
    tokens = np.array([rng.randrange(10, VOCABULARY) for _ in range(rng.randint(2, 9))])
    labels, following = labels_of(tokens, rng)
    size = (len(tokens),)
    metadata = SampleMetadata(str(index), {"language": size}, int((following >= 0).sum()))
    return Sample(metadata, {"tokens": [tokens], "labels": [following]}, {"input_ids": tokens, "labels": labels})


def llama_config(**changes: Any) -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
    }
    return LlamaConfig(**(sizes | changes))


def llama(**changes: Any) -> Any:
    return drawn(LlamaForCausalLM, llama_config(**changes))


def llava_config(**changes: Any) -> Any:
    text = {"model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    vision = {"model_type": "siglip_vision_model", "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 7}  # fmt: skip
    options = {
        "image_token_id": 3,
        "video_token_id": 4,
        "image_grid_pinpoints": [[28, 28], [28, 56], [56, 28], [56, 56]],
    }
    return LlavaOnevisionConfig(text_config=text | changes.pop("text", {}), vision_config=vision, **options | changes)


def llava(**changes: Any) -> Any:
    return drawn(LlavaOnevisionForConditionalGeneration, llava_config(**changes))


def llava_sample(index: int) -> Sample:
    """Pictures cut into tiles where there is one, whole where there are several; videos of two or three frames."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    images, videos = KINDS[list(KINDS)[index % len(KINDS)]]
    config, text = LLAVA.config, [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
    pixels, layout, sizes, merged = [], [], [], []
    tiles, image_sizes, frames = [], [], []
    for _ in range(images):
        size = (rng.randint(20, 60), rng.randint(20, 60))
        count = image_size_to_num_patches(list(size), config.image_grid_pinpoints, 28) if images == 1 else 1
        own = noise.standard_normal((count, 3, 28, 28))
        holder = SimpleNamespace(config=config)
        empty = torch.zeros(count, 16, 1)
        (packed,), _ = LlavaOnevisionModel.pack_image_features(holder, [empty], [size], torch.zeros(1))
        tiles.append(own)
        image_sizes.append(size)
        merged.append(len(packed))
        text += [3] * len(packed) + [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
        pixels.append(own), layout.append((0, *size))
    for _ in range(videos):
        own = noise.standard_normal((rng.randint(2, 3), 3, 28, 28))
        frames.append(own)
        merged.append(len(own) * 4 + 1)
        text += [4] * merged[-1] + [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
        pixels.append(own), layout.append((1, 28, 28))
    tokens = np.array(text)
    labels, following = labels_of(tokens, rng, (3, 4))
    rows = [own.reshape(-1, 3, 4, 7, 4, 7).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 147) for own in pixels]
    sizes = [len(own) for own in rows]
    modules = {"vision": tuple(sizes), "projector": tuple(sizes), "language": (len(tokens),)}
    whole = {"vision": tuple(merged), "projector": tuple(merged), "language": (len(tokens),)}
    metadata = SampleMetadata(str(index), modules, int((following >= 0).sum()), whole)
    fields = {
        "tokens": [tokens],
        "labels": [following],
        "pixels": rows,
        "layout": [np.tile(np.array(own), (size, 1)) for own, size in zip(layout, sizes, strict=True)],
    }
    given: dict[str, Any] = {"input_ids": tokens, "labels": labels}
    if tiles:
        most = max(len(own) for own in tiles)
        padded = [np.concatenate([own, np.zeros((most - len(own), 3, 28, 28))]) for own in tiles]
        given |= {"pixel_values": torch.from_numpy(np.stack(padded)), "image_sizes": torch.tensor(image_sizes),
                  "batch_num_images": torch.tensor([images])}  # fmt: skip
    if frames:
        given["pixel_values_videos"] = torch.from_numpy(np.stack(frames))
    return Sample(metadata, fields, given)


def qwen_vl(**changes: Any) -> Any:
    text = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}  # fmt: skip
    vision = {"depth": 3, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 4,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
              "out_hidden_size": 16}  # fmt: skip
    options = {"image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
    config = Qwen2_5_VLConfig(text_config=text | changes.pop("text", {}), vision_config=vision, **options | changes)
    return drawn(Qwen2_5_VLForConditionalGeneration, config)


def qwen_vl_sample(index: int) -> Sample:
    """Pictures of any even sides, videos of two or three steps; rows in blocks of four as the processor gives them."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    images, videos = KINDS[list(KINDS)[index % len(KINDS)]]
    config, text = QWEN_VL.config, [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
    types, grids = [0] * len(text), {1: [], 2: []}
    for kind in [1] * images + [2] * videos:
        grid = (1 if kind == 1 else rng.randint(2, 3), 2 * rng.randint(1, 4), 2 * rng.randint(1, 4))
        grids[kind].append(grid)
        after = [6, *(rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3)))]
        count = grid[0] * grid[1] * grid[2] // 4
        text += [5] + [2 + kind] * count + after
        types += [0] + [kind] * count + [0] * len(after)
    tokens, seconds = np.array(text), torch.full((videos,), 0.5)
    labels, following = labels_of(tokens, rng, (3, 4))
    given: dict[str, Any] = {"input_ids": tokens, "labels": labels, "mm_token_type_ids": np.array(types)}
    pixels, places = [], []
    for kind, name in ((1, "image"), (2, "video")):
        if not grids[kind]:
            continue
        own = [noise.standard_normal((t * h * w, 96)) for t, h, w in grids[kind]]
        grid = torch.tensor(grids[kind])
        given["pixel_values" if kind == 1 else "pixel_values_videos"] = torch.from_numpy(np.concatenate(own))
        given[f"{name}_grid_thw"] = grid
        if kind == 2:
            given["second_per_grid_ts"] = seconds
        for rows, (t, h, w) in zip(own, grids[kind], strict=True):
            pixels += np.split(rows, t)
            places += [get_vision_position_ids(torch.tensor([(1, h, w)]), 2).numpy()] * t
    steps = [[torch.tensor(grids[kind]) if grids[kind] else None] for kind in (1, 2)]
    own = SimpleNamespace(config=config)
    own.get_vision_position_ids = partial(Qwen2_5_VLModel.get_vision_position_ids, own)
    whole = torch.from_numpy(tokens)[None], torch.tensor(types)[None]
    positions = Qwen2_5_VLModel.get_rope_index(own, *whole, steps[0][0], steps[1][0], seconds)[0][:, 0].t()
    sizes = tuple(len(own) for own in pixels)
    modules = {"vision": sizes, "projector": sizes, "language": (len(tokens),)}
    small = tuple(size // 4 for size in sizes)
    whole = {"vision": small, "projector": small, "language": (len(tokens),)}
    metadata = SampleMetadata(str(index), modules, int((following >= 0).sum()), whole)
    fields = {"tokens": [tokens], "labels": [following], "pixels": pixels, "places": places}
    fields["positions"] = [positions.contiguous().numpy()]
    return Sample(metadata, fields, given)


QWEN_TEXT = {"model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
             "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None,
             "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip


def internvl(**changes: Any) -> Any:
    vision = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
              "image_size": [16, 16], "patch_size": [4, 4], "layer_scale_init_value": 0.5, "use_qk_norm": True,
              "use_mean_pooling": False} | changes.pop("vision", {})  # fmt: skip
    config = InternVLConfig(text_config=QWEN_TEXT, vision_config=vision, image_token_id=3, **changes)
    return drawn(InternVLForConditionalGeneration, config)


def internvl_sample(index: int) -> Sample:
    """Pictures of one to three tiles, videos of as many frames."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    text, tiles = [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))], []
    for _ in range(sum(KINDS[list(KINDS)[index % len(KINDS)]])):
        tiles.append(noise.standard_normal((rng.randint(1, 3), 3, 16, 16)))
        text += [3] * 4 * len(tiles[-1]) + [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
    tokens = np.array(text)
    labels, following = labels_of(tokens, rng, (3,))
    pixels = [np.insert(rows_of(own, 4).reshape(-1, 16, 48), 0, 0.0, axis=1).reshape(-1, 48) for own in tiles]
    given: dict[str, Any] = {"input_ids": tokens, "labels": labels}
    if tiles:
        given["pixel_values"] = torch.from_numpy(np.concatenate(tiles))
    return encoded(index, "vision", tokens, following, {"pixels": pixels}, [4 * len(own) for own in tiles], given)


def encoded(
    index: int,
    encoder: str,
    tokens: np.ndarray,
    labels: np.ndarray,
    fields: Mapping[str, list[np.ndarray]],
    merged: Sequence[int],
    given: Mapping[str, Any],
) -> Sample:
    """A sample of a language model behind an encoder that has the fields; ``merged`` are instances' rows of text."""
    sizes, language = tuple(len(own) for own in next(iter(fields.values()))), (len(tokens),)
    modules = {encoder: sizes, "projector": sizes, "language": language}
    whole = {encoder: tuple(merged), "projector": tuple(merged), "language": language}
    metadata = SampleMetadata(str(index), modules, int((labels >= 0).sum()), whole)
    return Sample(metadata, {"tokens": [tokens], "labels": [labels], **fields}, given)


def qwen_audio_config(**changes: Any) -> Any:
    audio = {
        "d_model": 16,
        "encoder_layers": 3,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 20,
        "num_mel_bins": 8,
        "max_source_positions": 20,
    }
    audio["encoder_layerdrop"] = changes.pop("encoder_layerdrop", 0.0)  # fmt: skip
    return Qwen2AudioConfig(audio_config=audio, text_config=QWEN_TEXT, audio_token_id=3, **changes)


def qwen_audio(**changes: Any) -> Any:
    return drawn(Qwen2AudioForConditionalGeneration, qwen_audio_config(**changes))


def qwen_audio_sample(index: int) -> Sample:
    """Clips of any length, the longest as long as the library pads to."""
    rng, noise = random.Random(index), np.random.default_rng(index)
    text, frames, mel = [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))], [], []
    for _ in range(sum(KINDS[list(KINDS)[index % len(KINDS)]])):
        frames.append(rng.choice((40, rng.randint(9, 39))))
        mel.append(noise.standard_normal((40, 8)))
    rows = [(own - 1) // 2 + 1 for own in frames]
    for own in rows:
        text += [3] * (own // 2) + [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(1, 3))]
    tokens = np.array(text)
    labels, following = labels_of(tokens, rng, (3,))
    padded = [np.concatenate([own, np.zeros((1, 8))]) for own in mel]
    packed = [np.stack([own[2 * n : 2 * n + 3].flatten() for n in range(count)]) for own, count in
              zip(padded, rows, strict=True)]  # fmt: skip
    given: dict[str, Any] = {"input_ids": tokens, "labels": labels}
    if frames:
        given["input_features"] = torch.from_numpy(np.stack(mel)).transpose(1, 2)
        given["feature_attention_mask"] = torch.tensor([[int(n < own) for n in range(40)] for own in frames])
    return encoded(index, "audio", tokens, following, {"mel": packed}, [own // 2 for own in rows], given)


def drawn(cls: Any, config: Any, seed: int = 0) -> Any:
    """The library's model with weights large enough to tell a wrong gradient."""
    torch.manual_seed(seed)
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def fitting(sample: Sample, names: Sequence[str]) -> Sample:
    """The sample without sizes of modules that the model has not."""
    kept = {name: sizes for name, sizes in sample.metadata.modules.items() if name in names}
    merged = {name: sizes for name, sizes in sample.metadata.merged.items() if name in names}
    return replace(sample, metadata=replace(sample.metadata, modules=kept, merged=merged))


LLAVA, QWEN_VL = llava(), qwen_vl()
#: By name: how a model is made and how its samples are.
FAMILIES: dict[str, tuple[Callable[..., Any], Callable[[int], Sample]]] = {
    "llama": (llama, text_sample),
    "llava_onevision": (llava, llava_sample),
    "qwen2_5_vl": (qwen_vl, qwen_vl_sample),
    "internvl": (internvl, internvl_sample),
    "qwen2_audio": (qwen_audio, qwen_audio_sample),
}


def dataset(family: str, count: int, names: Sequence[str]) -> Samples:
    """The family's samples, for modules of these names."""
    return Samples(lambda index: fitting(FAMILIES[family][1](index), names), count)
