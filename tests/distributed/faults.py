"""Faults that a run outlives, or ends from in order: jobs of two ranks, forked by this process as in ``failures``.

``python -m tests.distributed.faults FOLDER CASE...`` runs the cases and leaves a JSON file a case in FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.data import DatasetReference
from tests.distributed.datasets import DEADLINE_S, TROUBLES
from tests.distributed.failures import DIGITS, engine_of
from tests.distributed.forking import preload
from tests.distributed.jobs import Case, Job, Jobs
from tests.distributed.ranks import PORT, PORTS

WORLD = 2
#: Steps under each of a planner's troubles, and after it.
DURING, AFTER = 4, 3
STEPS = 2 + len(TROUBLES) * (DURING + AFTER)
#: Seconds that a rank is stopped for, and that others wait for one.
SLOW_S, RANK_S = 1.5, 8.0
#: 1F1B's order depends on no cost, so a plan and a fallback run the same and losses are equal to the last bit.
FIXED: dict[str, Any] = {"schedule": "1f1b", "timeouts": {"rank_s": RANK_S, "plan_s": 30.0, "start_s": 30.0}}
PLANNED: dict[str, Any] = {**FIXED, "planner": {"enabled": True, "deadline_s": DEADLINE_S, "restart_limit": 20}}


def write(folder: Path, name: str, document: Any) -> None:
    (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(document))


def troubled_planner(folder: Path, _: str) -> None:
    """All of a planner's troubles in one run; the first rank tells what each did to it."""
    data = DatasetReference("tests.distributed.datasets:Troubled", {**DIGITS.options, "folder": str(folder)})
    losses, told = [], {}
    with suspended(engine_of(folder, **FIXED)) as engine:
        write(folder, "undisturbed", [float(engine.train_batch()) for _ in range(STEPS)])
    with engine_of(folder, data=data, **PLANNED) as engine:
        client = getattr(engine.plans, "_client", None)

        def recovered(plans: int = 1) -> None:
            if client is not None:
                assert client.ready(30.0, plans), "the planner did not come back"

        def train(steps: int) -> list[tuple[str, float]]:
            found = []
            for _ in range(steps):
                losses.append(float(engine.train_batch()))
                found.append((engine.plan.kind, engine.measured.waited))
            return found

        recovered()
        train(2)
        for trouble in TROUBLES:
            before = engine.plans.statistics()
            if client is not None:
                begin_trouble(folder, trouble, client)
            during = train(DURING)
            process = client and client.process_id
            if client is not None:
                (folder / trouble).unlink(missing_ok=True)
                if trouble == "stopped" and process:
                    os.kill(process, signal.SIGCONT)
            # Steps that it could not plan are told as such: it may have no plan before the next ones are asked for.
            recovered(0 if trouble == "memory" else 1)
            after = train(AFTER)
            now = engine.plans.statistics()
            told[trouble] = {
                "during": during,
                "after": after,
                "causes": {c: n - before.fallbacks.get(c, 0) for c, n in now.fallbacks.items()},
                "reasons": [reason for reason in now.reasons if reason not in before.reasons],
                "restarts": now.restarts - before.restarts,
            }
    write(folder, "losses", losses)
    write(folder, "told", told)


@contextmanager
def suspended(engine: Any) -> Iterator[Any]:
    """An engine after which this process makes another one."""
    yield engine
    engine.close()


def begin_trouble(folder: Path, trouble: str, client: Any) -> None:
    if trouble in ("killed", "stopped"):
        os.kill(client.process_id, signal.SIGKILL if trouble == "killed" else signal.SIGSTOP)
    else:
        (folder / trouble).touch()


def store_lost(folder: Path, what: str) -> None:
    """The process that holds the store gets a signal after the first step."""
    holder = int((folder / "store").read_text())
    with engine_of(folder, **{**FIXED, "timeouts": {"rank_s": 4.0, "plan_s": 4.0, "start_s": 4.0}}) as engine:
        engine.train_batch()
        if engine.global_rank == 1:
            os.kill(holder, getattr(signal, what))
        began = time.monotonic()
        try:
            for _ in range(100):
                engine.train_batch()
        finally:
            write(folder, "seconds", time.monotonic() - began)


