import json
import subprocess
import sys
from pathlib import Path

import pytest

from ds_dip.files import FileError
from ds_dip.models.config import load_model, parse_model
from ds_dip.models.spec import Sizes, fields_of

CONFIGS = Path(__file__).parent.parent / "model_configs"


def quickstart():
    return json.loads((CONFIGS / "quickstart.json").read_text())


def refusal(change):
    document = quickstart()
    change(document["modules"][0], document["modules"][1], document)
    with pytest.raises(FileError) as error:
        parse_model(document, "model.json")
    sentence = str(error.value)
    assert sentence.startswith("model.json: ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_model_of_the_project_is_read(path):
    model = load_model(path)
    ends = {"head": "patch_embedding", "video_output": "token_embedding"}
    first = ends[model.modules[-1].layers[-1].kind]
    assert [module.layers[0].kind for module in model.modules[:-1]] == [first] * (len(model.modules) - 1)
    assert model.upstream(model.loss_module) == tuple(module.name for module in model.modules[:-1])


def test_a_module_has_its_first_layer_its_blocks_and_its_last_layer():
    document = quickstart()
    model = parse_model(document)
    for module, config in zip(model.modules, document["modules"], strict=True):
        assert len(module.layers) == config["layers"] + 2
    assert fields_of(model.module("vision").layers) == ("pixels",)
    assert fields_of(model.module("language").layers) == ("tokens", "labels")


def test_the_vision_boundary_carries_merged_rows_of_the_language_width():
    document = quickstart()
    (boundary,) = parse_model(document).module("vision").layers[-1].output
    assert boundary.shape(Sizes((16, 16), (4, 4))) == (8, document["modules"][1]["hidden"])
    assert boundary.shape(Sizes((), ())) == (0, document["modules"][1]["hidden"])


def test_options_hold_every_number_a_cost_depends_on():
    model = parse_model(quickstart())
    names = {layer.kind: set(layer.options) for module in model.modules for layer in module.layers}
    block = {"hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "depth"}
    assert names == {
        "patch_embedding": {"hidden", "patch", "channels", "side"},
        "encoder_block": block,
        "merger": {"hidden", "merge", "output"},
        "token_embedding": {"hidden", "vocabulary", "placeholder_vision"},
        "decoder_block": block | {"rope_theta"},
        "head": {"hidden", "vocabulary"},
    }


def test_frozen_modules_are_said_so():
    document = quickstart()
    document["modules"][0]["frozen"] = True
    model = parse_model(document)
    assert model.module("vision").frozen
    assert not model.backward("vision")
    assert model.backward("language")


def test_a_language_model_needs_no_encoder():
    document = quickstart()
    language = document["modules"][1]
    language["placeholders"] = {}
    document |= {"modules": [language], "edges": []}
    model = parse_model(document)
    assert model.upstream("language") == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v, t, d: v.update(hiden=3), ["modules[0].hiden", "3", "no such field"]),
        (lambda v, t, d: v.pop("hidden"), ["modules[0].hidden", "missing"]),
        (lambda v, t, d: v.update(hidden="wide"), ["modules[0].hidden", "'wide'", "integer"]),
        (lambda v, t, d: v.update(hidden=True), ["modules[0].hidden", "True", "integer"]),
        (lambda v, t, d: t.update(layers=0), ["modules[1].layers", "0", "greater than 0"]),
        (lambda v, t, d: t.update(gated=1), ["modules[1].gated", "1", "boolean"]),
        (lambda v, t, d: v.update(kind="audio"), ["modules[0].kind", "'audio'", "image_encoder"]),
        (lambda v, t, d: v.update(merge=3), ["modules[0].merge", "3", "square"]),
        (lambda v, t, d: v.update(image=9), ["modules[0].image", "9", "multiple"]),
        (lambda v, t, d: v.update(heads=5), ["modules[0].hidden", "heads = 5"]),
        (lambda v, t, d: t.update(kv_heads=3), ["modules[1].heads", "kv_heads = 3"]),
        (lambda v, t, d: t.update(head_dim=3), ["modules[1].head_dim", "3", "even"]),
        (lambda v, t, d: t.update(tied_embeddings=True), ["modules[1].tied_embeddings", "false"]),
        (lambda v, t, d: t.update(placeholders={}), ["modules[1].placeholders", "['vision']"]),
        (lambda v, t, d: t["placeholders"].update(vision=500), ["modules[1].placeholders.vision", "500", "128"]),
        (lambda v, t, d: v.update(name="language"), ["'language'", "more than once"]),
        (lambda v, t, d: d["modules"].reverse(), ["modules[0].kind", "last"]),
        (lambda v, t, d: d.update(edges=[]), ["edges", "[['vision', 'language']]"]),
        (lambda v, t, d: d.update(modules=[]), ["modules", "at least 1"]),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_the_value_and_what_was_expected(change, words):
    sentence = refusal(change)
    for word in words:
        assert word in sentence


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(quickstart() | {"version": 2}))
    with pytest.raises(FileError, match="field 'version' is 2, expected 1"):
        load_model(path)


def test_reading_a_model_needs_no_torch():
    code = (
        "import sys; from ds_dip.models import load_model; load_model(sys.argv[1]); import ds_dip.data.digits; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(CONFIGS / "quickstart.json")], check=True, timeout=60)


def video():
    return json.loads((CONFIGS / "t2v_s.json").read_text())


def test_a_diffusion_transformer_passes_patches_text_and_modulation_on():
    model = parse_model(video())
    assert model.module("text").frozen
    assert not model.backward("text")
    sizes = Sizes((512, 256), (20, 9))
    for layer in model.module("video").layers[:-1]:
        assert [spec.shape(sizes) for spec in layer.output] == [(768, 3584), (29, 3584), (2, 6 * 3584)]
    assert [spec.shape(sizes) for spec in model.module("video").layers[-1].output] == [(768, 64)]
    assert fields_of(model.module("video").layers) == ("latents",)
    assert fields_of(model.module("text").layers) == ("tokens",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, v, d: d.update(modules=[v], edges=[]), ["modules are 1", "expected 2", "text encoder"]),
        (lambda t, v, d: v.update(side=0), ["modules[1].side", "0", "greater than 0"]),
        (lambda t, v, d: t.update(head_dim=7), ["modules[0].head_dim", "7", "even"]),
        (lambda t, v, d: t.update(kind="language_model"), ["modules[0].kind", "'language_model'", "last"]),
        (lambda t, v, d: d["setups"][0].update(ranks=0), ["setups[0].ranks", "0", "greater than 0"]),
        (lambda t, v, d: d["setups"][0].update(gpus=1), ["setups[0].gpus", "no such field"]),
    ],
)
def test_what_is_wrong_in_a_video_model_is_refused(change, words):
    document = video()
    change(*document["modules"], document)
    with pytest.raises(FileError) as error:
        parse_model(document, "model.json")
    for word in words:
        assert word in str(error.value)
