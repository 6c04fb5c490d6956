"""A user's own rules: terms in a file, or a factory in Python; what they give is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.composed import CostError, TableCosts
from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.costs.rules import CostRules, Rule, base_costs, read_rules, with_rules
from ds_dip.files import FileError
from ds_dip.models.spec import Model, Sizes
from ds_dip.planner.codec import Codec
from tests.profiling_cases import MODEL, row, sizes, table

BASE = Roofline(MODEL, Rates())
THREE = sizes(8, 4)


class Doubled(Roofline):
    """A user's cost model."""

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        return 2 * super().forward(module, start, stop, sizes)


def doubled(base: CostModel, model: Model, factor: int = 1) -> CostModel:
    """A user's factory."""
    return Doubled(model, Rates(flops=1e9 / factor))


def nothing(base: CostModel, model: Model) -> object:
    """A factory that gives no cost model."""
    return object()


def written(path: Path, **document: Any) -> Path:
    path.write_text(json.dumps({"format": "ds-dip/cost-rules", "version": 1} | document))
    return path


def test_a_rule_scales_and_adds_for_its_layers_only() -> None:
    rule = Rule(
        "language", "forward", 1, 3, scale=3.0, base=1.0, per_instance=0.5, per_token=0.1, per_token_squared=0.01
    )
    costs = with_rules(BASE, MODEL, CostRules((rule,)))
    one = BASE.forward("language", 1, 2, THREE)
    assert costs.forward("language", 1, 2, THREE) == pytest.approx(3 * one + 1.0 + 1.0 + 1.2 + 0.8)
    assert costs.forward("language", 0, 1, THREE) == BASE.forward("language", 0, 1, THREE)
    assert costs.backward("language", 1, 2, THREE) == BASE.backward("language", 1, 2, THREE)
    assert costs.activation_bytes("language", 1, 2, THREE) == BASE.activation_bytes("language", 1, 2, THREE)
    assert costs.transfer(100) == BASE.transfer(100)


def test_a_rule_replaces_a_layer_and_leaves_what_belongs_to_the_stage() -> None:
    base = TableCosts(MODEL, table(rows=(*table().rows, row("stage:language", 0.25))))
    costs = with_rules(base, MODEL, CostRules((Rule("language", "forward", scale=0.0, base=1.0),)))
    assert costs.forward("language", 0, 4, THREE) == pytest.approx(4 * 1.0 + 0.25)


def test_a_factory_makes_the_cost_model() -> None:
    costs = with_rules(BASE, MODEL, CostRules(factory="tests.test_costs_rules:doubled", options={"factor": 2}))
    assert isinstance(costs, Doubled)
    assert costs.rates.flops == 5e8


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("tests.test_costs_rules:missing", "cannot be found"),
        ("no.such.package:thing", "cannot be found"),
        ("os:getcwd", "'os:getcwd' failed when called with costs, model .TypeError: "),
        ("tests.test_costs_rules:nothing", "gave a object without 'forward'"),
    ],
)
def test_a_factory_that_is_none_is_refused(factory: str, said: str) -> None:
    with pytest.raises(CostError, match=said):
        with_rules(BASE, MODEL, CostRules(factory=factory))


def test_a_negative_cost_is_refused_with_its_layers() -> None:
    costs = with_rules(BASE, MODEL, CostRules((Rule("vision", "backward", base=-1.0),)))
    with pytest.raises(CostError, match="the rules for backward of vision give -.* for layers 0 to 3 on 16 tokens"):
        costs.backward("vision", 0, 3, sizes(16))


def test_a_file_of_rules_is_read_and_travels(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rules.json",
        rules=[{"module": "vision", "quantity": "bytes", "start": 1, "stop": 2, "per_token": 4}],
        factory="tests.test_costs_rules:doubled",
        options={"factor": 3},
    )
    rules = read_rules(path, MODEL)
    assert rules.rules == (Rule("vision", "bytes", 1, 2, per_token=4.0),)
    codec: Codec[CostRules] = Codec(CostRules, "rules")
    assert codec.decode(codec.encode(rules)) == rules


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"rules": [{"module": "audio", "quantity": "forward"}]},
            'rules[0].module\' is "audio", expected one',
        ),
        ({"rules": [{"module": "vision", "quantity": "speed"}]}, 'rules[0].quantity\' is "speed", expected one of'),
        ({"rules": [{"module": "vision", "quantity": "bytes", "stop": 9}]}, "expected a layer of vision, 0 to 3"),
        (
            {"rules": [{"module": "vision", "quantity": "bytes", "base": "1"}]},
            'rules[0].base\' is "1", expected',
        ),
        ({"rules": [{"module": "vision", "quantity": "bytes", "per": 1}]}, "rules[0] has the unknown field 'per'"),
        ({"factory": "module"}, "field 'factory' is \"module\", expected 'package.module:callable'"),
        (
            {"rules": [{"module": "language", "quantity": "forward", "start": 3, "stop": 1}]},
            "rules[0] is for layers 3 to 1 (exclusive) of language, which are none",
        ),
        (
            {"rules": [{"module": "language", "quantity": "forward", "start": 2, "stop": 2}]},
            "rules[0] is for layers 2 to 2",
        ),
        ({}, "rules.json: has neither rules nor a factory"),
        ({"rules": []}, "has neither rules nor a factory"),
        (
            {"rules": [{"module": "vision", "quantity": "bytes", "scale": -1}]},
            "rules[0].scale' is -1, expected a number from 0 to 1e+18",
        ),
        ({"rules": [{"module": "vision", "quantity": "bytes", "base": -2.5}]}, "rules[0].base' is -2.5, expected"),
        ({"rules": [{"module": "vision", "quantity": "bytes", "base": 1e308}]}, "rules[0].base' is 1e+308, expected"),
        ({"rules": [{"module": "vision", "quantity": "bytes", "per_token": 1e30}]}, "rules[0].per_token' is 1e+30"),
        ({"rule": []}, "the file has the unknown field 'rule'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, document: dict[str, Any], said: str) -> None:
    with pytest.raises(FileError) as refused:
        read_rules(written(tmp_path / "rules.json", **document), MODEL)
    assert said in str(refused.value)


def test_without_a_table_costs_are_the_roofline() -> None:
    assert isinstance(base_costs(MODEL, Rates(), None), Roofline)
    assert isinstance(base_costs(MODEL, Rates(), table()), TableCosts)
    assert with_rules(BASE, MODEL, None) is BASE
