"""Laws over all metrics, and each of them once by hand."""

import dataclasses
import math
import re

import pytest
import torch
from handmade import AS_GIVEN, asked, real, reduced, written
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import Call, dense, flash
from sinkscope.attention.swap import Swap
from sinkscope.metrics import METRICS
from sinkscope.normalizers import NORMALIZERS
from sinkscope.tokens import classify, read

LENGTH, HEADS = 9, 4
SWAPS = {
    "softmax": NORMALIZERS["softmax"],
    "sparse": NORMALIZERS["sparsemax"],
    "degenerate": NORMALIZERS["poly2"],
    "signed": AS_GIVEN,
}
EACH_SWAP = pytest.mark.parametrize("normalizer", SWAPS.values(), ids=SWAPS)
EACH = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


def random_call(*, batch=2, sink=True, causal=False):
    """A call of two key heads with random masks, where some queries see nothing and some not the first token."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    seen = torch.rand(batch, 1, LENGTH, LENGTH, generator=generator) < 0.6
    return Call(
        query=2 * normal(batch, HEADS, LENGTH, 5),
        key=normal(batch, 2, LENGTH, 5),
        value=normal(batch, 2, LENGTH, 3),
        scale=0.6,
        mask=None if causal else seen.tril(),
        causal=causal,
        sink=normal(1, HEADS, 1) if sink else None,
        gram=gram_of(normal(HEADS, 3, 7)),
    )


def gram_of(slices):
    """What is kept of an output projection's slices [head value_width width]."""
    return slices @ slices.mT


def question(batch, *, keep=None):
    """Three classes in turn, the first token apart."""
    keep = real(batch, LENGTH) if keep is None else keep
    place = keep.long().cumsum(-1) - 1
    marked = {f"class {part}": keep & (place > 0) & (place % 3 == part) for part in range(3)}
    return asked(keep, **marked)


def measured(metric, call, normalizer, asks):
    return metric.function(dense.attend_and_reduce(call, Swap(normalizer), asks)[1])


@EACH
@EACH_SWAP
def test_a_metric_is_one_sum_and_one_count_per_window_head_and_class_in_double_precision(metric, normalizer):
    shape = (2, HEADS, 4) if metric.per_class else (2, HEADS)
    for sink in (False, True):
        sums, counts = measured(metric, random_call(sink=sink), normalizer, question(2))
        assert sums.shape == counts.shape == shape
        assert sums.dtype == counts.dtype == torch.float64
        assert sums.isfinite().all()
        assert (counts >= 0).all()
        assert sums[counts == 0].eq(0).all()


@EACH
@EACH_SWAP
def test_a_metric_stays_in_its_range(metric, normalizer):
    for sink in (False, True):
        sums, counts = measured(metric, random_call(sink=sink), normalizer, question(2))
        figures = (sums / counts)[counts > 0]
        assert metric.low is None or (figures >= metric.low - 1e-6).all()
        assert metric.high is None or (figures <= metric.high + 1e-6).all()


def padded(call, before, after):
    """The call between padding: keys that nobody real sees, queries that see all or nothing, and garbage in both."""
    length = call.length + before + after

    def put(tensor, filling):
        keys = tensor.shape[-1]
        grown = torch.full((*tensor.shape[:2], length, keys), filling)
        grown[:, :, before : before + call.length] = tensor
        return grown

    mask = torch.zeros(call.query.shape[0], 1, length, length, dtype=torch.bool)
    inner = slice(before, before + call.length)
    mask[:, :, inner, inner] = call.visible()
    mask[:, :, before + call.length :] = True
    # A value of NaN would be one times 0 too, in the model's own output as in ours.
    query, key, value = put(call.query, torch.nan), put(call.key, torch.nan), put(call.value, 1e4)
    return dataclasses.replace(call, query=query, key=key, value=value, mask=mask)


@EACH
@EACH_SWAP
@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 2), (1, 1)])
def test_padding_that_holds_anything_changes_no_metric(metric, normalizer, before, after):
    call = random_call()
    keep = torch.nn.functional.pad(real(2, LENGTH), (before, after))
    alone = measured(metric, call, normalizer, question(2))
    together = measured(metric, padded(call, before, after), normalizer, question(2, keep=keep))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@EACH
