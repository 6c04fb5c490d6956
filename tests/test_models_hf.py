"""Whatever the plan, a model of transformers that is split has the library's own loss and gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, LlamaForSequenceClassification, MistralConfig

from ds_dip.files import FileError
from ds_dip.models import from_transformers, load_model
from ds_dip.models.build import factories_and_loss
from ds_dip.models.context import Context
from ds_dip.models.hf import llava_onevision
from ds_dip.models.hf.shell import SplitError
from ds_dip.models.parameters import module_parameters
from ds_dip.models.spec import Sizes
from ds_dip.runtime.recompute import operators_kept
from tests import hf_cases as cases
from tests import hf_models as models
from tests.hf_models import VOCABULARY

ROOT = Path(__file__).resolve().parents[1]
#: Which modules are frozen, by the number of ranks.
FROZEN = {1: ("encoder",), 2: (), 4: ("encoder", "projector")}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
#: Text alone, one picture, several, a video, a video and a picture, several pictures.
MIXED = (0, 1, 2, 3, 4, 7)


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        *((ranks, torch.float64) for ranks in (1, 2, 4)),
        (2, torch.float32),
        *(pytest.param(ranks, torch.float32, marks=pytest.mark.nightly) for ranks in (1, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", models.FAMILIES)
def test_loss_and_gradients_are_the_librarys(family: str, ranks: int, dtype: torch.dtype) -> None:
    make, sample = models.FAMILIES[family]
    encoder = "audio" if family == "qwen2_audio" else "vision"
    frozen = () if family == "llama" else tuple(encoder if n == "encoder" else n for n in FROZEN[ranks])
    loss, expected, errors = cases.compare(
        make(), sample, MIXED, ranks=ranks, laps=1 + (ranks < 4), seed=ranks, dtype=dtype, frozen=frozen
    )
    assert loss == pytest.approx(expected, rel=TOLERANCE[dtype])
    assert errors
    assert max(errors.values()) <= TOLERANCE[dtype], max(errors, key=lambda name: errors[name])


@pytest.mark.parametrize("chosen", [(0, 5), (0, 1), (3, 8), (2, 7)], ids=["text", "one", "videos", "several"])
@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_5_vl"])
def test_batches_of_one_kind(family: str, chosen: tuple[int, ...]) -> None:
    make, sample = models.FAMILIES[family]
    loss, expected, errors = cases.compare(make(), sample, chosen, ranks=2, laps=2, seed=3, dtype=torch.float64)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10


@pytest.mark.parametrize("laps", [1, 2])
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_librarys_padded_and_packed_batches_give_the_same(family: str, form: str, laps: int) -> None:
    make, sample = models.FAMILIES[family]
    loss, expected, errors = cases.compare(
        make(), sample, MIXED, ranks=2, laps=laps, seed=4 + laps, dtype=torch.float64, form=form
    )
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10, max(errors, key=lambda name: errors[name])


def test_lora_has_pefts_own_gradients_and_leaves_the_rest_alone() -> None:
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"])
    adapted = cases.drawn_adapted(models.llava(), lora)
    plain = models.llava().double()
    loss, expected, errors = cases.compare(
        plain, models.llava_sample, MIXED, ranks=2, laps=1, seed=1, dtype=torch.float64, reference=adapted.double(),
        lora=lora,
    )  # fmt: skip
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10
    # The tower's layers are called as the language model's are, and are adapted with them.
    adapted_models = {name for name in errors if "projector" not in name and "newline" not in name}
    assert any("language_model" in name for name in adapted_models)
    assert all("lora_" in name for name in adapted_models)
    assert any("projector" in name for name in errors)


def test_what_a_folder_says_holds_for_runs_with_adapters_and_frozen_modules(tmp_path: Path) -> None:
    model = models.qwen_vl()
    model.config.save_pretrained(tmp_path)
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    named = {"name": tmp_path.name}
    assert replace(from_transformers(model, lora=lora).model, **named) == replace(load_model(tmp_path), **named)
    for frozen in (["vision"], ["vision", "projector"]):
        split = from_transformers(model, frozen=frozen).model
        assert replace(split, **named) == replace(load_model(tmp_path, frozen), **named)
    with pytest.raises(FileError, match="leave --frozen out"):
        load_model(ROOT / "model_configs" / "quickstart.json", ["vision"])


def test_weights_that_want_no_gradient_are_frozen_modules() -> None:
    model = models.qwen_vl()
    model.model.visual.requires_grad_(False)
    split = from_transformers(model)
    assert [(module.name, module.frozen) for module in split.model.modules] == [("vision", True), ("language", False)]
    model.model.visual.merger.requires_grad_(True)
    names = [(module.name, module.frozen) for module in from_transformers(model).model.modules]
    assert names == [("vision", True), ("projector", False), ("language", False)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: models.llama(attention_dropout=0.1).config, "model.layers.0.self_attn.attention_dropout is 0.1"),
        (lambda: models.qwen_audio_config(encoder_layerdrop=0.1), "model.audio_tower.layerdrop is 0.1"),
        (lambda: models.llava_config(vision_feature_layer=[-1, -2]), "vision_feature_layer is \\[-1, -2\\]"),
        (lambda: GPT2Config(n_layer=2), "model type 'gpt2' has no adapter"),
        (lambda: MistralConfig(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1,
                               intermediate_size=16, sliding_window=8), "model has sliding_attention"),
        (lambda: models.llama_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
         "model.rotary_emb is of type 'dynamic'"),
        (lambda: torch.nn.Linear(2, 2), "model is a Linear"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_named(change: Callable[[], Any], words: str) -> None:
    with pytest.raises(SplitError, match=words):
        from_transformers(change())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config is of gptq"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification has no lm_head",
        ),
        ({"architectures": ["LlamaModel"]}, "LlamaModel has no model"),
        ({"vocab_size": 95}, "weight '(lm_head|model.embed_tokens).weight' is of shape \\(90, 16\\)"),
        ({"intermediate_size": 30}, "weight 'model.layers.0.mlp.gate_proj.weight' is of shape \\(24, 16\\)"),
        ({"num_hidden_layers": 2}, "has a weight 'model.layers.2.[a-z_.]+', which LlamaForCausalLM"),
        ({"num_hidden_layers": 4}, "weight 'model.layers.3.[a-z_.]+' of LlamaForCausalLM is not there"),
        ({"model_type": "nothing"}, "the configuration cannot be read"),
    ],
)
def test_folders_whose_configuration_is_another_models(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises((FileError, SplitError), match=words):
        [factory() for factory in from_transformers(tmp_path).layers["language"]]


def test_weights_that_the_model_has_not_stay_what_they_are(tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {"mtp.norm.weight": torch.ones(3), "model.position_ids": torch.arange(4)}
    save_file(tensors | kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    rest = dict(from_transformers(tmp_path).rest())
    assert rest.keys() == kept.keys()
    assert all(torch.equal(rest[name], tensor) for name, tensor in kept.items())


@pytest.mark.parametrize("content", [b"", b"no weights" * 20, None], ids=["empty", "garbage", "cut off"])
def test_one_file_of_weights_that_is_none(content: bytes | None, tmp_path: Path) -> None:
    models.llama().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:4000] if content is None else content)
    with pytest.raises(FileError, match="model.safetensors cannot be read"):
        from_transformers(tmp_path)


LORA: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lora": LoraConfig(**LORA, lora_dropout=0.1)}, "lora.lora_dropout is 0.1"),
        ({"lora": LoraConfig(**LORA, modules_to_save=["lm_head"])}, "lora.modules_to_save is \\['lm_head'\\]"),
        ({"lora": LoraConfig(**LORA, use_dora=True)}, "lora.use_dora is True"),
        ({"lora": LoraConfig(**LORA, bias="lora_only")}, "lora.bias is 'lora_only'"),
        ({"lora": LoraConfig(**LORA, init_lora_weights="pissa")}, "lora.init_lora_weights is 'pissa'"),
        ({"lora": LoraConfig(r=2, target_modules=["nothing"])}, "lora does not fit .*'nothing'"),
        ({"lora": {"r": 2}}, "lora is a dict, expected a LoraConfig"),
        ({"lora": LoraConfig(**LORA), "frozen": ["language"]}, "lora adapts language alone, which frozen names"),
        ({"frozen": "vision"}, "frozen is the text 'vision'"),
        ({"dtype": torch.int8}, "dtype is torch.int8"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16'"),
    ],
)
def test_options_that_are_not_carried_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SplitError, match=words):
        from_transformers(models.qwen_vl(), **options)


def test_models_that_were_changed_in_memory_are_refused(tmp_path: Path) -> None:
    adapted = cases.drawn_adapted(models.llama(), LoraConfig(**LORA))
    with pytest.raises(
        SplitError, match=r"has model.layers.0.self_attn.q_proj.base_layer.weight, which LlamaForCausal"
    ):
        from_transformers(adapted)
    headed = models.llama()
    headed.lm_head = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 90))
    with pytest.raises(SplitError, match=r"has lm_head.0.weight, which LlamaForCausalLM does not have"):
        from_transformers(headed)
    with pytest.raises(SplitError, match=r"LlamaForSequenceClassification has no lm_head, which the family's adapter"):
        from_transformers(LlamaForSequenceClassification(models.llama_config()))
    wrapped = get_peft_model(models.llama(), LoraConfig(**LORA))
    with pytest.raises(SplitError, match="model is a PeftModel"):
        from_transformers(wrapped)
    models.llama().save_pretrained(tmp_path)
    wrapped.save_pretrained(tmp_path)
    with pytest.raises(FileError, match="holds an adapter of peft"):
        from_transformers(tmp_path)


def test_a_resized_vocabulary_and_checkpointing_of_the_librarys_own_are_as_they_are() -> None:
    model = models.llama()
    model.resize_token_embeddings(VOCABULARY + 10)
    model.gradient_checkpointing_enable()
    loss, expected, errors = cases.compare(
        model, models.text_sample, (0, 1, 2), ranks=2, laps=1, seed=1, dtype=torch.float64
    )
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10


def test_a_weight_that_no_layer_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llava_onevision, "split", without_unused(llava_onevision.split))
    with pytest.raises(SplitError, match="has model.vision_tower.post_layernorm.weight, which no layer"):
        from_transformers(models.llava())


def without_unused(split: Callable[..., Any]) -> Callable[..., Any]:
    return lambda shell: replace(split(shell), unused=())


class Products(TorchDispatchMode):
    """Counts multiplications by weights, and norms' roots."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.roots = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        self.roots += func is torch.ops.aten.rsqrt.default
        return func(*args, **(kwargs or {}))