def hold_store(port: int) -> int:
    """A process that holds a job's store, as torchrun's agent does; its id."""
    if pid := os.fork():
        return pid
    make = torch.distributed.TCPStore  # type: ignore[attr-defined]  # torch exports it without types
    _store = make("127.0.0.1", port, None, True, timeout=timedelta(seconds=60), wait_for_workers=False)
    time.sleep(120)
    os._exit(0)


def resumed(folder: Path, what: str) -> None:
    """Six steps: saved after three, a rank killed in the fifth; then a run from there, and one that is never ended."""
    dip = {**FIXED, "schedule": "dip", "deterministic": True}
    saved = folder.parent / "saved"
    if what == "resumed":
        with suspended(engine_of(folder, **dip)) as engine:
            assert engine.load_checkpoint(saved)[0] is not None
            write(folder, "resumed", go_on(engine, saved))
    with engine_of(folder, **dip) as engine:
        write(folder, "whole", go_on(engine, saved, killed=what == "interrupted"))


def go_on(engine: Any, saved: Path, *, killed: bool = False) -> Any:
    """Train up to six steps; the losses, and the sum of every weight."""
    losses = []
    while engine.global_steps < 6:
        if killed and engine.global_rank == 1 and engine.global_steps == 4:
            in_a_stage(engine, lambda: os.kill(os.getpid(), signal.SIGKILL))
        losses.append(float(engine.train_batch()))
        if killed and engine.global_steps == 3:
            engine.save_checkpoint(saved)
    return losses, {name: tensor.double().sum().item() for name, tensor in engine.module.state_dict().items()}


def in_a_stage(engine: Any, act: Any) -> None:
    """Do something in the middle of this rank's next forward."""
    compute = engine._executor._compute
    forward, calls = compute.forward, []

    def wrapped(*arguments: Any) -> Any:
        if not calls:
            calls.append(0)
            act()
        return forward(*arguments)

    compute.forward = wrapped


def slow_rank(folder: Path, _: str) -> None:
    """The second rank is stopped in its second step for less than the deadline, and goes on."""

    def stop() -> None:
        if not (pid := os.fork()):
            time.sleep(SLOW_S)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(pid, 0)

    monitor = {"csv_monitor": {"enabled": True, "output_path": str(folder / "csv"), "job_name": "run"}}
    steps = []
    with engine_of(folder, extra=monitor, **FIXED) as engine:
        for step in range(4):
            if step == 1 and engine.global_rank == 1:
                in_a_stage(engine, stop)
            engine.train_batch()
            longest = [max(i.end - i.start for i in rank) for rank in engine.measured.stages]
            loading = engine.measured.loading, engine.global_rank, engine.loading_seconds
            steps.append({"longest": longest, "iteration": engine.measured.iteration, "loading": loading})
    write(folder, "steps", steps)


def one_of_two(folder: Path, _: str) -> None:
    """One of two jobs at once, each with its planner."""
    engine = engine_of(folder, **PLANNED)
    with engine:
        client = getattr(engine.plans, "_client", None)
        assert client is None or client.ready(30.0, plans=1)
        losses = [float(engine.train_batch()) for _ in range(20)]
        write(folder, "losses", losses)
        write(folder, "planner", [client and client.process_id, engine.plans.statistics().planned])


def asked_to_stop(folder: Path, what: str) -> None:
    """``SIGTERM 1``: that rank gets that signal in the middle of its second step; the run saves and stops.

    ``... of 1``: every pipeline has one rank.
    """
    what, _, pipeline = what.partition(" of ")
    name, _, ranks = what.partition(" ")
    with engine_of(folder, ranks=int(pipeline or 0), **FIXED) as engine, ds_dip.StopSignal(engine) as stop:
        for _ in range(50):
            if str(engine.global_rank) in ranks and engine.global_steps == 1:
                in_a_stage(engine, lambda: os.kill(os.getpid(), getattr(signal, name)))
            engine.train_batch()
            if engine.stop_requested():
                engine.save_checkpoint(folder / "saved")
                break
        write(folder, "steps", engine.global_steps)
    sys.exit(stop.status)


