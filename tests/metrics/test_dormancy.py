"""The scores of dormant heads, each once by hand, and by both paths."""

import dataclasses
import math

import pytest
import torch
from handmade import AS_GIVEN, asked, real, written

from sinkscope.attention import Call, dense, flash
from sinkscope.attention.swap import Swap
from sinkscope.errors import UnknownNameError
from sinkscope.metrics import METRICS, dormancy
from sinkscope.metrics.choosing import chosen
from sinkscope.normalizers import NORMALIZERS, resolve

SCORES = {card.name: card for card in dormancy.SCORES}
MAPS = torch.tensor(
    [
        [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.125, 0.375]],
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]],
    ]
)[None]
VALUES = torch.tensor(
    [
        [[3.0, 4.0], [0.0, 8.0], [12.0, 0.0]],
        [[0.0, 2.0], [6.0, 8.0], [1.0, 0.0]],
    ]
)[None]
SLICES = torch.tensor(
    [
        [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]],  # doubles the second entry
        [[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]],  # 5 times the first entry
    ]
)
"""W_O of each head, [head value_width width]."""

GRAM = SLICES @ SLICES.mT

OUTPUT_NORMS = [
    [5, math.hypot(0.75, 7), math.hypot(6, 3)],
    [2, math.hypot(3, 5), 1],
]
"""‖Σwv‖ of each head and row."""


def entropy_of(*p):
    return -sum(each * math.log(each) for each in p)


def record(question=None, *, maps=MAPS, value=VALUES, gram=GRAM):
    call = dataclasses.replace(written(maps, value=value), gram=gram)
    return dense.attend_and_reduce(call, Swap(AS_GIVEN), question or asked(real(1, 3)))[1]


def figures(name, found):
    """The score of each head, None where it has none."""
    sums, counts = SCORES[name].function(found)
    return [float(total / count) if count else None for total, count in zip(sums[0], counts[0], strict=True)]


def by_hand(name, heads, layer=None):
    """Check a score and what it becomes relative to the layer."""
    found = record()
    assert figures(name, found) == pytest.approx(heads)
    mean = sum(layer or heads) / 2
    assert figures(f"{name}_ln", found) == pytest.approx([each / mean for each in heads])


def test_the_weight_of_the_first_token_counts_the_row_that_sees_nothing_else():
    by_hand("awft", [(1 + 0.25 + 0.5) / 3, (1 + 0.5 + 0) / 3])


def test_the_entropy_of_the_first_row_is_zero_and_counts():
    by_hand("aeqd", [(entropy_of(0.25, 0.75) + entropy_of(0.5, 0.125, 0.375)) / 3, math.log(2) / 3])


def test_values_are_taken_before_the_output_projection():
    by_hand("ftvvn", [5, 2])
    by_hand("avvn", [(5 + 8 + 12) / 3, (2 + 10 + 1) / 3])


def test_outputs_are_taken_before_the_output_projection():
    means = [sum(norms) / 3 for norms in OUTPUT_NORMS]
    by_hand("ahon", means)
    by_hand("lthon", [norms[-1] for norms in OUTPUT_NORMS], layer=means)


def test_the_full_output_of_a_head_is_what_it_adds_to_the_layer():
    first = [math.hypot(3, 8), math.hypot(0.75, 14), math.hypot(6, 6)]
    by_hand("full_head_output", [sum(first) / 3, 5 * (0 + 3 + 1) / 3])


def test_the_first_value_is_drained_where_the_projection_makes_less_of_it_than_of_the_others():
    assert figures("value_drain", record()) == pytest.approx([math.hypot(3, 8) / ((16 + 12) / 2), 0])


def test_a_row_is_dead_where_no_entry_of_its_output_reaches_a_millionth():
    maps = MAPS.clone()
    maps[0, 0, 1] = torch.tensor([2e-7, 0, 0])  # the output is (6e-7, 8e-7): its norm reaches 1e-6, no entry does
    maps[0, 1] = 0
    found = record(maps=maps)
    assert float(found.output_norm[0, 0, 1]) == pytest.approx(1e-6)
    assert figures("dead_rows", found) == [1 / 2, 1]


def test_the_last_token_is_the_last_real_one():
    padded = torch.tensor([[True, True, False]])
    assert figures("lthon", record(asked(padded))) == pytest.approx([norms[1] for norms in OUTPUT_NORMS])


def test_a_sample_has_a_last_token_only_if_that_is_in_it():
    asks = asked(real(1, 3))

    def of(*positions):
        return record(dataclasses.replace(asks, positions=torch.tensor([positions])))

    assert figures("lthon", of(0, 1)) == figures("lthon_ln", of(0, 1)) == [None, None]
    assert figures("lthon", of(0, 2)) == pytest.approx([norms[2] for norms in OUTPUT_NORMS])
    assert figures("ahon", of(0, 2)) == pytest.approx([(norms[0] + norms[2]) / 2 for norms in OUTPUT_NORMS])
    assert figures("full_head_output", of(1)) == pytest.approx([math.hypot(0.75, 14), 15])


