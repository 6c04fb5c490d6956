"""torch's schedule CSV: what we write its parser reads, and orders of its schedules are read here."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from ds_dip.files import FileError
from ds_dip.scheduling import (
    BASELINES,
    BaselineError,
    Choice,
    Pair,
    Problem,
    Schedule,
    ScheduleError,
    gpipe,
    interleave,
    interleaved_1f1b,
    one_f_one_b,
    retime,
    verify,
)
from ds_dip.scheduling.action_csv import ActionError, actions_of, order_text, read_order
from ds_dip.scheduling.instances import multimodal, pipeline, uniform

#: What torch's dry run does not know.
NOT_SIMULATED = (torch_schedules.UNSHARD, torch_schedules.RESHARD, torch_schedules.REDUCE_GRAD)
SPLIT = pipeline(3, 1, 5, [[1.0] * 5] * 3, [[1.0] * 5] * 3, weight=[[1.0] * 5] * 3)


def parsed(path: Path, problem: Problem) -> dict[int, list[Any]]:
    """A file as torch's own loader reads, checks and lowers it, without the stages that it would run."""
    stages = len({(task.module, task.chunk) for task in problem.tasks})
    runtime = object.__new__(torch_schedules._PipelineScheduleRuntime)
    vars(runtime).update(
        pipeline_order={},
        pp_group_size=problem.ranks,
        _num_stages=stages,
        _n_microbatches=len({task.microbatch for task in problem.tasks}),
        _stages=[SimpleNamespace() for _ in range(stages)],
        _defer_pp_recv=False,
    )
    runtime._load_csv(str(path), format="compute_only")
    exchanged = {
        rank: [action for action in row if action.computation_type not in NOT_SIMULATED]
        for rank, row in runtime.pipeline_order_with_comms.items()
    }
    # torch's own dry run: an order that could hang raises.
    torch_schedules._simulate_comms_compute(exchanged, runtime.stage_index_to_group_rank.__getitem__, stages)
    return dict(runtime.pipeline_order)