def second_signal(folder: Path, _: str) -> None:
    """Two signals, three seconds apart, to a rank whose main thread waits for another one."""
    with engine_of(folder, **FIXED) as engine, ds_dip.StopSignal(engine):
        engine.train_batch()
        if engine.global_rank == 1:
            subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -TERM {os.getpid()}; sleep 3; kill -TERM {os.getpid()}"])
            with engine.peers.told("the barrier of this test"):
                dist.barrier()
        # Longer than the signals take, and shorter than the other rank would wait.
        time.sleep(RANK_S - 3.0)
        engine.train_batch()


def exchanged(folder: Path, _: str) -> None:
    """What ranks give each other at start comes back as it was, whatever its size."""
    from ds_dip.planner.codec import Codec
    from ds_dip.runtime.exchange import broadcast, gather

    with engine_of(folder, **FIXED) as engine:
        codec: Codec[dict[str, tuple[int, ...]]] = Codec(dict[str, tuple[int, ...]], "numbers")
        rank = engine.global_rank
        found = gather(codec, {"mine": tuple(range(1000 * rank))})
        assert found == [{"mine": tuple(range(1000 * other))} for other in range(WORLD)]
        assert broadcast(codec, {"rank": (rank,)}) == {"rank": (0,)}
        assert gather(Codec(str, "word"), "", None) == ["", ""]
        engine.train_batch()


CASES: dict[str, Case] = {
    "troubled planner": (troubled_planner, ""),
    "store killed": (store_lost, "SIGKILL"),
    "store stopped": (store_lost, "SIGSTOP"),
    "interrupted": (resumed, "interrupted"),
    "resumed": (resumed, "resumed"),
    "slow rank": (slow_rank, ""),
    "two jobs": (one_of_two, ""),
    "one rank terminated": (asked_to_stop, "SIGTERM 1"),
    "one replica terminated": (asked_to_stop, "SIGTERM 1 of 1"),
    "all interrupted": (asked_to_stop, "SIGINT 0 1"),
    "second signal": (second_signal, ""),
    "exchanged": (exchanged, ""),
}


def two_jobs(folder: Path) -> list[dict[str, Any]]:
    """The outcomes of two jobs at once."""
    case, folders = CASES["two jobs"], [folder.with_name(f"{folder.name} {number}") for number in (1, 2)]
    jobs = [Job(case, own, WORLD, port) for own, port in zip(folders, PORTS, strict=False)]
    return [job.end() for job in jobs]


def with_holder(case: str, folder: Path) -> dict[str, Any]:
    """The outcome of a case whose store another process holds."""
    holder, parent = hold_store(PORT), os.getpid()
    folder.mkdir()
    (folder / "store").write_text(str(holder))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    try:
        return Job(CASES[case], folder, WORLD, PORT).end()
    finally:
        if os.getpid() == parent:  # and no rank, which leaves by the same way
            del os.environ["TORCHELASTIC_USE_AGENT_STORE"], os.environ["TORCHELASTIC_RESTART_COUNT"]
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)


def main() -> None:
    folder = Path(sys.argv[1])
    preload()
    jobs = Jobs(folder)
    for name in sys.argv[2:] or CASES:
        if name == "two jobs" or name.startswith("store"):
            outcome = two_jobs(folder / name) if name == "two jobs" else with_holder(name, folder / name)
            (folder / f"{name}.json").write_text(json.dumps(outcome))
        else:
            # How long the ranks take is looked at: nothing runs beside them.
            jobs.run(name, CASES[name], WORLD, whole=True)


if __name__ == "__main__":
    main()
