import math

import pytest
import torch
from handmade import asked, real, reduced
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.metrics.positions import RANKED_FROM, Received, bin_edges, first_mass_by_position


@given(st.integers(2, 100_000))
def test_bins_cover_every_query_after_the_first_exactly_once(length):
    edges = bin_edges(length)
    assert edges[0] == 1
    assert edges[-1] == length
    assert edges == sorted(set(edges))


def test_there_are_two_bins_an_octave():
    assert bin_edges(100) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]
    assert bin_edges(2) == [1, 2]
    assert bin_edges(64) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]


def windowed(batch, heads, length, window):
    """Random weights and who sees whom: at most `window` keys, and no query sees what is padding."""
    generator = torch.Generator().manual_seed(length)
    seen = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    return torch.rand(batch, heads, length, length, generator=generator), seen[None, None].expand(batch, 1, -1, -1)


@settings(deadline=None, max_examples=20)
@given(length=st.integers(2, 30), left=st.integers(0, 5), right=st.integers(0, 5), window=st.sampled_from([3, 99]))
def test_first_token_mass_by_distance_is_what_a_loop_finds(length, left, right, window):
    whole = left + length + right
    weights, seen = windowed(2, 3, whole, window)
    keep = torch.zeros(2, whole, dtype=torch.bool)
    keep[:, left : left + length] = True
    edges = bin_edges(length)
    found = first_mass_by_position(reduced(weights, asked(keep), visible=seen & keep[:, None, None]), edges)
    sums, counts = torch.zeros(2, 3, len(edges) - 1).double(), torch.zeros(2, 3, len(edges) - 1).double()
    for distance in range(1, length):
        if distance < window:
            place = next(index for index, stop in enumerate(edges[1:]) if distance < stop)
            sums[..., place] += weights[:, :, left + distance, left]
            counts[..., place] += 1
    torch.testing.assert_close(found[0], sums)
    assert torch.equal(found[1], counts)


def plainly(calls, keep):
    """Mean over heads, fewest later queries, top figure and its head of each key of each window, in loops."""
    table = {}
    for window in range(keep.shape[0]):
        for key in range(keep.shape[1]):
            figures, fewest = {}, math.inf
            for layer, (weights, seen) in calls.items():
                later = [q for q in range(key + 1, keep.shape[1]) if keep[window, q] and seen[window, 0, q, key]]
                for head in range(weights.shape[1] if later else 0):
                    mass = sum(float(weights[window, head, query, key]) for query in later)
                    figures[layer, head] = mass / len(later), len(later)
                    fewest = min(fewest, len(later))
            ranked = {place: mass for place, (mass, later) in figures.items() if later >= RANKED_FROM}
            top = max(ranked, key=ranked.get, default=None)
            mean = sum(mass for mass, _ in figures.values()) / len(figures) if figures else math.nan
            table[window, key] = mean, fewest, top, ranked.get(top)
    return table


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_keys_receive_and_from_whom_most_is_what_loops_find(batch_size):
    length = 40
    keep = torch.stack([torch.ones(length).bool(), torch.arange(length) >= 4])
    calls = {}
    for layer, (heads, window) in {2: (3, 99), 5: (1, 6), 7: (2, 35)}.items():
        weights, seen = windowed(2, heads, length, window)
        calls[layer] = weights * torch.linspace(0.5, 1, heads)[:, None, None], seen & keep[:, None, None]
    received = Received.empty(2, length)
    for layer, (weights, seen) in calls.items():
        for start in range(0, 2, batch_size):
            at = slice(start, start + batch_size)
            found = reduced(weights[at], asked(keep[at]), visible=seen[at])
            received.add(range(start, start + batch_size), layer, found)
    mean = received.mean()
    for (window, key), (wanted, fewest, top, most) in plainly(calls, keep).items():
        assert float(mean[window, key]) == pytest.approx(wanted, nan_ok=True)
        assert float(received.fewest[window, key]) == fewest
        place = int(received.top_layer[window, key]), int(received.top_head[window, key])
        assert place == (top or (-1, -1))
        assert float(received.top[window, key]) == pytest.approx(-math.inf if most is None else most)


def test_received_mass_has_to_be_asked_for():
    bare = reduced(torch.ones(1, 1, 2, 2), asked(real(1, 2), needs=frozenset()))
    with pytest.raises(ValueError, match="expected reductions with received mass, got none"):
        Received.empty(1, 2).add(range(1), 0, bare)
