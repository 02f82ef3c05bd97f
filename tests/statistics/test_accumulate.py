import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.statistics.accumulate import (
    Tally,
    document_blocks,
    draws,
    influences,
    interval,
    ratio,
    resampled,
    standard_error,
)


def pairs(windows, heads=3, *axes):
    """Random sums and counts of so many windows."""
    generator = torch.Generator().manual_seed(windows)
    sums = torch.randn(windows, heads, *axes, generator=generator)
    return sums, torch.randint(1, 9, (windows, heads, *axes), generator=generator).double()


def cut(windows, at):
    """Consecutive ranges of windows."""
    edges = [0, *sorted(set(at) - {0, windows}), windows]
    return [range(start, stop) for start, stop in pairwise(edges)]


def counted(batches, sums, counts):
    tally = Tally()
    for batch in batches:
        at = slice(batch.start, batch.stop)
        tally.add(batch, (sums[at], counts[at]))
    return tally


@given(data=st.data(), windows=st.integers(1, 8))
def test_neither_the_order_nor_the_size_of_batches_changes_a_digit(data, windows):
    sums, counts = pairs(windows, 3, 2)
    batches = cut(windows, data.draw(st.lists(st.integers(1, windows), max_size=4)))
    tally = counted(data.draw(st.permutations(batches)), sums, counts)
    assert tally.windows == list(range(windows))
    found = tally.by_window()
    assert torch.equal(found[0], sums.double())
    assert torch.equal(found[1], counts)


@given(data=st.data(), windows=st.integers(2, 8))
def test_two_tallies_merge_into_what_one_would_have_counted(data, windows):
    sums, counts = pairs(windows)
    batches = cut(windows, [data.draw(st.integers(1, windows - 1))])
    one, other = counted(batches[:1], sums, counts), counted(batches[1:], sums, counts)
    for merged in (one.merge(other), other.merge(one)):
        assert all(torch.equal(a, b) for a, b in zip(merged.by_window(), (sums.double(), counts), strict=True))
    assert one.windows == list(batches[0])
    assert other.windows == list(batches[1])


def test_the_same_window_twice_is_refused_and_nothing_of_its_batch_is_kept():
    sums, counts = pairs(3)
    tally = counted([range(1, 3)], sums, counts)
    with pytest.raises(ValueError, match="window 1 was already counted"):
        tally.add(range(2), (sums[:2], counts[:2]))
    assert tally.windows == [1, 2]
    with pytest.raises(ValueError, match="window 2 was already counted"):
        tally.merge(counted([range(2, 3)], sums, counts))


def test_sums_of_another_number_of_windows_are_refused():
    with pytest.raises(ValueError, match="expected sums for 2 windows, got 3"):
        Tally().add(range(2), pairs(3))


def test_half_precision_is_added_up_in_double():
    sums = torch.tensor([[1.0], [2.0**-9]], dtype=torch.bfloat16)
    tally = counted([range(2)], sums, torch.ones(2, 1))
    assert float(ratio(*tally.by_window())[0]) == (1 + 2.0**-9) / 2


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    sums, counts = torch.tensor([[1.0], [9.0]]).double(), torch.tensor([[1.0], [3.0]]).double()
    assert ratio(sums, counts).tolist() == [10 / 4]
    assert influences(sums, counts).flatten().tolist() == [(1 - 2.5) / 4, (9 - 7.5) / 4]


def test_where_nothing_was_counted_there_is_no_figure():
    sums, counts = torch.zeros(3, 2).double(), torch.tensor([[1.0, 0], [1, 0], [1, 0]]).double()
    assert ratio(sums, counts).isnan().tolist() == [False, True]
    assert standard_error(influences(sums, counts), counts).isnan().tolist() == [False, True]


def test_the_standard_error_of_windows_of_one_size_is_that_of_their_mean():
    sums, _ = pairs(6)
    counts = torch.full_like(sums, 5)
    found = standard_error(influences(sums.double(), counts.double()), counts.double())
    figures = (sums.double() / 5).numpy()
    np.testing.assert_allclose(found.numpy(), figures.std(axis=0, ddof=1) / math.sqrt(6))