@EACH_SWAP
def test_a_batch_of_two_is_two_batches(metric, normalizer):
    call, asks = random_call(), question(2)
    together = measured(metric, call, normalizer, asks)
    for window in (0, 1):
        at = slice(window, window + 1)
        parts = {name: getattr(call, name)[at] for name in ("query", "key", "value", "mask")}
        marked = {name: each[at] for name, each in asks.marked.items()}
        one = dataclasses.replace(asks, keep=asks.keep[at], rows=asks.rows[at], marked=marked)
        alone = measured(metric, dataclasses.replace(call, **parts), normalizer, one)
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[at], part, rtol=1e-6, atol=1e-7)


@EACH
def test_a_metric_reads_only_the_reductions_that_it_names(metric):
    asks = dataclasses.replace(question(2), needs=metric.needs)
    everything = measured(metric, random_call(), SWAPS["softmax"], question(2))
    for one, other in zip(measured(metric, random_call(), SWAPS["softmax"], asks), everything, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("metric", [each for each in METRICS.values() if each.needs], ids=lambda each: each.name)
def test_a_metric_without_its_reductions_says_so_or_counts_nothing(metric):
    bare = dense.reduce(random_call(), dataclasses.replace(question(2), needs=frozenset()))
    try:
        _, counts = metric.function(bare)
    except ValueError as error:
        assert re.fullmatch("expected reductions with .+, got none", str(error))  # noqa: PT017 - only one way out raises
    else:
        assert not counts.any()


def test_the_classes_partition_what_a_row_attends_to(tokenizer):
    ids = torch.tensor([[1, *tokenizer("Oh, a b.\n\nc").input_ids[:6], 2, 40]])
    length = ids.shape[1]
    marks = classify(read(tokenizer, ids, real(1, length), 4))
    overlays = {"initial", "bos"}
    asks = asked(real(1, length), **{name: mark for name, mark in marks.items() if name not in overlays})
    call = random_call(batch=1, causal=True, sink=False)
    assert call.length == length
    found = dense.reduce(call, asks)
    assert found.columns == ("first", "special", "punctuation", "newline", "other")
    torch.testing.assert_close(found.mass.sum(-1), torch.ones(1, HEADS, length))
    assert torch.equal(found.seen.sum(-1), found.keys)


@settings(deadline=None, max_examples=20)
@given(length=st.integers(2, 30), parts=st.integers(1, 5))
def test_every_class_of_a_uniform_map_has_a_lift_of_one(length, parts):
    keep = real(1, length)
    place = torch.arange(length)[None]
    marked = {f"class {part}": keep & (place > 0) & (place % parts == part) for part in range(parts)}
    rows = torch.ones(1, 1, length, length).tril()
    sums, counts = METRICS["lift"].function(reduced(rows / rows.sum(-1, keepdim=True), asked(keep, **marked)))
    lift = (sums / counts)[counts > 0]
    torch.testing.assert_close(lift, torch.ones_like(lift))


@settings(deadline=None, max_examples=20)
@given(length=st.integers(1, 40), scale=st.sampled_from([0.0, 1.0, 100.0]))
def test_the_frobenius_norm_of_a_map_of_softmax_is_at_most_the_root_of_its_length(length, scale):
    scores = scale * torch.randn(1, 2, length, length, generator=torch.Generator().manual_seed(length))
    sums, counts = METRICS["frobenius"].function(dense.reduce(written(scores), asked(real(1, length))))
    assert (sums <= math.sqrt(length) + 1e-6).all()
    assert (sums >= 1 - 1e-6).all()  # query 0 sees itself only
    assert counts.eq(1).all()


MAP = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.125, 0.375]])[None, None]
"""A map of softmax: query 0 is in no mean, and the last key is seen by the last query only."""


def entropy_of(*p):
    return -sum(each * math.log(each) for each in p)


