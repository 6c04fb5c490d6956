"""Conversations with real pictures train on real ranks: packed, from files of every form, broken ones left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed import conversations
from tests.distributed.ranks import run_ranks
from tests.media_cases import tiny_model

Ranks = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What two ranks report of all cases."""
    pytest.importorskip("pyarrow", reason="install the extra parquet")
    folder = tmp_path_factory.mktemp("conversations")
    path = Path(tiny_model(folder))
    path.write_text(path.read_text().replace('"layers": 1', '"layers": 2'))
    conversations.prepare(folder)
    return run_ranks("tests.distributed.conversations", 2, str(folder))


def reports(ranks: Ranks, key: str) -> list[list[dict[str, Any]]]:
    """Each rank's reports that have a key; what all ranks say alike."""
    return [[own for own in rank if key in own] for rank in ranks]


def test_two_ranks_train_on_packed_conversations(ranks: Ranks) -> None:
    for refused, trained in reports(ranks, "refused"), reports(ranks, "packs"):
        assert len(refused) == len(trained) == 1
    for (refused,), (trained,) in zip(reports(ranks, "refused"), reports(ranks, "packs"), strict=True):
        assert refused["refused"].startswith("rank 1 finds other samples in the dataset than rank 0")
        assert sum(trained["packs"]) == 6 > len(trained["packs"])
        assert trained["loss"] == pytest.approx(trained["expected"], rel=1e-5)
        assert trained["apart"] <= 1e-4
        assert trained["losses"][-1] < 0.9 * trained["losses"][0]
        assert trained["losses"] == reports(ranks, "packs")[0][0]["losses"]


def test_files_of_every_form_train(ranks: Ranks) -> None:
    first, second = reports(ranks, "form")
    assert first == second
    assert [own["form"] for own in first] == list(conversations.FORMS)
    for own in first:
        assert own["losses"][-1] < own["losses"][0]


def test_broken_pictures_are_left_out_alike_and_change_no_gradient(ranks: Ranks) -> None:
    first, second = reports(ranks, "left")
    assert first == second
    for own in first:
        if "masked" in own["losses"]:
            assert own["losses"]["skip"] == pytest.approx(own["losses"]["masked"], rel=1e-6)
            assert own["left"] == []
        else:
            assert sorted(sample for sample, _ in own["left"]) == ["a-1", "a-6"]
            assert all("image" in sentence and "cannot be decoded" in sentence for _, sentence in own["left"])
    # By samples too the ones that are left out count for nothing: what is learned is not scaled down by them.
    assert len(first) == 5


def test_a_step_of_nothing_but_broken_samples_ends_the_run_on_every_rank(ranks: Ranks) -> None:
    (first,), (second,) = reports(ranks, "nothing")
    assert first == second
    assert first["nothing"].startswith("step 0 has nothing left to learn from")


def test_replicas_load_what_the_next_plan_names(ranks: Ranks) -> None:
    for (own,) in reports(ranks, "ahead"):
        assert own["ahead"] == [[1, True], [2, True], [3, True]]
