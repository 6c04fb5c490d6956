"""What conversations give InternVL's and Qwen2-Audio's encoders is what the library's own processors give."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("soundfile")
from PIL import Image
from transformers import AutoFeatureExtractor, AutoImageProcessor, WhisperFeatureExtractor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from ds_dip.data.collate import collate
from ds_dip.data.conversations import Conversations
from ds_dip.models import from_transformers
from ds_dip.models.context import Context
from ds_dip.models.hf.split import Pretrained
from ds_dip.planning.cut import sizes_of
from tests import hf_cases as cases
from tests import hf_models as models
from tests.hf_folders import texts_of, tokenizer


def chats(folder: Path, kind: str, names: list[str]) -> Path:
    asked = [{"role": "user", "content": f"<{kind}>What is it?"}, {"role": "assistant", "content": "A thing."}]
    path = folder / "chats.json"
    path.write_text(json.dumps([{"messages": asked, f"{kind}s": [name]} for name in names]))
    return path


def model_folder(folder: Path, model: Any, processor: Any, data: Path, mark: str) -> None:
    words = tokenizer(texts_of(data), "llava_onevision")
    words.add_special_tokens(
        {"additional_special_tokens": [mark, "<img>", "</img>"]}, replace_extra_special_tokens=False
    )
    # What InternVL's own tokenizer calls them.
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": mark,
        "video_token": "<video>",
    }
    words.init_kwargs.update(named)
    for name, token in named.items():
        setattr(words, name, token)
    words.chat_template = words.chat_template.replace("'image'", "'KIND'").replace("<image>", mark)
    words.chat_template = words.chat_template.replace("'KIND'", "'audio'" if "AUDIO" in mark else "'image'")
    config = model.config
    name = "audio_token_id" if "AUDIO" in mark else "image_token_id"
    setattr(config, name, words.convert_tokens_to_ids(mark))
    config.text_config.vocab_size = len(words)
    made = models.drawn(type(model), config)
    made.save_pretrained(folder)
    words.save_pretrained(folder)
    processor.save_pretrained(folder)


def loss_of(pretrained: Pretrained, data: Conversations) -> float:
    """The mean loss over all samples as one microbatch."""
    samples = [data.metadata(index) for index in range(len(data))]
    sizes, outputs = sizes_of(samples, pretrained.model), {}
    layers = cases.real_layers(pretrained, torch.float32)
    for module in pretrained.model.modules:
        fields = tuple(dict.fromkeys(name for layer in module.layers for name in layer.fields))
        arrays = collate(data, samples, module.name, fields, 0, len(sizes[module.name]))
        context = Context(sizes[module.name], {name: torch.from_numpy(own) for name, own in arrays.items()})
        x: Any = {name: outputs[name] for name in pretrained.model.upstream(module.name)}
        for layer in layers[module.name]:
            x = layer(x, context)
        outputs[module.name] = x
    count = sum(sample.loss_tokens for sample in samples)
    return float(pretrained.loss(outputs["language"], context).detach()) / count


def library_loss(model: Any, data: Conversations, inputs: list[dict[str, Any]]) -> float:
    total, count = 0.0, 0
    for index, given in enumerate(inputs):
        loaded = data.load(data.metadata(index).id, ["tokens", "labels"])
        labels = torch.from_numpy(loaded["labels"][0])
        logits = model(input_ids=torch.from_numpy(loaded["tokens"][0])[None], **given).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").detach())
        count += int((labels >= 0).sum())
    return total / count


def test_internvl_sees_the_tiles_of_its_own_processor(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, shape in (("a", (20, 60, 3)), ("b", (33, 30, 3)), ("c", (70, 21, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(tmp_path / f"{name}.png")
    data = chats(tmp_path, "image", ["a.png", "b.png", "c.png"])
    own = GotOcr2ImageProcessorPil(size={"height": 16, "width": 16}, max_patches=4, crop_to_patches=True)
    model_folder(tmp_path / "model", models.internvl(), own, data, "<IMG_CONTEXT>")
    found = Conversations(files=str(data), processor={"pretrained": str(tmp_path / "model")}, index=str(tmp_path / "i"))
    pretrained = from_transformers(tmp_path / "model")
    loss = loss_of(pretrained, found)
    processor, inputs = AutoImageProcessor.from_pretrained(tmp_path / "model"), []
    for name in "abc":
        with Image.open(tmp_path / f"{name}.png") as image:
            made = processor(images=[image.convert("RGB")], crop_to_patches=True, return_tensors="pt")
        inputs.append({"pixel_values": made["pixel_values"]})
    assert len({len(own["pixel_values"]) for own in inputs}) > 1
    model = type(models.internvl()).from_pretrained(tmp_path / "model")
    assert loss == pytest.approx(library_loss(model, found, inputs), rel=1e-5)


def test_qwen_audio_hears_the_frames_of_its_own_extractor(tmp_path: Path) -> None:
    rng, names, sounds = np.random.default_rng(0), [], []
    for number, samples in enumerate((3000, 16000, 1777, 15000)):
        sound = (rng.standard_normal(samples) * 3000).astype(np.int16)
        names.append(f"{number}.wav")
        sounds.append(sound.astype(np.float32) / 32768)
        with wave.open(str(tmp_path / names[-1]), "wb") as stream:
            stream.setnchannels(1), stream.setsampwidth(2), stream.setframerate(16000)
            stream.writeframes(sound.tobytes())
    data = chats(tmp_path, "audio", names)
    # What the tiny model hears is a second, 100 frames of 160 samples.
    own = WhisperFeatureExtractor(feature_size=8, chunk_length=1, return_attention_mask=True)
    drawn = models.qwen_audio()
    drawn.config.audio_config.max_source_positions = 50
    model_folder(tmp_path / "model", drawn, own, data, "<|AUDIO|>")
    by = {"pretrained": str(tmp_path / "model"), "encoders": ["audio"]}
    found = Conversations(files=str(data), processor=by, index=str(tmp_path / "i"))
    loss = loss_of(from_transformers(tmp_path / "model"), found)
    extractor, inputs = AutoFeatureExtractor.from_pretrained(tmp_path / "model"), []
    for sound in sounds:
        options = {"padding": "max_length", "return_attention_mask": True, "return_tensors": "pt"}
        made = extractor(sound, sampling_rate=16000, **options)
        inputs.append({"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]})
    model = type(models.qwen_audio()).from_pretrained(tmp_path / "model")
    assert loss == pytest.approx(library_loss(model, found, inputs), rel=1e-5)