def test_windows_count_alike_whatever_their_length():
    keep = torch.tensor([[True, True, True], [True, True, False]])
    twice = record(asked(keep), maps=MAPS.repeat(2, 1, 1, 1), value=VALUES.repeat(2, 1, 1, 1))
    sums, counts = SCORES["ahon"].function(twice)
    first = sum(OUTPUT_NORMS[0]) / 3, sum(OUTPUT_NORMS[0][:2]) / 2
    assert sums[:, 0].tolist() == pytest.approx(first)
    assert counts.eq(1).all()


def test_a_layer_of_nothing_has_no_scores_relative_to_it():
    found = record(value=torch.zeros_like(VALUES))
    for name in ("ftvvn", "avvn", "lthon", "ahon", "full_head_output"):
        assert figures(name, found) == [0, 0]
        assert figures(f"{name}_ln", found) == [None, None]
    assert figures("value_drain", found) == [None, None]


def test_scores_relative_to_the_layer_are_one_on_average():
    found = record()
    for name in ("awft", "aeqd", "ftvvn", "avvn", "ahon", "full_head_output"):
        assert sum(figures(f"{name}_ln", found)) / 2 == pytest.approx(1)


def test_an_output_that_is_no_number_makes_no_head_alive_or_dead():
    found = record()
    found.output_largest[0, 0, 2] = torch.nan
    assert math.isnan(figures("dead_rows", found)[0])


@pytest.mark.parametrize("spec", ["softmax", "softmax1", "temperature:t=0.5"])
@pytest.mark.parametrize("needs", ["all", "own"])
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_both_paths_give_the_same_scores(score, needs, spec):
    generator = torch.Generator().manual_seed(2)
    shapes = {"query": (2, 6, 90, 8), "key": (2, 2, 90, 8), "value": (2, 2, 90, 5)}
    parts = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    slices = torch.randn(6, 5, 30, generator=generator)
    call = Call(**parts, scale=0.7, causal=True, gram=slices @ slices.mT)
    asks = asked(real(2, 90))
    if needs == "own":
        asks = dataclasses.replace(asks, needs=score.needs)
    swap = Swap(resolve(spec))
    fast = score.function(flash.attend_and_reduce(call, swap, asks)[1])
    plain = score.function(dense.attend_and_reduce(call, swap, asks)[1])
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


def test_what_is_projected_is_the_vectors_through_the_weights_in_each_path():
    generator = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(1, heads, 40, 4, generator=generator) for heads in (4, 2, 2))
    slices = torch.randn(4, 4, 9, generator=generator)
    call = Call(query, key, value, 0.5, causal=True, gram=slices @ slices.mT)
    for half in (call, dataclasses.replace(call, query=query.half(), key=key.half(), value=value.half())):
        for path in (dense, flash):
            swap = Swap(NORMALIZERS["softmax"])
            output, found = path.attend_and_reduce(half, swap, asked(real(1, 40)))
            values = half.value.double().repeat_interleave(2, dim=1)
            wanted = (values @ slices.double()).norm(dim=-1)
            assert found.value_drain.dtype == found.projected_norm.dtype == torch.float32
            torch.testing.assert_close(found.value_drain.double(), wanted, rtol=1e-5, atol=1e-5)
            outputs = output.double().transpose(1, 2)
            wanted = (outputs @ slices.double()).norm(dim=-1)
            torch.testing.assert_close(found.projected_norm.double(), wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found.output_largest.double(), outputs.abs().amax(-1))


def test_a_call_without_its_projection_has_nothing_projected():
    found = record(gram=None)
    assert found.value_drain is None
    assert found.projected_norm is None
    with pytest.raises(ValueError, match="expected reductions with value_drain, got none"):
        SCORES["value_drain"].function(found)


def test_scores_are_measured_where_they_are_asked_for_only():
    usual = chosen(None)
    assert not {card.name for card in usual} & SCORES.keys()
    assert not frozenset().union(*(card.needs for card in usual)) & {"value_drain", "projected_norm", "output_largest"}
    assert [card.name for card in chosen(None, also=["dormancy"])] == [
        name for name in METRICS if METRICS[name] in usual or name in SCORES
    ]
    masses = {card.name for card in chosen([])}
    assert {card.name for card in chosen([], also=["ahon", "lse"])} == masses | {"ahon", "lse"}
    assert {card.name for card in chosen(["dormancy"])} == masses | {*SCORES}
    assert chosen(None, also=["entropy"]) == usual
    with pytest.raises(UnknownNameError, match="ahon"):
        chosen(None, also=["ahom"])