def test_selective_runs_norms_again_and_no_products() -> None:
    layer = from_transformers(models.llama()).layers["language"][1]()
    assert layer.selects_operators
    context = Context(Sizes((5, 3), (5, 3)), {})
    counted, gradients = {}, {}
    for name, options in (("none", None), ("selective", {"context_fn": operators_kept}), ("full", {})):
        torch.manual_seed(0)
        x = torch.randn(8, 16, requires_grad=True)
        run = layer if options is None else partial(checkpoint, layer, use_reentrant=False, **options)
        with Products() as seen:
            run(x, context).square().sum().backward()
        counted[name], gradients[name] = (seen.products, seen.roots), x.grad
    products, roots = counted["none"]
    assert products == 7 * 3  # of seven matrices the forward, and both halves of the backward
    assert counted["selective"] == (products, 2 * roots)
    assert counted["full"][0] > products
    assert all(torch.equal(gradients["none"], found) for found in gradients.values())


@pytest.mark.parametrize("frozen", [["visoin"], ["visual"]])
def test_a_module_that_is_not_there_cannot_be_frozen(frozen: list[str]) -> None:
    with pytest.raises(SplitError, match="they are vision, projector, language"):
        from_transformers(models.qwen_vl(), frozen=frozen)


def test_folders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="has no config.json"):
        from_transformers(tmp_path)
    models.llama().save_pretrained(tmp_path, max_shard_size="8KB")
    index = tmp_path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    gone = document["weight_map"].pop("model.layers.1.mlp.up_proj.weight")
    index.write_text(json.dumps(document))
    pretrained = from_transformers(tmp_path)
    with pytest.raises(FileError, match="weight 'model.layers.1.mlp.up_proj.weight' of LlamaForCausalLM is not there"):
        pretrained.layers["language"][2]()
    pretrained.layers["language"][1]()
    (tmp_path / gone).write_bytes(b"no weights")
    with pytest.raises(FileError, match="cannot be read"):
        [factory() for factory in from_transformers(tmp_path).layers["language"]]
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(FileError, match="is not in the folder"):
        from_transformers(tmp_path)