def from_torch(name: str, ranks: int, local: int, microbatches: int) -> list[list[Any]]:
    """What one of torch's schedules makes for every rank, without a process group."""
    made = object.__new__(getattr(torch_schedules, name))
    vars(made).update(
        pp_group_size=ranks,
        _stages=[None] * local,
        n_local_stages=local,
        _n_microbatches=microbatches,
        _num_stages=ranks * local,
        num_stages=ranks * local,
        number_of_rounds=max(1, microbatches // ranks),
        microbatches_per_round=microbatches // max(1, microbatches // ranks),
    )
    return [made._calculate_single_rank_operations(rank) for rank in range(ranks)]


def write(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return path


def in_v(problem: Problem, ranks: int) -> Problem:
    """The chunks of two laps in a V: the second lap runs back."""
    return replace(
        problem,
        tasks=tuple(
            replace(task, rank=task.chunk if task.chunk < ranks else 2 * ranks - 1 - task.chunk)
            for task in problem.tasks
        ),
    )


@hypothesis.settings(deadline=None, max_examples=60)
@given(
    ranks=st.integers(1, 4),
    laps=st.integers(1, 2),
    microbatches=st.integers(1, 6),
    weights=st.booleans(),
    name=st.sampled_from(["dip", *BASELINES]),
)
def test_what_is_written_torch_and_we_read_back(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, laps: int, microbatches: int, weights: bool, name: str
) -> None:
    rows = [[1.0 + chunk] * microbatches for chunk in range(ranks * laps)]
    problem = pipeline(ranks, laps, microbatches, rows, rows, weight=rows if weights else None)
    try:
        schedule = interleave(problem) if name == "dip" else BASELINES[name](problem)
    except BaselineError:
        hypothesis.reject()
    path = tmp_path_factory.mktemp("csv") / "order.csv"
    path.write_text(order_text(problem, schedule))
    assert read_order(path, problem) == schedule
    tasks = {task.id: task for task in problem.tasks}
    kinds = {"F": "F", "B": "B", "I": "B", "W": "W"}
    read = [
        [(action.stage_index, kinds[action.computation_type.value], action.microbatch_index) for action in row]
        for row in parsed(path, problem).values()
    ]
    assert read == [[(tasks[t].chunk, tasks[t].kind, tasks[t].microbatch) for t in order] for order in schedule.order]


@pytest.mark.parametrize(
    ("name", "local", "problem"),
    [
        ("ScheduleInterleaved1F1B", 2, uniform(3, 2, 6)),
        ("ScheduleLoopedBFS", 2, uniform(3, 2, 6)),
        ("ScheduleInterleavedZeroBubble", 2, pipeline(3, 2, 6, *[[[1.0] * 6] * 6] * 2, weight=[[1.0] * 6] * 6)),
        ("ScheduleZBVZeroBubble", 2, in_v(pipeline(3, 2, 6, *[[[1.0] * 6] * 6] * 2, weight=[[1.0] * 6] * 6), 3)),
        ("ScheduleDualPipeV", 2, in_v(pipeline(3, 2, 6, *[[[1.0] * 6] * 6] * 2, weight=[[1.0] * 6] * 6), 3)),
    ],
)
def test_orders_of_torchs_schedules_are_read(name: str, local: int, problem: Problem, tmp_path: Path) -> None:
    rows = from_torch(name, 3, local, 6)
    schedule = read_order(write(tmp_path / "order.csv", rows), problem)
    assert verify(problem, schedule) == []
    tasks = {task.id: task for task in problem.tasks}
    if name in ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS"):
        wanted = [
            [(a.stage_index, str(a.computation_type.value), a.microbatch_index) for a in row if a] for row in rows
        ]
        assert wanted == [
            [(tasks[t].chunk, tasks[t].kind, tasks[t].microbatch) for t in order] for order in schedule.order
        ]
    if name == "ScheduleInterleaved1F1B":
        assert retime(problem, schedule).makespan == retime(problem, interleaved_1f1b(problem)).makespan


def test_what_torchs_lowering_adds_is_left_out(tmp_path: Path) -> None:
    problem = uniform(2, 1, 2)
    schedule = one_f_one_b(problem)
    path = tmp_path / "order.csv"
    path.write_text(
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,,0RECV_B1,0B1,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1F1,1B1\n"
    )
    assert read_order(path, problem) == schedule


def test_a_forward_and_a_backward_at_once_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    problem = uniform(1, 1, 2)
    tasks = {task.id: f"{task.kind}{task.microbatch}" for task in problem.tasks}
    assert [tasks[task] for task in read_order(path, problem).order[0]] == ["F0", "F1", "B0", "B1"]


def test_a_whole_backward_is_both_of_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text("".join(",".join(f"{r}F{m},{r}B{m}" for m in range(5)) + "\n" for r in range(3)))
    kinds = {task.id: task.kind for task in SPLIT.tasks}
    assert "".join(kinds[task] for task in read_order(path, SPLIT).order[0]) == "FBW" * 5


def test_pairs_take_choices_that_fit(tmp_path: Path) -> None:
    problem = uniform(1, 1, 2)
    ids = {(task.kind, task.microbatch): task.id for task in problem.tasks}
    choices = (Choice(1.0, 2.0, 1.0), Choice(1.0, 3.0, 0.4))
    pairs = tuple(Pair(ids["F", m], ids["B", m], choices) for m in range(2))
    problem = replace(problem, pairs=pairs, memory_capacity=(1.0,))
    path = tmp_path / "order.csv"
    path.write_text("0F0,0F1,0B0,0B1\n")
    assert read_order(path, problem).choices == (1, 1)
    with pytest.raises(ScheduleError, match="needs more memory than some rank has"):
        read_order(path, replace(problem, memory_capacity=(0.5,)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0F0,0B0,0F1,0B1\n1F0,1X0\n", "rank 1, action 2 is '1X0', expected a stage, F, B, I or W, and a microbatch"),
        ("0F0,1F0\n", "rank 0, action 2 is '1F0', a stage of rank 1 in the problem"),
        ("0F0,0F0\n", "rank 0, action 2 is '0F0', which was run before"),
        ("0F0,0I0\n", "rank 0, action 2 is '0I0', and the problem's backward of that stage is whole"),
        ("0F7\n", "rank 0, action 1 is '0F7', which the problem does not have"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,1F1\n", "1B1 is never run"),
        ("0F0\n", "has 1 rows, the problem 2 ranks"),
    ],
)
def test_what_is_no_order_of_the_problem_is_refused_by_rank_and_action(
    text: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "order.csv").write_text(text)
    with pytest.raises(ActionError, match=f"order.csv: {sentence}"):
        read_order(tmp_path / "order.csv", uniform(2, 1, 2))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="give the path of a schedule CSV of torch.distributed.pipelining"):
        read_order(tmp_path / "none.csv", uniform(2, 1, 2))


def changed(problem: Problem, change: Callable[[Any], Any]) -> Problem:
    return replace(problem, tasks=tuple(map(change, problem.tasks)))


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (multimodal(2, 3, 1), "of module vision is in sub-microbatches"),
        (
            changed(uniform(2, 1, 2), lambda task: replace(task, chunk=task.chunk + task.microbatch)),
            "microbatch 1 has other stages than microbatch 0 (backbone, chunk 0)",
        ),
        (replace(uniform(3, 1, 1), edges=((0, 2, 0.0), (1, 2, 0.0))), "are not stages of one chain"),
        (
            changed(uniform(2, 1, 1), lambda task: replace(task, module=task.module + task.kind)),
            "has no forward of its stage",
        ),
    ],
)
def test_what_the_csv_cannot_say_is_refused(problem: Problem, sentence: str) -> None:
    with pytest.raises(ActionError) as error:
        actions_of(problem)
    assert sentence in str(error.value)


def test_microbatches_are_counted_from_0(tmp_path: Path) -> None:
    problem = changed(uniform(2, 1, 2), lambda task: replace(task, microbatch=10 + 5 * task.microbatch))
    assert order_text(problem, gpipe(problem)) == "0F0,0F1,0B0,0B1\r\n1F0,1F1,1B0,1B1\r\n"


def test_a_schedule_of_another_problem_is_refused() -> None:
    with pytest.raises(ScheduleError, match="never run"):
        order_text(uniform(2, 1, 2), Schedule(((), ())))
