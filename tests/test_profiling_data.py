"""What a dataset asks of a model: histograms that count every sample, and lines that the partitioner reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.data import DatasetReference, read_batch
from ds_dip.files import TargetError
from ds_dip.profiling.data import histogram, histograms, profile_data, sample
from ds_dip.profiling.show import bars
from tests.order_cases import sized

DIGITS = DatasetReference("ds_dip.data.digits:Digits", {"samples": 300})


@given(st.lists(st.integers(0, 10**5), min_size=1, max_size=200))
def test_a_histogram_counts_everything_once(values: list[int]) -> None:
    found = histogram(values)
    assert sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert found.quantiles["0"] == min(values)
    assert found.quantiles["1"] == max(values)
    assert found.mean == pytest.approx(float(np.mean(values)), abs=1e-3)


def test_few_values_have_a_bin_each() -> None:
    assert histogram([1, 1, 2, 4]).counts == (2, 1, 0, 1)


def test_samples_are_drawn_once_each_and_the_same_for_a_seed() -> None:
    drawn = sample(DIGITS, 50, 7)
    assert len({s.id for s in drawn}) == 50
    assert [s.id for s in sample(DIGITS, 50, 7)] == [s.id for s in drawn]
    assert [s.id for s in sample(DIGITS, 50, 8)] != [s.id for s in drawn]
    assert len(sample(DIGITS, 10_000, 0)) == 300


def test_a_dataset_with_weights_is_drawn_by_them() -> None:
    parts = {name: sized([(images, 5)] * size) | {"weight": weight}
             for name, images, size, weight in (("a", 0, 300, 1.0), ("b", 1, 20, 3.0))}  # fmt: skip
    reference = DatasetReference("ds_dip.data.mixture:Mixture", {"parts": parts})
    drawn = sample(reference, 100, 0)
    assert len(drawn) == 100
    assert sum(own.id.startswith("b/") for own in drawn) == pytest.approx(75, abs=2)


def test_instances_sizes_and_tokens_agree() -> None:
    samples = sample(DIGITS, 300, 0)
    found = histograms(samples)["vision"]
    assert found["tokens"].mean == pytest.approx(16 * found["instances"].mean, rel=1e-3)
    assert sum(found["size"].counts) == sum(len(s.modules["vision"]) for s in samples)
    assert found["size"].quantiles == dict.fromkeys(found["size"].quantiles, 16.0)


def test_the_profile_and_the_samples_are_written(tmp_path: Path) -> None:
    out = tmp_path / "digits.json"
    document = profile_data(DIGITS, out, 40, 1)
    assert json.loads(out.read_text()) == document
    assert (document["format"], document["samples"], document["seed"]) == ("ds-dip/data-profile", 40, 1)
    assert [s.id for s in read_batch(tmp_path / document["batch"])] == [s.id for s in sample(DIGITS, 40, 1)]


def test_a_missing_folder_is_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="there is no folder"):
        profile_data(DIGITS, tmp_path / "no" / "digits.json", 40)


def test_a_file_of_somebody_elses_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(TargetError, match=f"^{tmp_path}/train.jsonl: is not of ds_dip and would be replaced"):
        profile_data(DIGITS, tmp_path / "train.json", 4)
    with pytest.raises(TargetError, match="is where the samples go"):
        profile_data(DIGITS, tmp_path / "train.jsonl", 4)
    assert os.listdir(tmp_path) == ["train.jsonl"]
    assert (tmp_path / "train.jsonl").read_text() == '{"messages": []}\n'
    profile_data(DIGITS, tmp_path / "a.json", 4)
    assert profile_data(DIGITS, tmp_path / "a.json", 5)["samples"] == len(read_batch(tmp_path / "a.jsonl")) == 5


def test_bars_show_what_is_there_at_all() -> None:
    assert bars([0, 1, 1000]) == " ▁█"
