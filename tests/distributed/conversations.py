"""A rank of the conversations' test: real pictures, trained on and evaluated by two ranks, from files of every form."""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch

import ds_dip
from ds_dip.data import DatasetReference, SampleMetadata
from ds_dip.data.conversations import Conversations
from ds_dip.models.config import load_model
from tests.distributed.evaluation import alone
from tests.distributed.ranks import report
from tests.media_cases import DEMO, Image, asked, film, lines

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 100,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "dip": {"checked": True, "planner": {"enabled": False}, "timeouts": {"rank_s": 60.0}},
}
#: Two of the samples of ``spoiling`` are broken where only decoding shows it.
BROKEN, SAMPLES = (1, 6), 8


def reference(folder: Path, **options: Any) -> DatasetReference:
    inner = {
        "files": [str(DEMO / "mllm_demo.json")],
        "processor": {"model": str(folder / "model.json")},
        "index": str(folder / "index"),
    }
    packed = {"factory": "ds_dip.data.conversations:Conversations", "options": inner | options}
    return DatasetReference("ds_dip.data.packed:Packed", {"dataset": packed, "length": 420})


@contextmanager
def engine_of(folder: Path, data: DatasetReference, pipeline: int = 2, **changes: Any) -> Iterator[Any]:
    """An engine that is closed and not shut down: the next one shares its process group."""
    model, config = load_model(folder / "model.json"), copy.deepcopy(CONFIG) | changes
    module = ds_dip.DIPModule(
        model, ds_dip.partition_for(model, config, pipeline), ds_dip.layer_factories(model, 0),
        ds_dip.token_cross_entropy,
    )  # fmt: skip
    engine = ds_dip.initialize(model=module, training_data=data, config=config)[0]
    try:
        yield engine
    finally:
        engine.close()


def noise(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)).save(path)


def prepare(folder: Path) -> None:
    """Files of every form, each with what trains; and two files alike, of which one has broken pictures."""
    for name in ("whole", "broken"):
        (folder / name).mkdir()
        for number in range(SAMPLES):
            noise(folder / name / f"{number}.png")
        texts = [f"<image>what is {number * 1000}?" for number in range(SAMPLES)]
        lines(folder / name / "a.jsonl", [asked(text, images=[f"{n}.png"]) for n, text in enumerate(texts)])
    for number in BROKEN:
        path = folder / "broken" / f"{number}.png"
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 500] = bytes(500)
        path.write_bytes(bytes(data))
    forms = folder / "forms"
    forms.mkdir()
    noise(forms / "a.png")
    film(forms / "a.mp4", range(0, 100, 4))
    lines(forms / "swift.jsonl", [{"query": "<image>what?", "response": "noise", "images": ["a.png"],
                                   "history": [["hello", "hello"]]}] * 2)  # fmt: skip
    said = [{"from": "user", "value": "Picture 1: <img>a.png</img>\nwhat?"}, {"from": "assistant", "value": "noise"}]
    (forms / "qwen.json").write_text(json.dumps([{"id": "0", "conversations": said}] * 2))
    video = {"conversations": [{"from": "human", "value": "<video>what?"}, {"from": "gpt", "value": "light"}],
             "video": "a.mp4"}  # fmt: skip
    (forms / "llava.json").write_text(json.dumps([video, video]))
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "what?"}]
    said = [{"role": "user", "content": parts}, {"role": "assistant", "content": [{"type": "text", "text": "noise"}]}]
    lines(forms / "messages.jsonl", [{"messages": said}] * 2)
    with tarfile.open(forms / "shard.tar", "w") as archive:
        for number in range(2):
            archive.add(forms / "a.png", f"{number}.png")
            for name, content in ((f"{number}.txt", b"noise"),):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    import pyarrow as pa
    from pyarrow import parquet

    row = asked(images=[{"bytes": (forms / "a.png").read_bytes(), "path": None}])
    parquet.write_table(pa.Table.from_pylist([row, row]), forms / "rows.parquet")


FORMS = ("swift.jsonl", "qwen.json", "llava.json", "messages.jsonl", "shard.tar", "rows.parquet")


class Masked(Conversations):
    """The whole pictures, with nothing learned of those samples whose pictures are broken elsewhere."""

    def metadata(self, index: int) -> SampleMetadata:
        metadata = super().metadata(index)
        return replace(metadata, loss_tokens=0) if index in BROKEN else metadata

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        loaded = super().load(sample, fields)
        if "labels" in fields and int(sample.rpartition("-")[2]) in BROKEN:
            return {**loaded, "labels": [np.full_like(own, -100) for own in loaded["labels"]]}
        return loaded