def test_the_standard_error_of_a_ratio_by_hand():
    sums, counts = torch.tensor([[1.0], [9.0], [2.0]]).double(), torch.tensor([[1.0], [3.0], [2.0]]).double()
    residuals = [1 - 2 * 1, 9 - 2 * 3, 2 - 2 * 2]
    wanted = math.sqrt(3 / 2 * sum((each / 6) ** 2 for each in residuals))
    assert standard_error(influences(sums, counts), counts).tolist() == pytest.approx([wanted])


def test_windows_that_agree_have_no_error_and_one_window_has_none_at_all():
    sums, counts = torch.tensor([[2.0], [4.0]]).double(), torch.tensor([[1.0], [2.0]]).double()
    assert standard_error(influences(sums, counts), counts).tolist() == [0]
    assert standard_error(influences(sums[:1], counts[:1]), counts[:1]).isnan().all()


@given(st.integers(2, 7))
def test_influences_add_up_to_nothing(windows):
    sums, counts = pairs(windows)
    assert influences(sums.double(), counts).sum(0).abs().max() < 1e-12


def test_bootstrap_samples_are_as_large_as_what_they_are_of_and_the_same_for_a_seed():
    times = draws(7, 50, 3)
    assert times.sum(1).tolist() == [7] * 50
    assert torch.equal(times, draws(7, 50, 3))
    assert not torch.equal(times, draws(7, 50, 4))


def test_a_resampled_ratio_is_that_of_the_windows_that_were_drawn():
    sums, counts = (side.double() for side in pairs(4))
    times = torch.tensor([[2.0, 0, 1, 1], [0, 0, 0, 4]]).double()
    found = resampled(sums, counts, times)
    torch.testing.assert_close(found[0], ratio(sums[[0, 0, 2, 3]], counts[[0, 0, 2, 3]]))
    torch.testing.assert_close(found[1], sums[3] / counts[3])


def test_the_bootstrap_spreads_as_far_as_the_standard_error_says():
    sums, counts = (side.double() for side in pairs(60))
    again = resampled(sums, counts, draws(60, 4000, 0))
    torch.testing.assert_close(again.std(0), standard_error(influences(sums, counts), counts), rtol=0.08, atol=0)
    low, high = interval(again)
    torch.testing.assert_close((high - low) / (2 * 1.96), again.std(0), rtol=0.08, atol=0)


def test_the_interval_of_very_many_numbers_is_that_of_each_column():
    values = torch.rand(1 << 12, 3, 1 << 10, generator=torch.Generator().manual_seed(0)).double()
    low, high = interval(values)
    assert low.shape == high.shape == (3, 1 << 10)
    np.testing.assert_allclose(low[1, :4], np.percentile(values[:, 1, :4], 2.5, axis=0))
    np.testing.assert_allclose(high[2, -4:], np.percentile(values[:, 2, -4:], 97.5, axis=0))
    one, _ = interval(values[:, 0, 0])
    assert one == low[0, 0]


DOCUMENTS = ["a", "b", "a", "c", "d", "e", "e", "a"]


def test_errors_are_over_documents_from_five_on():
    assert document_blocks(DOCUMENTS).tolist() == [0, 1, 0, 2, 3, 4, 4, 0]
    assert document_blocks(["a", "b", "c", "d"] * 9) is None


def test_the_error_over_documents_is_that_of_the_sums_of_each():
    sums, counts = (side.double() for side in pairs(8))
    blocks = document_blocks(DOCUMENTS)
    whole = [torch.stack([side[blocks == block].sum(0) for block in range(5)]) for side in (sums, counts)]
    found = standard_error(influences(sums, counts), counts, blocks)
    torch.testing.assert_close(found, standard_error(influences(*whole), whole[1]))


def test_a_bootstrap_sample_takes_documents_whole():
    blocks = document_blocks(DOCUMENTS)
    times = draws(8, 50, 3, blocks)
    assert torch.equal(times, draws(5, 50, 3)[:, blocks])
    assert torch.equal(times[:, 0], times[:, 7])


def test_windows_that_count_nothing_are_no_evidence():
    sums, counts = (side.double() for side in pairs(3))
    nothing = torch.zeros(5, 3).double()
    among = [torch.cat([side, nothing]) for side in (sums, counts)]
    alone = standard_error(influences(sums, counts), counts)
    torch.testing.assert_close(standard_error(influences(*among), among[1]), alone)
    single = [torch.cat([side[:1], nothing]) for side in (sums, counts)]
    assert standard_error(influences(*single), single[1]).isnan().all()
