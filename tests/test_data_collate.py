import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.collate import collate
from ds_dip.data.metadata import SampleMetadata


class Numbers:
    """Samples whose rows are all different, and which remember what was loaded."""

    def __init__(self, sizes):
        self.sizes, self.loaded = sizes, []
        starts = np.cumsum([0, *(size for sample in sizes for size in sample)])
        rows = iter(np.split(np.arange(starts[-1]), starts[1:-1]))
        self.rows = [[next(rows) for _ in sample] for sample in sizes]

    def __len__(self):
        return len(self.sizes)

    def metadata(self, index):
        return SampleMetadata(str(index), {"vision": self.sizes[index], "language": (3,)}, 1)

    def load(self, sample, fields):
        self.loaded.append(int(sample))
        rows = self.rows[int(sample)]
        return {"pixels": rows, "doubled": [2 * row for row in rows]}


@st.composite
def requests(draw):
    sizes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=6))
    total = sum(map(len, sizes))
    start = draw(st.integers(0, total))
    return sizes, start, draw(st.integers(start, total))


@settings(deadline=None, max_examples=50)
@given(requests())
def test_a_range_of_instances_is_concatenated_in_sample_order_from_as_few_samples_as_hold_it(request):
    sizes, start, stop = request
    dataset = Numbers(sizes)
    samples = [dataset.metadata(index) for index in range(len(sizes))]
    if start == stop:
        with pytest.raises(ValueError, match="at least one instance"):
            collate(dataset, samples, "vision", ["pixels"], start, stop)
        return
    fields = collate(dataset, samples, "vision", ["pixels", "doubled"], start, stop)
    instances = [(index, row) for index, sample in enumerate(dataset.rows) for row in sample][start:stop]
    expected = np.concatenate([row for _, row in instances])
    assert np.array_equal(fields["pixels"], expected)
    assert np.array_equal(fields["doubled"], 2 * expected)
    assert dataset.loaded == sorted({index for index, _ in instances})


def test_a_stage_without_fields_loads_nothing():
    dataset = Numbers([(2, 3)])
    assert collate(dataset, [dataset.metadata(0)], "vision", [], 0, 2) == {}
    assert dataset.loaded == []


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (-1, 1), (2, 2)])
def test_a_range_outside_the_microbatch_is_refused(start, stop):
    dataset = Numbers([(2, 3)])
    with pytest.raises(ValueError, match=f"instances {start} to {stop} of module 'vision' .* has 2"):
        collate(dataset, [dataset.metadata(0)], "vision", ["pixels"], start, stop)


@pytest.mark.parametrize(
    ("sizes", "field", "words"),
    [
        ((2, 4), "pixels", "instance 1 has size 3 and the metadata says 4"),
        ((2,), "pixels", "2 instances were loaded and the metadata says 1"),
        ((2, 3), "labels", "the dataset gave only pixels, doubled"),
    ],
)
def test_what_disagrees_with_the_metadata_is_refused(sizes, field, words):
    dataset = Numbers([(2, 3)])
    sample = SampleMetadata("0", {"vision": sizes}, 1)
    with pytest.raises(ValueError, match=r"sample '0', field") as error:
        collate(dataset, [sample], "vision", [field], 0, 1)
    assert words in str(error.value)


class Faulty(Numbers):
    """Gives what ``fault`` makes of a sample's fields."""

    def __init__(self, fault):
        super().__init__([(2, 3), (4,)])
        self.fault = fault

    def load(self, sample, fields):
        return self.fault(sample, super().load(sample, fields))


def raising(error):
    def fault(sample, loaded):
        if sample == "1":
            raise error
        return loaded

    return fault


def pixels(change):
    return lambda sample, loaded: {"pixels": change(loaded["pixels"])}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (raising(OSError(5, "Input/output error")), "sample '1': the dataset raised OSError ([Errno 5] Input/output"),
        (raising(StopIteration()), "sample '1': the dataset raised StopIteration (StopIteration) while it loaded pix"),
        (raising(KeyError("x")), "sample '1': the dataset raised KeyError ('x') while it loaded pixels; make load()"),
        (lambda _, loaded: None, "sample '0': load() gave a NoneType, expected a mapping"),
        (lambda _, loaded: {}, "sample '0', field 'pixels': the dataset gave only nothing"),
        (pixels(lambda arrays: arrays[:1]), "field 'pixels': 1 instances were loaded and the metadata says 2"),
        (pixels(lambda arrays: [a[:1] for a in arrays]), "instance 0 has size 1 and the metadata says 2"),
        (pixels(lambda arrays: [a.tolist() for a in arrays]), "an instance is of type list, expected a numpy array"),
        (pixels(lambda arrays: [a.astype(object) for a in arrays]), "an instance is of type array of object"),
        (pixels(lambda arrays: [np.float32(1)] * len(arrays)), "an instance is of type float32, expected"),
    ],
)  # fmt: skip
def test_a_dataset_that_does_not_give_what_it_should_is_told_so_with_the_sample(fault, sentence):
    dataset = Faulty(fault)
    with pytest.raises(ValueError, match="^(sample|field) ") as error:
        collate(dataset, [dataset.metadata(0), dataset.metadata(1)], "vision", ["pixels"], 0, 3)
    assert sentence in str(error.value)
    assert "make " in str(error.value)


@pytest.mark.parametrize("change", [lambda a: a[:, None].repeat(2, 1), lambda a: a.astype(np.float32)])
def test_instances_of_different_width_or_dtype_are_refused_with_both_samples(change):
    dataset = Faulty(lambda sample, loaded: {"pixels": [change(a) if sample == "1" else a for a in loaded["pixels"]]})
    with pytest.raises(ValueError, match=r"sample '0' has instances \[n\] of int64 and sample '1' \[n(, 2)?\] of "):
        collate(dataset, [dataset.metadata(0), dataset.metadata(1)], "vision", ["pixels"], 0, 3)
