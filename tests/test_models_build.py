import pickle
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from ds_dip.models.build import factories_and_loss, layer_factories
from ds_dip.models.config import load_model
from ds_dip.models.diffusion import flow_matching_loss
from ds_dip.models.loss import token_cross_entropy
from ds_dip.models.spec import Layer, Model, Module

MODEL = load_model(Path(__file__).parent.parent / "model_configs" / "quickstart.json")


def weights(factory):
    return torch.cat([parameter.detach().flatten() for parameter in factory().parameters()])


def test_a_layer_is_the_same_whatever_was_built_before_it():
    first = layer_factories(MODEL)["language"]
    alone = weights(first[3])
    torch.rand(5)
    layer_factories(MODEL)["vision"][2]()
    assert torch.equal(weights(layer_factories(MODEL)["language"][3]), alone)


def test_seeds_modules_and_positions_give_different_weights():
    factories = layer_factories(MODEL)
    assert not torch.equal(weights(factories["language"][1]), weights(factories["language"][2]))
    assert not torch.equal(weights(factories["language"][1]), weights(layer_factories(MODEL, seed=1)["language"][1]))


def test_building_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    layer_factories(MODEL)["vision"][1]()
    assert torch.equal(torch.rand(4), expected)


def test_factories_travel_between_processes():
    factory = layer_factories(MODEL)["vision"][0]
    assert torch.equal(weights(pickle.loads(pickle.dumps(factory))), weights(factory))


def test_frozen_modules_have_no_trainable_parameter():
    modules = tuple(Module(m.name, m.layers, frozen=m.name == "vision") for m in MODEL.modules)
    factories = layer_factories(Model("frozen", modules, MODEL.edges))
    assert not any(p.requires_grad for factory in factories["vision"] for p in factory().parameters())
    assert all(p.requires_grad for factory in factories["language"] for p in factory().parameters())


def test_a_kind_of_layer_that_is_not_ours_is_refused():
    model = Model("other", (Module("language", (Layer("mixer", ()),)),))
    with pytest.raises(ValueError, match="'language' has a layer of kind 'mixer', expected one of patch_embedding"):
        layer_factories(model)


@pytest.mark.parametrize("name", ["vision", "language"])
def test_parameters_are_as_many_as_the_kinds_say(name):
    for layer, factory in zip(MODEL.module(name).layers, layer_factories(MODEL)[name], strict=True):
        o = defaultdict(int, layer.options)
        D, H, G, F, g = o["hidden"], o["heads"], o["kv_heads"], o["ffn"], o["gated"]
        block = D * (2 * H + 2 * G) * o["head_dim"] + (2 + g) * D * F
        expected = {
            "patch_embedding": o["patch"] ** 2 * o["channels"] * D + D + 2 * o["side"] * D,
            "encoder_block": block + (H + 2 * G) * o["head_dim"] + D + (1 + g) * F + D + 4 * D,
            "merger": o["merge"] * D * o["output"] + o["output"] ** 2 + 2 * o["output"] + 2 * D,
            "token_embedding": o["vocabulary"] * D,
            "decoder_block": block + 2 * D,
            "head": D * o["vocabulary"] + D,
        }[layer.kind]
        assert sum(p.numel() for p in factory().parameters()) == expected, layer.kind


@pytest.mark.parametrize(("name", "loss"), [("quickstart", token_cross_entropy), ("t2v_s", flow_matching_loss)])
def test_a_file_says_what_its_model_is_trained_by(name: str, loss: object) -> None:
    path = Path(__file__).resolve().parents[1] / "model_configs" / f"{name}.json"
    model = load_model(path)
    layers, found = factories_and_loss(path, model)
    assert found is loss
    assert {module: len(own) for module, own in layers.items()} == {m.name: len(m.layers) for m in model.modules}