def spoiled(folder: Path, name: str, factory: str, **options: Any) -> DatasetReference:
    given = {
        "files": str(folder / name / "a.jsonl"),
        "processor": {"model": str(folder / "model.json")},
        "index": str(folder / name / "index"),
    }
    return DatasetReference(factory, given | options)


def leave_out(folder: Path) -> None:
    """Train on broken pictures and on whole ones of which nothing is learned: losses must be the same."""
    conversations = "ds_dip.data.conversations:Conversations"
    for pipeline, rule, workers in ((2, "tokens", 2), (1, "tokens", 0), (2, "samples", 1)):
        dip = CONFIG["dip"] | {"loss": rule}
        changes: dict[str, Any] = {"train_batch_size": 4, "dip": dip}
        losses: dict[str, list[float]] = {}
        for policy in ("skip", "masked") if rule == "tokens" else ("skip",):
            if policy == "masked":
                data = spoiled(folder, "whole", "tests.distributed.conversations:Masked")
            else:
                data = spoiled(folder, "broken", conversations, problems=policy, workers=workers)
            with engine_of(folder, data, pipeline, **changes) as engine:
                losses[policy] = [float(engine.train_batch()) for _ in range(5)]
                left = [(fault.sample, fault.sentence) for fault in engine.omissions.faults]
                if policy == "skip":
                    report(pipeline=pipeline, rule=rule, left=left, losses=losses)
                else:
                    report(pipeline=pipeline, rule=rule, losses=losses, left=left)
    lines(folder / "broken" / "b.jsonl", [asked(images=[f"{number}.png"]) for number in BROKEN])
    data = spoiled(folder, "broken", conversations, problems="replace", files=str(folder / "broken" / "b.jsonl"),
                   index=str(folder / "broken" / "index-b"))  # fmt: skip
    try:
        with engine_of(folder, data) as engine:
            engine.train_batch()
    except ValueError as error:
        report(nothing=str(error))


def forms(folder: Path) -> None:
    """Train some steps on a file of every form."""
    for name in FORMS:
        data = spoiled(folder, "forms", "ds_dip.data.conversations:Conversations",
                       files=str(folder / "forms" / name), index=str(folder / f"index-{name}"))  # fmt: skip
        with engine_of(folder, data) as engine:
            report(form=name, losses=[float(engine.train_batch()) for _ in range(4)])


def planned(folder: Path) -> None:
    """Two replicas, whose next samples only a plan tells: they are loaded while a step runs."""
    data = spoiled(folder, "whole", "ds_dip.data.conversations:Conversations")
    dip = CONFIG["dip"] | {"planner": {"enabled": True}}
    with engine_of(folder, data, 1, train_batch_size=4, dip=dip) as engine:
        ahead = []
        for step in range(3):
            engine.train_batch()
            end = time.monotonic() + 60.0
            while time.monotonic() < end and ((coming := engine._feed._coming) is None or coming.step != step + 1):
                time.sleep(0.01)
            assert coming is not None
            named = [sample.id for microbatch in coming.microbatches for sample in microbatch.samples]
            ahead.append((coming.step, set(named) <= set(engine.dataset._ahead._held)))
        report(ahead=ahead)


def packed(folder: Path) -> None:
    """Refuse ranks that see other samples; train and evaluate packs."""
    rank = int(os.environ["RANK"])
    try:
        with engine_of(folder, reference(folder, **({"problems": "skip"} if rank else {}))):
            pass
    except ValueError as error:
        report(refused=str(error))
    data = reference(folder)
    with engine_of(folder, data) as engine:
        dataset = data.open()
        samples = [dataset.metadata(index) for index in range(len(dataset))]
        with torch.no_grad():
            expected, rows = alone(engine.module.model, dataset, samples)
        loss, logits = engine.eval_batch(samples, return_logits=True)
        apart = max((float((logits[key] - rows[key]).abs().max()) for key in logits), default=0.0)
        losses = [float(engine.train_batch()) for _ in range(8)]
        report(
            loss=float(loss), expected=expected, apart=apart, losses=losses, loading=engine.loading_seconds,
            packs=[len(sample.modules["language"]) for sample in samples],
        )  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    deepspeed.init_distributed()
    packed(folder)
    forms(folder)
    leave_out(folder)
    planned(folder)


if __name__ == "__main__":
    main()