def by_hand(**parts):
    """(Σsum, Σcount) of each metric on one head."""
    asks = parts.pop("question", None) or classes(**parts.pop("options", {}))
    call = written(parts.pop("weights", MAP), **parts)
    slices = torch.eye(call.value.shape[-1]).expand(call.query.shape[1], -1, -1)
    found = dense.attend_and_reduce(dataclasses.replace(call, gram=gram_of(slices)), Swap(AS_GIVEN), asks)[1]
    pairs = {name: metric.function(found) for name, metric in METRICS.items()}
    return {name: (sums[0, 0].tolist(), counts[0, 0].tolist()) for name, (sums, counts) in pairs.items()}


def classes(**options):
    return asked(
        real(1, 3), **options, second=torch.tensor([[False, True, False]]), third=torch.tensor([[False, False, True]])
    )


def test_mass_and_share_average_over_the_rows_that_see_the_class():
    found = by_hand()
    assert found["mass"] == ([0.75, 0.875, 0.375], [2, 2, 1])
    assert found["share"] == found["mass"]
    assert found["row_mass"] == (2, 2)
    assert found["zero_rows"] == (0, 2)
    assert found["sink_logit_mass"] == (0, 0)


def test_lift_is_mean_share_by_mean_frequency():
    sums, counts = by_hand()["lift"]
    assert sums == [0.75, 0.875, 0.375]
    assert counts == pytest.approx([1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])


def test_shape_metrics_by_hand():
    found = by_hand()
    rows = [entropy_of(0.25, 0.75), entropy_of(0.5, 0.125, 0.375)]
    assert found["entropy"] == (pytest.approx(sum(rows)), 2)
    assert found["entropy_normalised"] == (pytest.approx(rows[0] / math.log(2) + rows[1] / math.log(3)), 2)
    assert found["effective_support"] == (pytest.approx(1 / 0.625 + 1 / 0.40625), 2)
    assert found["frobenius"] == (pytest.approx(math.sqrt(1 + 0.625 + 0.40625)), 1)
    assert found["exact_zeros"] == (0, 5)


def test_entropy_takes_zero_times_its_logarithm_for_zero():
    found = by_hand(weights=torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.5, 0, 0.5]])[None, None])
    assert found["entropy"] == (pytest.approx(math.log(2)), 2)
    assert found["effective_support"] == (pytest.approx(1 + 2), 2)
    assert found["exact_zeros"] == (2, 5)


@pytest.mark.parametrize(("epsilon", "rate"), [(0.374, 1), (0.375, 0), (0.376, 0)])
def test_a_sink_exceeds_the_threshold_and_does_not_just_reach_it(epsilon, rate):
    found = by_hand(options={"epsilon": epsilon})
    assert found["sink_rate"] == found["sink_rate_raw"] == (rate, 1)


def test_signed_weights_have_masses_with_signs_and_shares_without():
    found = by_hand(weights=torch.tensor([[1.0, 0, 0], [-0.5, 1.0, 0], [-0.5, 0.25, -0.25]])[None, None])
    assert found["mass"] == ([-1.0, 1.25, -0.25], [2, 2, 1])
    assert found["share"] == (pytest.approx([1 / 3 + 1 / 2, 2 / 3 + 1 / 4, 1 / 4]), [2, 2, 1])
    assert found["row_mass"] == (0.5 - 0.5, 2)
    assert found["sink_rate"] == (1, 1)
    assert found["sink_rate_raw"] == (0, 1)
    assert found["entropy"] == (pytest.approx(entropy_of(1 / 3, 2 / 3) + entropy_of(1 / 2, 1 / 4, 1 / 4)), 2)
    assert found["frobenius"] == (pytest.approx(math.sqrt(1 + 1.25 + 0.375)), 1)


def test_rows_of_zeros_have_mass_but_no_share_and_are_counted():
    found = by_hand(weights=torch.tensor([[1.0, 0, 0], [0, 0, 0], [0.5, 0, 0.5]])[None, None])
    assert found["mass"] == ([0.5, 0, 0.5], [2, 2, 1])
    assert found["share"] == ([0.5, 0, 0.5], [1, 1, 1])
    assert found["lift"][1] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert found["zero_rows"] == (1, 2)
    assert found["entropy"] == (pytest.approx(math.log(2)), 1)
    assert found["entropy_normalised"][1] == found["effective_support"][1] == 1
    assert found["exact_zeros"] == (2 + 1, 5)


