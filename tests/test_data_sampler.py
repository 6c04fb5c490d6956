import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.sampler import Sampler

SHAPES = st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5)).map(
    lambda shape: Sampler(max(shape[:2]), min(shape[:2]), shape[2])
)


@settings(deadline=None, max_examples=50)
@given(sampler=SHAPES, step=st.integers(0, 50))
def test_every_global_batch_is_full_and_holds_no_sample_twice(sampler, step):
    indices = sampler.indices(step)
    assert len(indices) == len(set(indices)) == sampler.batch_size
    assert all(0 <= index < sampler.samples for index in indices)


@settings(deadline=None, max_examples=50)
@given(sampler=SHAPES, step=st.integers(0, 50))
def test_the_order_follows_from_seed_and_step_alone(sampler, step):
    again = Sampler(sampler.samples, sampler.batch_size, sampler.seed)
    assert again.indices(step) == sampler.indices(step)


@settings(deadline=None, max_examples=50)
@given(sampler=SHAPES, epoch=st.integers(0, 3))
def test_an_epoch_holds_no_sample_twice(sampler, epoch):
    first = epoch * sampler.steps_per_epoch
    seen = [index for step in range(sampler.steps_per_epoch) for index in sampler.indices(first + step)]
    assert len(seen) == len(set(seen)) == sampler.steps_per_epoch * sampler.batch_size


def test_epochs_and_seeds_shuffle_anew():
    sampler = Sampler(100, 50, seed=0)
    assert sampler.indices(0) != sampler.indices(2)
    assert sampler.indices(0) != Sampler(100, 50, seed=1).indices(0)
    assert sampler.indices(0) != list(range(50))


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 11), (10, 0), (0, 0)])
def test_a_batch_that_cannot_be_filled_is_refused(samples, batch_size):
    with pytest.raises(ValueError, match=f"global batch is {batch_size} samples and the dataset holds {samples}"):
        Sampler(samples, batch_size)


def test_a_step_before_the_first_is_refused():
    with pytest.raises(ValueError, match="step is -1"):
        Sampler(10, 5).indices(-1)
