"""What a rehearsal waits for is what the model itself would cost, times the dilation."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.costs.rules import FORMAT, base_costs, read_rules, with_rules
from ds_dip.costs.table import read_table
from ds_dip.models import Sizes, load_model
from ds_dip.partition import make_partition, write_partition
from ds_dip.rehearsal.session import configuration, cost_options, dilation_for
from ds_dip.rehearsal.twin import twin_of

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "model_configs" / "quickstart.json"
TABLE = ROOT / "profiling" / "tables" / "xeon-2-cores.float32.json"
SIZES = Sizes((16, 16, 4), (4, 4, 1))


@pytest.mark.parametrize("table", [None, TABLE])
def test_a_chunk_costs_what_the_planner_of_the_model_would_say(tmp_path: Path, table: Path | None) -> None:
    model, rates = load_model(QUICKSTART), Rates(flops=3e10)
    partition = make_partition(model, 2, {"language": 2})
    path = tmp_path / "partition.json"
    write_partition(path, model, partition)
    options = cost_options(QUICKSTART, path, rates, table, None, 2.5)
    config = configuration(tmp_path, {"schedule": "1f1b", "table": "other.json"}, options, 8, 4)
    assert config["dip"].keys() == {"schedule", "cost_rules", "timeouts"}
    twin = twin_of(model, "float32")
    # As the planner's process gets to them.
    found = with_rules(base_costs(twin, Rates(), None), twin, read_rules(config["dip"]["cost_rules"], twin))
    wanted = base_costs(model, rates, None if table is None else read_table(table), partition)
    for chunk in partition.chunks:
        where = (chunk.module, chunk.start, chunk.stop, SIZES)
        assert found.forward(*where) == pytest.approx(2.5 * wanted.forward(*where), rel=1e-12)
        assert found.backward(*where) == pytest.approx(2.5 * wanted.backward(*where), rel=1e-12)
        assert found.activation_bytes(*where) == wanted.activation_bytes(*where)
    assert found.transfer(1e6) == pytest.approx(2.5 * wanted.transfer(1e6), rel=1e-12)


def test_a_users_rules_hold(tmp_path: Path) -> None:
    model = load_model(QUICKSTART)
    partition = tmp_path / "partition.json"
    write_partition(partition, model, make_partition(model, 2))
    rules = tmp_path / "rules.json"
    rule = {"module": "vision", "quantity": "forward", "scale": 0.0, "base": 2.0}
    rules.write_text(json.dumps({"format": FORMAT, "version": 1, "rules": [rule]}))
    options = cost_options(QUICKSTART, partition, Rates(), None, rules, 1.0)
    config = configuration(tmp_path, {}, options, 4, 4)
    twin = twin_of(model, "float32")
    found = with_rules(Roofline(twin, Rates()), twin, read_rules(config["dip"]["cost_rules"], twin))
    assert found.forward("vision", 0, 3, SIZES) == pytest.approx(6.0)


def test_rates_are_written_as_json_holds_them(tmp_path: Path) -> None:
    options = cost_options(QUICKSTART, tmp_path / "p.json", Rates(link=2e9), None, None, 1.0)
    assert json.loads(json.dumps(options))["rates"] == asdict(Rates(link=2e9))


@pytest.mark.parametrize("stage", [1e-6, 1e-3, 0.02, 10.0, 0.0])
@pytest.mark.parametrize("ranks", [2, 16])
def test_a_dilation_never_makes_a_device_faster_and_suits_many_ranks(stage: float, ranks: int) -> None:
    assert 1.0 <= dilation_for(stage, 2) <= dilation_for(stage, ranks)


def test_ranks_are_patient_where_a_batch_takes_long(tmp_path: Path) -> None:
    def rank_s(work: float, block: dict[str, object]) -> float:
        options = {"rates": asdict(Rates())}
        return float(configuration(tmp_path, block, options, 4, 4, work)["dip"]["timeouts"]["rank_s"])

    assert rank_s(0.0, {}) < rank_s(1000.0, {})
    assert rank_s(1000.0, {}) > 1000.0
    assert rank_s(1.0, {"timeouts": {"rank_s": 9000.0}}) == 9000.0