def test_a_learned_sink_counts_in_shares_and_is_no_key():
    weights = torch.tensor([[0.5, 0, 0], [0.25, 0.25, 0], [0.25, 0.125, 0.125]])[None, None]
    found = by_hand(weights=weights, sink=torch.full((1, 1, 1), 0.5))
    assert found["share"] == found["mass"] == ([0.5, 0.375, 0.125], [2, 2, 1])
    assert found["sink_logit_mass"] == (1.0, 2)
    assert found["row_mass"] == (1.0, 2)
    assert found["entropy"] == (pytest.approx(math.log(2) + entropy_of(1 / 2, 1 / 4, 1 / 4)), 2)
    assert found["effective_support"] == (pytest.approx(2 + 1 / (1 / 4 + 1 / 8)), 2)
    assert found["zero_rows"] == (0, 2)


def test_a_row_in_which_only_the_learned_sink_has_weight_is_a_row_of_zeros_whose_shares_are_zero():
    weights = torch.tensor([[0.5, 0, 0], [0, 0, 0], [0.25, 0.125, 0.125]])[None, None]
    found = by_hand(weights=weights, sink=torch.full((1, 1, 1), 0.5))
    assert found["zero_rows"] == (1, 2)
    assert found["share"] == ([0.25, 0.125, 0.125], [2, 2, 1])
    assert found["entropy"][1] == found["effective_support"][1] == 1


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("path", [dense, flash])
def test_softmax1_multiplies_a_row_by_the_sigmoid_of_its_log_sum_exp(path, sink):
    call, asks = random_call(sink=sink, causal=True), question(2)
    plain = path.reduce(call, asks)
    swapped = path.reduce(call, asks, swap=Swap(NORMALIZERS["softmax1"]))
    torch.testing.assert_close(swapped.row_mass, plain.row_mass * plain.lse.sigmoid())
    torch.testing.assert_close(swapped.lse, plain.lse)


def test_the_frequency_of_a_class_is_over_the_rows_of_its_share():
    found = by_hand()
    assert found["frequency"] == (found["lift"][1], found["share"][1])
    zeros = by_hand(weights=torch.tensor([[1.0, 0, 0], [0, 0, 0], [0.5, 0, 0.5]])[None, None])
    assert zeros["frequency"] == (zeros["lift"][1], zeros["share"][1])


def test_a_sink_that_takes_nearly_everything_leaves_support_and_entropy_exact():
    call = Call(*(torch.zeros(1, 1, 3, 2) for _ in range(3)), scale=1.0, causal=True, sink=torch.full((1, 1, 1), 20.0))
    sums, counts = measured(METRICS["effective_support"], call, SWAPS["softmax"], classes())
    assert float(sums / counts) == pytest.approx((2 + 3) / 2, rel=1e-5)
    sums, counts = measured(METRICS["entropy"], call, SWAPS["softmax"], classes())
    assert float(sums / counts) == pytest.approx(math.log(6) / 2, rel=1e-5)


def test_the_value_of_the_first_token_is_compared_with_the_mean_of_the_others():
    value = torch.tensor([[3.0, 4.0], [0.0, 8.0], [12.0, 0.0]])[None, None]
    assert by_hand(value=value)["value_norm_ratio"] == (pytest.approx(5 / 10), 1)
    assert by_hand(value=torch.zeros(1, 1, 3, 2))["value_norm_ratio"] == (0, 0)


def test_the_output_norm_is_that_of_the_weighted_sum_of_values():
    value = torch.tensor([[3.0, 4.0], [0.0, 8.0], [12.0, 0.0]])[None, None]
    rows = [math.hypot(0.75, 7), math.hypot(1.5 + 4.5, 2 + 1)]
    assert by_hand(value=value)["output_norm"] == (pytest.approx(sum(rows)), 2)