def test_a_layer_reads_its_own_weights_alone(tmp_path: Path) -> None:
    model = models.llama()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    pretrained = from_transformers(tmp_path)
    read: list[str] = []
    source = pretrained.shell.source

    class Listening:
        def read(self, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
            read.extend(names)
            return source.read(names)

    factory = replace(pretrained.layers["language"][2], shell=replace(pretrained.shell, source=Listening()))
    built = factory()
    assert read
    assert all(name.startswith("model.layers.1.") for name in read)
    for own, name in factory.names(built).items():
        assert torch.equal(built.state_dict()[own], model.get_parameter(name))


def test_a_configuration_alone_gives_equal_weights_each_time() -> None:
    one, other = (from_transformers(models.qwen_vl().config, seed=5).layers["vision"] for _ in range(2))
    for first, second in zip(one, other, strict=True):
        for a, b in zip(first().parameters(), second().parameters(), strict=True):
            assert torch.equal(a, b)
    drawn = from_transformers(models.qwen_vl().config, seed=6).layers["vision"][1]()
    assert not torch.equal(next(drawn.block.mlp.parameters()), next(one[1]().block.mlp.parameters()))


def test_older_names_of_weights_are_read() -> None:
    pretrained = from_transformers(models.llava())
    with TemporaryDirectory() as folder:
        tensors = {name: tensor.clone() for name, tensor in models.llava().state_dict().items()}
        older = {
            name.replace("model.language_model.", "language_model.model.")
            .replace("lm_head", "language_model.lm_head")
            .replace("model.vision_tower.", "vision_tower.vision_model.")
            .replace("model.multi", "multi")
            .replace("model.image_newline", "image_newline"): tensor
            for name, tensor in tensors.items()
        }
        save_file(older, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        models.llava().config.save_pretrained(folder)
        again = from_transformers(folder)
        for name, factories in pretrained.layers.items():
            for first, second in zip(factories, again.layers[name], strict=True):
                for a, b in zip(first().parameters(), second().parameters(), strict=True):
                    assert torch.equal(a, b)


def test_a_folder_is_a_model_for_commands() -> None:
    model = load_model(ROOT / "model_configs" / "qwen2_5_vl_7b")
    assert [(module.name, len(module.layers)) for module in model.modules] == [("vision", 34), ("language", 30)]
    assert model.edges == (("vision", "language"),)
    # What the library's own model has: transformers counts 676 550 144 and 7 615 616 512 parameters.
    assert module_parameters(model, "vision") == 676550144
    assert module_parameters(model, "language") == 7615616512
    windows = [layer.options.get("window") for layer in model.module("vision").layers if layer.kind == "encoder_block"]
    assert [n for n, window in enumerate(windows) if window is None] == [7, 15, 23, 31]
    assert set(windows) - {None} == {64}


def test_a_folders_layers_are_the_librarys(tmp_path: Path) -> None:
    model = models.llama()
    model.save_pretrained(tmp_path)
    own = factories_and_loss(tmp_path, load_model(tmp_path))[0]["language"][1]()
    assert torch.equal(own.block.mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    drawn = factories_and_loss(tmp_path, load_model(tmp_path))[0]["language"][1]()
    assert type(drawn.block) is type(own.block)
