"""The papers' evaluations in simulation: splits, systems, comparisons, the report, golden figures of a quick run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.cli import cli
from ds_dip.models.partition import Partition, PartitionError, check_partition
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import MODELS, Case, Effort, make_case
from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.fsdp import fsdp
from ds_dip.reproduction.published import ABLATION, ABLATION_SECONDS, END_TO_END, H20, Figure
from ds_dip.reproduction.report import report
from ds_dip.reproduction.results import (
    ASSUMPTIONS,
    OURS,
    TITLES,
    Comparison,
    Entry,
    compare_ablation,
    compare_end_to_end,
    compare_h20,
    speedup,
)
from ds_dip.reproduction.splits import contiguous_split, interleaved_split
from ds_dip.scheduling import interleave, interleaved_1f1b, one_f_one_b, retime

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"
SMALL = Effort(microbatches=4, batches=1, evaluations=20, partition_evaluations=1, most_laps=2)


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("VLM-S", SMALL, *FOLDERS)


def chain(layers: tuple[int, ...]) -> Model:
    layer = Layer("own", (TensorSpec(("tokens", 4)),))
    modules = tuple(Module(f"m{number}", (layer,) * count) for number, count in enumerate(layers))
    return Model("chain", modules, tuple((a.name, b.name) for a, b in pairwise(modules)))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Model, int, dict[str, list[float]]]:
    model = chain(tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))))
    weight = st.floats(0.0, 10.0)
    weights = {m.name: draw(st.lists(weight, min_size=len(m.layers), max_size=len(m.layers))) for m in model.modules}
    return model, draw(st.integers(1, 4)), weights


def largest(partition: Partition, weights: dict[str, list[float]]) -> float:
    return max(fsum(weights[own.module][own.start : own.stop]) for own in partition.chunks)


@given(chains(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_interleaved_chunks_cover_the_chain_and_are_as_many_on_every_rank(
    given: tuple[Model, int, dict[str, list[float]]], laps: int
) -> None:
    model, ranks, weights = given
    count = sum(len(own.layers) for own in model.modules)
    if not len(model.modules) <= ranks * laps <= count:
        with pytest.raises(PartitionError):
            interleaved_split(model, ranks, laps, weights)
        return
    partition = interleaved_split(model, ranks, laps, weights)
    check_partition(model, partition)
    assert [own.rank for own in partition.chunks] == [number % ranks for number in range(ranks * laps)]


@given(chains())
@settings(max_examples=50, deadline=None)
def test_no_other_number_of_chunks_a_module_has_a_smaller_largest(
    given: tuple[Model, int, dict[str, list[float]]],
) -> None:
    from ds_dip.partition.bounds import bottleneck_bounds

    model, ranks, weights = given
    names = [own.name for own in model.modules]
    if len(names) != 2 or not 2 <= ranks <= sum(map(len, weights.values())):
        return
    found = largest(interleaved_split(model, ranks, 1, weights), weights)
    others = []
    for first in range(1, ranks):
        counts = dict(zip(names, (first, ranks - first), strict=True))
        if all(counts[name] <= len(weights[name]) for name in names):
            cuts = {name: bottleneck_bounds(weights[name], counts[name]) for name in names}
            others.append(max(fsum(weights[n][a:b]) for n, own in cuts.items() for a, b in pairwise(own)))
    assert found <= min(others) * (1 + 1e-9) + 1e-12


@given(chains())
@settings(max_examples=100, deadline=None)
def test_contiguous_stages_cover_the_chain_in_the_order_of_ranks(
    given: tuple[Model, int, dict[str, list[float]]],
) -> None:
    model, ranks, weights = given
    if ranks > sum(len(own.layers) for own in model.modules):
        with pytest.raises(PartitionError):
            contiguous_split(model, ranks, weights)
        return
    partition = contiguous_split(model, ranks, weights)
    check_partition(model, partition)
    homes = [own.rank for own in partition.chunks]
    assert homes == sorted(homes)


def test_the_paper_says_its_gains_of_the_ablation_as_percentages_too() -> None:
    gains = [round(100 * (figure.speedup - 1), 1) for figure in ABLATION.values()]
    assert gains == pytest.approx([17.3, 38.9, 48.3, 62.8], abs=0.11)
    assert len(ABLATION) == len(ABLATION_SECONDS) - 1


def test_every_model_has_a_case_of_the_papers_size() -> None:
    devices = {name: make_case(name, SMALL, *FOLDERS).setup.devices for name in MODELS}
    assert devices == {"VLM-S": 16, "VLM-M": 32, "VLM-L": 64, "T2V-S": 16, "T2V-L": 64}


def test_a_device_without_a_setup_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vlm_m.json has no setup of one replica on a100: add one"):
        make_case("VLM-M", SMALL, *FOLDERS, "a100")


def test_schedules_stay_within_memory_and_outcomes_are_their_makespans(case: Case) -> None:
    partition = contenders.rule(case)
    for order in (interleaved_1f1b, one_f_one_b, interleave):
        found = contenders.ordered(case, partition, order, "")
        problems = case.problems(partition, found.chosen)
        for problem, schedule, seconds in zip(problems, found.schedules, found.outcome.seconds, strict=True):
            timeline = retime(problem, schedule)
            assert timeline.makespan == seconds
            for peak, capacity in zip(timeline.peak_memory, problem.memory_capacity, strict=True):
                assert capacity is not None
                assert peak <= capacity


def test_each_later_step_is_never_slower(case: Case) -> None:
    partition = contenders.rule(case)
    first = contenders.ordered(case, partition, interleave, "")
    second = contenders.reordered(case, partition, "")
    third = contenders.mixed(case, partition, second, "")
    assert first.outcome.mean >= second.outcome.mean >= third.mean
    assert third.gap is not None
    assert third.gap >= 0


def test_modules_strategies_are_those_of_their_stages(case: Case) -> None:
    partition = contenders.rule(case)
    (problem,) = case.problems(partition, {"vision": "full", "language": "none"})
    (free,) = case.problems(partition)
    tasks = {task.id: task for task in problem.tasks}
    for pair in free.pairs:
        wanted = pair.choices[2 if tasks[pair.forward].module == "vision" else 0]
        assert tasks[pair.forward].acquire == wanted.memory
        assert tasks[pair.backward].duration == wanted.backward_duration


def test_without_a_limit_nothing_is_computed_again() -> None:
    case = make_case("VLM-S", SMALL, *FOLDERS, limited=False)
    assert contenders.megatron(case).strategy == "vision none, language none"


def test_what_does_not_fit_is_refused_with_a_reason(case: Case) -> None:
    tight = replace(case.device, memory_bytes=5e9)
    with pytest.raises(UnfitError, match=r"VLM-S, FSDP: a microbatch's activations exceed .* GB by every strategy"):
        fsdp(replace(case, device=tight))
    scorer = case.scorer.by(lambda problem: ("", interleave(problem), retime(problem, interleave(problem))))
    scorer.memory = replace(scorer.memory, bytes=5e9)
    with pytest.raises(UnfitError, match="leaves nothing of 5 GB for activations"):
        contenders.megatron(replace(case, scorer=scorer))


def test_fsdp_is_not_faster_than_its_devices_work(case: Case) -> None:
    alike = tuple(own[:1] * case.setup.devices for own in case.rounds)
    even, uneven = fsdp(replace(case, rounds=alike)), fsdp(case)
    assert uneven.mean > even.mean
    assert uneven.gap is None
    slow = replace(case.device, links={"node": (1.0, 0.0), "network": (1.0, 0.0)})
    assert fsdp(replace(case, device=slow)).mean > 100 * uneven.mean


def outcome(mean: float) -> Outcome:
    return Outcome((mean,), (mean,), "", "")


def test_comparisons_take_what_the_paper_compares() -> None:
    names = ("fsdp", "megatron", "static", "optimus", "balanced", OURS)
    entries = [Entry("VLM-S", name, outcome(seconds)) for name, seconds in zip(names, (3, 6, 4, 5, 9, 2), strict=True)]
    assert speedup(entries, OURS, "megatron") == 3
    least, most, *none = compare_end_to_end([entries])
    assert (least.ours, most.ours) == (1.5, 3)
    assert (least.where, most.where) == ("VLM-S over FSDP (analytic)", f"VLM-S over {TITLES['megatron']}")
    assert "fsdp" in least.assumptions
    assert "fsdp" not in most.assumptions
    assert [own.ours for own in none] == [None, None]
    assert [own.ours for own in compare_h20(entries)] == [1.5, 3]
    refused = [Entry("VLM-S", "megatron", None, "too large"), *entries[2:]]
    assert speedup(refused, OURS, "megatron") is None
    assert all(own.ours is None for own in compare_ablation(refused))


@pytest.mark.parametrize(("ours", "agrees"), [(1.16, False), (1.15, True), (0.86, True), (0.84, False), (None, False)])
def test_a_figure_agrees_within_15_percent(ours: float | None, agrees: bool) -> None:
    assert Comparison(Figure("", 1.0, ""), ours, ()).agrees is agrees


# What a quick run finds.

#: Throughput of each figure in the order of the document; a change of more than 5 % of one is a change to explain.
GOLDEN: dict[str, list[float]] = {
    "ablation": [1.293, 1.797, 1.945, 1.945],
    "end_to_end": [0.847, 1.964, 0.742, 1.707],
    "h20": [1.591, 1.938],
    "unlimited": [1.309, 1.398, 1.413, 1.413],
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("quick") / "report"
    models, devices = map(str, FOLDERS)
    arguments = ["reproduce", "dip", "--quick", "--json", "--out", str(out), "--models", models, "--devices", devices]
    return CliRunner().invoke(cli, arguments), out


@pytest.fixture(scope="module")
def document(quick: tuple[Result, Path]) -> dict[str, Any]:
    result, _ = quick
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_quick_run_finds_what_it_found(document: dict[str, Any]) -> None:
    groups = {**document["comparisons"], **document["explained"]}
    found = {name: [own["ours"] for own in group] for name, group in groups.items()}
    assert found.keys() == GOLDEN.keys()
    for name, values in GOLDEN.items():
        assert found[name] == pytest.approx(values, rel=0.05), name


def test_what_the_method_promises_holds_in_the_quick_run(document: dict[str, Any]) -> None:
    for name in ("ablation", "unlimited"):
        means = {own["system"]: own["mean_s"] for own in document["results"][name]}
        assert means["interleaving"] >= means["reordering"] >= means["memory"]
    for model in document["models"]:
        means = {own["system"]: own["mean_s"] for own in document["results"]["end_to_end"] if own["model"] == model}
        assert means.keys() == {"fsdp", "megatron", "static", "optimus", "balanced", "rule", OURS}
        assert means[OURS] < min(means[name] for name in ("megatron", "static", "optimus", "balanced"))
    assert all(own["bound_gap"] is None or own["bound_gap"] >= 0 for g in document["results"].values() for own in g)


def test_the_report_tells_differences_first(quick: tuple[Result, Path], document: dict[str, Any]) -> None:
    _, out = quick
    assert json.loads((out / "report.json").read_text()) == document
    text = (out / "report.md").read_text()
    assert text == report(document)
    first, _, rest = text.partition("## What is not here")
    every = [own for group in document["comparisons"].values() for own in group]
    assert f"{sum(not own['agrees'] for own in every)} of {len(every)} figures" in first
    for own in every:
        assert own["agrees"] or own["what"] in first
        assert set(own["assumptions"]) <= set(ASSUMPTIONS)
    assert all(missing in rest for missing in document["missing"])
    assert all(own["title"] in rest for group in document["results"].values() for own in group)


def test_what_was_not_simulated_is_told(document: dict[str, Any]) -> None:
    own = document["comparisons"]["h20"][0] | {"ours": None, "deviation": None, "agrees": False}
    row = document["results"]["h20"][0] | {"mean_s": None, "refusal": "does not fit"}
    changed = document | {
        "comparisons": document["comparisons"] | {"h20": [own]},
        "results": document["results"] | {"h20": [row]},
    }
    text = report(changed)
    assert f"{H20['fsdp'].what}: not simulated" in text
    assert "| does not fit |" in text


def test_figures_have_places() -> None:
    for figure in (*ABLATION.values(), *H20.values(), *(own for pair in END_TO_END.values() for own in pair)):
        assert figure.speedup > 1
        assert figure.source


def test_missing_descriptions_are_one_sentence(tmp_path: Path) -> None:
    arguments = ["reproduce", "dip", "--quick", "--out", str(tmp_path / "out"), "--models", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "vlm_s.json" in result.output
    assert "Traceback" not in result.output
