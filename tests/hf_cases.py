"""Tiny random models of transformers with data, split by chunks and compared with the library's own forward."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peft import inject_adapter_in_model
from torch import nn
from torch.nn import functional
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
from ds_dip.models.hf.split import Pretrained
from ds_dip.models.partition import Chunk, Partition
from ds_dip.planning.batch import Batch
from ds_dip.planning.build import build_problem
from ds_dip.planning.cut import cut
from ds_dip.planning.split import split
from ds_dip.programs import compile_programs
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.transport import MemoryLinks
from ds_dip.runtime.weights import let_put_off
from tests.cases import RandomCosts, random_order, random_partition
from tests.test_executor import dtype_of, loaded

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


def real_layers(pretrained: Pretrained, dtype: torch.dtype) -> dict[str, list[Any]]:
    """Every layer, built; those that share a module with another one share it here too."""
    shared: dict[str, nn.Module] = {}
    built: dict[str, list[Any]] = {}
    for name, factories in pretrained.layers.items():
        built[name] = []
        for factory in factories:
            if factory.shared is None:
                built[name].append(factory().to(dtype))
                continue
            module = shared.setdefault(factory.shared.key, factory().to(dtype))
            built[name].append(partial(factory.shared.call, module))
    return built


def module_of(layer: Any) -> nn.Module:
    return layer.args[0] if isinstance(layer, partial) else layer


class Autograd:
    """Runs chunks with plain autograd, under a loss."""

    def __init__(self, layers: Mapping[str, list[Any]], count: int, loss: Callable[..., torch.Tensor]) -> None:
        self.layers, self.count, self.sum = layers, count, loss

    def forward(self, chunk: Chunk, x: Any, context: Any) -> Any:
        for index, layer in enumerate(self.layers[chunk.module][chunk.start : chunk.stop], chunk.start):
            x = layer(x, replace(context, layer=f"{chunk.module}.{index}"))
        return x

    def loss(self, output: Any, context: Any) -> torch.Tensor:
        return self.sum(output, context)

    def backward(self, tensors: Any, gradients: Any) -> None:
        torch.autograd.backward(tensors, gradients)

    def backward_loss(self, loss: torch.Tensor) -> None:
        (loss / self.count).backward()

    def backward_weights(self, total: torch.Tensor) -> None:
        total.backward()


def pipelined(
    pretrained: Pretrained,
    layers: Mapping[str, list[Any]],
    partition: Any,
    batch: Batch,
    data: Samples,
    dtype: torch.dtype,
    seed: int,
) -> float:
    """The loss, and gradients in ``layers``, by ranks in threads in a random valid order; sometimes split backwards."""
    model, rng = pretrained.model, random.Random(seed)
    problem = build_problem(batch, model, partition, RandomCosts(seed), compute="float64")
    if seed % 3 == 0:
        problem, _ = split(problem, {task.id: rng.random() for task in problem.tasks}, 0.1)
        for chain in layers.values():
            for layer in chain:
                let_put_off(module_of(layer))
    plan = random_order(problem, rng)
    programs = compile_programs(plan.problem, plan.order, plan.start, plan.end, batch, model, partition, link_depth=2)
    links = MemoryLinks(20.0)

    def named(name: str) -> torch.dtype:
        return dtype if name == "compute" else dtype_of(name)

    def load(microbatch: Any, module: str, fields: Any, start: int, stop: int) -> dict:
        return loaded(data, microbatch, module, fields, start, stop)  # type: ignore[arg-type]

    def work(rank: int) -> Executor:
        compute, device = Autograd(layers, batch.loss_count, pretrained.loss), torch.device("cpu")
        own = Executor(model, partition, compute, links.transport(rank), load, device=device, dtype=named)
        own.begin(programs[rank], batch, train=True)
        for instruction in programs[rank].instructions:
            own.execute(instruction)
        own.finish()
        return own

    with ThreadPoolExecutor(partition.ranks) as pool:
        ranks = [future.result(timeout=60) for future in [pool.submit(work, rank) for rank in range(partition.ranks)]]
    return sum(float(own.loss_sum) for own in ranks if own.loss_sum is not None) / batch.loss_count


def library(model: Any, samples: Sequence[Sample]) -> float:
    """The mean loss over all supervised tokens by the library's own forward, each sample alone, and gradients."""
    count = sum(sample.metadata.loss_tokens for sample in samples)
    total = 0.0
    for sample in samples:
        given = {name: torch.from_numpy(value)[None] if name in ("input_ids", "labels", "mm_token_type_ids") else value
                 for name, value in sample.library.items()}  # fmt: skip
        labels = given.pop("labels")[:, 1:].flatten()
        given = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in given.items()}
        logits = model(**given, use_cache=False).logits[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    return total


def errors(pretrained: Pretrained, layers: Mapping[str, list[Any]], model: Any) -> dict[str, float]:
    """``errors_of`` all modules."""
    return {k: v for name in layers for k, v in errors_of(pretrained, layers, name, model).items()}


def errors_of(pretrained: Pretrained, layers: Mapping[str, list[Any]], name: str, model: Any) -> dict[str, float]:
    """By the library's name of a module's weights: the largest difference of the gradient over the largest gradient."""
    found: dict[str, float] = {}
    for factory, layer in zip(pretrained.layers[name], layers[name], strict=True):
        module = module_of(layer)
        names = factory.names(module)
        for own, parameter in module.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None
                continue
            wanted = model.get_parameter(names[own]).grad
            got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            wanted = torch.zeros_like(parameter) if wanted is None else wanted
            scale = float(wanted.abs().max())
            error = float((got - wanted).abs().max())
            found[names[own]] = error / scale if scale > 1e-9 else error
    return found


def fitting(sample: Sample, names: Sequence[str]) -> Sample:
    """The sample without sizes of modules that the model has not."""
    kept = {name: sizes for name, sizes in sample.metadata.modules.items() if name in names}
    merged = {name: sizes for name, sizes in sample.metadata.merged.items() if name in names}
    return replace(sample, metadata=replace(sample.metadata, modules=kept, merged=merged))


def copied(pretrained: Pretrained, layers: Mapping[str, list[Any]], model: Any) -> Any:
    """The library's model with the weights that peft added to the layers, and gradients of all."""
    model.requires_grad_(True)
    for name, chain in layers.items():
        for factory, layer in zip(pretrained.layers[name], chain, strict=True):
            module = module_of(layer)
            names = factory.names(module)
            for own, parameter in module.named_parameters():
                if "lora_" in own:
                    torch.nn.init.normal_(parameter, std=0.1)
                    model.get_parameter(names[own]).data.copy_(parameter)
    return model


def drawn_adapted(model: Any, lora: Any) -> Any:
    """The library's model with peft's layers, in place."""
    return inject_adapter_in_model(lora, model)


def placed(model: Any, ranks: int, laps: int, rng: random.Random) -> Partition:
    """Random bounds; a module of fewer layers than ranks lives on the first ones."""
    small = [m for m in model.modules if len(m.layers) < ranks]
    whole = replace(model, modules=tuple(m for m in model.modules if m not in small))
    most = {m.name: min(laps, len(m.layers) // ranks) for m in whole.modules}
    made = random_partition(whole, ranks, most, rng)
    chunks = []
    for module in model.modules:
        own = [Chunk(module.name, n, 0, n, n, n + 1) for n in range(len(module.layers))]
        chunks += own if module in small else made.of(module.name)
    limits = [(m.name, rng.choice((None, 1, 2))) for m in model.modules if not model.upstream(m.name)]
    return Partition(ranks, tuple(chunks), tuple(limits) if len(model.modules) > 1 else ())


def compare(
    model: Any, make: Callable[[int], Sample], chosen: Sequence[int], *, ranks: int, laps: int, seed: int,
    dtype: torch.dtype, frozen: Sequence[str] = (), reference: Any = None, **options: Any,
) -> tuple[float, float, dict[str, float]]:  # fmt: skip
    """(loss by the pipeline, loss by the library, errors of gradients) for samples in two or three microbatches."""
    from ds_dip.models.hf.split import from_transformers

    model = model.to(dtype)
    pretrained = from_transformers(model, frozen=frozen, dtype=dtype, **options)
    names = [module.name for module in pretrained.model.modules]
    data, rng = Samples(lambda index: fitting(make(index), names), max(chosen) + 1), random.Random(seed)
    partition = placed(pretrained.model, ranks, laps, rng)
    samples = [data.metadata(index) for index in chosen]
    half = len(chosen) // 2
    share = [tuple(range(half)), tuple(range(half, len(chosen)))]
    batch = cut(0, samples, share, pretrained.model, partition)
    layers = real_layers(pretrained, dtype)
    if reference is not None:
        model = copied(pretrained, layers, reference)
    loss = pipelined(pretrained, layers, partition, batch, data, dtype, seed)
    expected = library(model, [data.samples[index] for index in chosen])
    return loss, expected, errors(pretrained, layers, model)


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
