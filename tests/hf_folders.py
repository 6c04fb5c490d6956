"""Folders of tiny random models as their publishers' are: weights, tokenizers, processors; and of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<image>", "<video>")
#: The library's own form of a chat, as both families have it.
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for piece in message['content'] %}\
{% if piece['type'] == 'image' %}IMAGE{% else %}{{ piece['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
#: What stands in the text for an image.
PLACES = {"qwen2_5_vl": "<|vision_start|><image><|vision_end|>", "llava_onevision": "<image>\n"}


def tokenizer(texts: list[str], family: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer trained on the texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        chat_template=TEMPLATE.replace("IMAGE", PLACES.get(family, "")),
    )


def text_config(words: PreTrainedTokenizerFast, **options: Any) -> dict[str, Any]:
    ids = {"bos_token_id": None, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    return ids | sizes | {"vocab_size": len(words), "num_key_value_heads": 2, **options}


def qwen_vl(words: PreTrainedTokenizerFast, ids: Mapping[str, int]) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14,
              "window_size": 56, "fullatt_block_indexes": [1], "out_hidden_size": 64}  # fmt: skip
    config = Qwen2_5_VLConfig(text_config=text_config(words, rope_parameters=rope), vision_config=vision, **ids)
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112})
    return Qwen2_5_VLForConditionalGeneration(config), processor


def llava(words: PreTrainedTokenizerFast, ids: Mapping[str, int]) -> tuple[Any, Any]:
    vision = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
              "num_attention_heads": 2, "image_size": 42, "patch_size": 14}  # fmt: skip
    grids = [[42, 42], [42, 84], [84, 42], [84, 84]]
    own = {name: ids[name] for name in ("image_token_id", "video_token_id")}
    text = text_config(words, model_type="qwen2")
    config = LlavaOnevisionConfig(text_config=text, vision_config=vision, image_grid_pinpoints=grids, **own)
    processor = LlavaOnevisionImageProcessorPil(size={"height": 42, "width": 42}, image_grid_pinpoints=grids)
    return LlavaOnevisionForConditionalGeneration(config), processor


MODELS = {"qwen2_5_vl": qwen_vl, "llava_onevision": llava}


def texts_of(data: Path) -> list[str]:
    """What is said in a file of conversations."""
    return [message["content"] for record in json.loads(data.read_text()) for message in record["messages"]]


def write_folder(folder: Path, family: str, data: Path, seed: int = 0) -> None:
    """A whole model folder, for conversations in ``data``."""
    words = tokenizer(texts_of(data), family)
    places = {"image": "<image>", "video": "<video>"}
    ids = {f"{kind}_token_id": words.convert_tokens_to_ids(text) for kind, text in places.items()}
    ids |= {f"vision_{end}_token_id": words.convert_tokens_to_ids(f"<|vision_{end}|>") for end in ("start", "end")}
    torch.manual_seed(seed)
    model, processor = MODELS[family](words, ids)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    model.save_pretrained(folder, max_shard_size="200KB")
    words.save_pretrained(folder)
    processor.save_pretrained(folder)


def write_pipeline(folder: Path, captions: list[str], seed: int = 0) -> None:
    """A pipeline from text to pictures: PixArt behind T5, an encoder of pictures, the noise's scheduler."""
    from diffusers import AutoencoderKL, DDPMScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(seed)
    words = tokenizer(captions, "")
    text = T5Config(vocab_size=len(words), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                    pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id)  # fmt: skip
    encoder = AutoencoderKL(
        block_out_channels=(8, 16), latent_channels=4, norm_num_groups=4, sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    image = PixArtTransformer2DModel(
        num_attention_heads=4, attention_head_dim=16, num_layers=2, cross_attention_dim=64, caption_channels=32,
        sample_size=16,
    )  # fmt: skip
    pipeline = PixArtAlphaPipeline(words, T5EncoderModel(text), encoder, image, DDPMScheduler())
    pipeline.save_pretrained(folder)
