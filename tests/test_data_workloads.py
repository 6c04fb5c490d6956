"""The paper's workloads: how far apart the lightest and the heaviest packed sequence of one model are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_dip.costs.devices import read_device
from ds_dip.costs.model import sample_seconds
from ds_dip.costs.roofline import Roofline
from ds_dip.data.documents import PackedDocuments
from ds_dip.models import load_model
from ds_dip.planning.cut import sizes_of

ROOT = Path(__file__).parent.parent
MODEL = load_model(ROOT / "model_configs" / "vlm_m.json")
DOCUMENTS = PackedDocuments(400)


def images() -> list[int]:
    return [len(DOCUMENTS.metadata(index).modules["vision"]) for index in range(400)]


def test_the_heaviest_sequence_is_about_4_times_the_lightest_by_the_papers_layer_times() -> None:
    # DIP, motivation: 6.75 ms for 8 images in each of 63 layers, 10.5 ms for 8192 tokens in each of 64.
    seconds = [63 * 6.75e-3 / 8 * count + 64 * 10.5e-3 for count in images()]
    assert max(seconds) / min(seconds) == pytest.approx(4.15, rel=0.15)


def test_it_is_by_the_roofline_too() -> None:
    device = read_device(ROOT / "profiling" / "devices" / "h800.json")
    costs = Roofline(MODEL, device.rates("bfloat16", "network"), device.tensor_parallel(8))
    counts = images()
    ends = [DOCUMENTS.metadata(counts.index(end(counts))) for end in (min, max)]
    lightest, heaviest = (sample_seconds(MODEL, costs, sizes_of([sample], MODEL)) for sample in ends)
    assert heaviest / lightest == pytest.approx(4.15, rel=0.15)
