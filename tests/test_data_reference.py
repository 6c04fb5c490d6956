import json

import pytest

from ds_dip.data.reference import DatasetReference

DIGITS = "ds_dip.data.digits:Digits"


def test_a_reference_opens_the_dataset_with_its_options():
    dataset = DatasetReference(DIGITS, {"samples": 7, "split": "held_out"}).open()
    assert len(dataset) == 7
    assert dataset.metadata(0).id == "held_out-0"


def test_a_reference_travels_as_json():
    reference = DatasetReference(DIGITS, {"samples": 7})
    assert DatasetReference.parse(json.loads(json.dumps(reference.document()))) == reference


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (DatasetReference("ds_dip.data.digits"), "names no callable; write it as 'package.module:callable'"),
        (DatasetReference("ds_dip.nothing:Digits"), "cannot be imported"),
        (DatasetReference("ds_dip.data.digits:Letters"), "has no 'Letters'"),
        (DatasetReference(DIGITS, {"sample": 7}), "refused the options {'sample': 7}"),
        (DatasetReference(DIGITS, {"samples": 7, "split": "all"}), "expected one of train, held_out"),
        (DatasetReference("builtins:dict"), "gave a dict without 'metadata'"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_a_sentence(reference, words):
    with pytest.raises(ValueError, match="dataset factory") as error:
        reference.open()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "'factory' is None"),
        ({"factory": DIGITS, "options": []}, "'options' is \\[\\]"),
        ({"factory": DIGITS, "option": {}}, "'option' is unknown"),
    ],
)
def test_a_wrong_document_is_refused(document, words):
    with pytest.raises(ValueError, match=words):
        DatasetReference.parse(document)
