"""Folders of tiny models of transformers: tokenizer of bytes, chat template, image processor, configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="install the extra hf")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>", "<|AUDIO|>"]  # fmt: skip
IMAGE, VIDEO, AUDIO = 261, 262, 263
#: Qwen's, shortened.
QWEN = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}\
<|vision_start|><|image_pad|><|vision_end|>{% elif p['type'] == 'audio' %}<|AUDIO|>\
{% elif p['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>\
{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
#: LLaVA-OneVision's: media before a turn's text, answers marked.
LLAVA = """{% for m in messages %}{{'<|im_start|>' + m['role'] + ' '}}\
{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<|image_pad|>' }}{% endfor %}\
{% for p in m['content'] | selectattr('type', 'equalto', 'video') %}{{ '<|video_pad|>' }}{% endfor %}\
{% if m['role'] != 'assistant' %}{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}\
{{ '\\n' + p['text'] }}{% endfor %}{% else %}{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}\
{% generation %}{{ '\\n' + p['text'] }}{% endgeneration %}{% endfor %}{% endif %}{{'<|im_end|>'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def tokenizer(template: str | None) -> Any:
    """Bytes are tokens, special tokens follow; no merges, and nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:],
        chat_template=template,
    )


def saved(folder: Path, config: dict[str, Any], template: str | None, image_processor: Any = None) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(template).save_pretrained(folder)
    if image_processor is not None:
        image_processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def text_folder(folder: Path, template: str | None = QWEN) -> str:
    return saved(folder, {"model_type": "llama"}, template)


def qwen_folder(folder: Path) -> str:
    """Qwen2.5-VL: patches of 4 pixels, squares of 4 merged, images of 16 to 256 patches."""
    from transformers import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    )
    config = {"model_type": "qwen2_5_vl", "image_token_id": IMAGE, "video_token_id": VIDEO,
              "vision_config": {"tokens_per_second": 2}}  # fmt: skip
    return saved(folder, config, QWEN, processor)


def llava_folder(folder: Path) -> str:
    """LLaVA-OneVision: tiles of 28 pixels in patches of 7, at most two by two of them."""
    from transformers import LlavaOnevisionImageProcessorPil

    processor = LlavaOnevisionImageProcessorPil(
        size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 28], [28, 56], [56, 28], [56, 56]]
    )
    config = {"model_type": "llava_onevision", "image_token_id": IMAGE, "video_token_id": VIDEO,
              "vision_aspect_ratio": "anyres_max_9", "vision_config": {"patch_size": 7, "image_size": 28}}  # fmt: skip
    return saved(folder, config, LLAVA, processor)


def audio_folder(folder: Path) -> str:
    """Qwen2-Audio: 8 bins, sounds of at most 6 seconds."""
    from transformers import WhisperFeatureExtractor

    config = {"model_type": "qwen2_audio", "audio_token_id": AUDIO, "audio_config": {}}
    return saved(folder, config, QWEN, WhisperFeatureExtractor(feature_size=8, chunk_length=6))


def internvl_folder(folder: Path) -> str:
    """InternVL: tiles of 28 pixels in patches of 7, four tokens each, at most four of them and the whole."""
    from transformers import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, max_patches=4)
    config = {"model_type": "internvl", "image_token_id": IMAGE, "vision_config": {"patch_size": [7, 7]}}
    path = saved(folder, config, QWEN, processor)
    named = {"start_image_token": SPECIAL[3], "end_image_token": SPECIAL[4], "context_image_token": SPECIAL[5],
             "video_token": SPECIAL[6]}  # fmt: skip
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"extra_special_tokens": named}))
    return path
