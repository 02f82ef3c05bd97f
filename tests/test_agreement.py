"""What sinkscope reports is what transformers' own eager attention maps say."""

import math

import numpy as np
import pytest
import torch
from builders import ARCHITECTURES, tiny
from eager_maps import eager, figures, windows_of

import sinkscope

PADDING = {
    "none": torch.ones(3, 24, dtype=torch.bool),
    "left": torch.arange(24) >= torch.tensor([[0], [7], [13]]),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_figures_equal_those_of_eager_maps(architecture, padding, ids):
    model, keep = tiny(architecture), PADDING[padding]
    report = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    windows = [eager(model, each).in_order_of(report.layers["module"]) for each in windows_of(ids, keep)]
    theirs = figures(windows)
    heads = report.heads
    assert len(heads) == len(theirs.first_mass)
    np.testing.assert_allclose(heads["first_mass"], theirs.first_mass, atol=1e-5)
    np.testing.assert_allclose(heads["entropy"], theirs.entropy, atol=1e-4)
    for row in report.tokens.itertuples():
        if (row.window, row.position) in theirs.received:
            assert math.isclose(row.received, theirs.received[row.window, row.position], rel_tol=1e-4)


# Which side is padded makes no difference to what is run: tests/test_windows_alone.py.
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_changes_no_figure(architecture, ids):
    model, keep = tiny(architecture), PADDING["left"]
    together = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    alone = [sinkscope.measure(model, input_ids=row[real][None]) for row, real in zip(ids, keep, strict=True)]
    # Windows of different lengths weigh by their rows.
    rows = [each.heads["queries"].to_numpy() for each in alone]
    mean = sum(each.heads["entropy"].to_numpy() * n for each, n in zip(alone, rows, strict=True)) / sum(rows)
    np.testing.assert_allclose(together.heads["entropy"].to_numpy(), mean, atol=1e-5)
    scored = sum(int(each.summary["tokens_scored"][0]) for each in alone)
    loss = sum(float(each.summary["nll"][0]) * int(each.summary["tokens_scored"][0]) for each in alone)
    assert int(together.summary["tokens_scored"][0]) == scored
    assert math.isclose(float(together.summary["nll"][0]), loss / scored, rel_tol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_perplexity_equals_the_models_own_loss(architecture, ids):
    model = tiny(architecture)
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    summary = sinkscope.measure(model, input_ids=ids).summary
    assert math.isclose(float(summary["nll"][0]), loss, rel_tol=1e-5)
    assert math.isclose(float(summary["perplexity"][0]), math.exp(loss), rel_tol=1e-4)


def test_a_sliding_layer_names_its_window_and_counts_only_rows_that_see_the_first_token(ids):
    report = sinkscope.measure(tiny("mistral"), input_ids=ids)
    heads = report.heads
    assert set(heads["layer_type"]) == {"sliding_attention"}
    assert set(heads["window_length"]) == {5}
    # Queries 1 to 4 of each of the three windows; from query 5 on token 0 is out of sight.
    assert set(heads["first_queries"]) == {3 * 4}
    assert set(heads["queries"]) == {3 * 23}


def test_a_learned_sink_takes_what_the_keys_do_not(ids):
    heads = sinkscope.measure(tiny("gpt_oss"), input_ids=ids).heads
    assert (heads["sink_logit_mass"] > 0).all()
    np.testing.assert_allclose(heads["row_mass"] + heads["sink_logit_mass"], 1, atol=1e-5)
    shares = heads["first_share"] / heads["first_mass"]
    np.testing.assert_allclose(shares, 1, atol=1e-5)


def test_half_precision_models_are_reduced_in_single(ids):
    exact = sinkscope.measure(tiny("llama"), input_ids=ids)
    half = sinkscope.measure(tiny("llama").to(torch.bfloat16), input_ids=ids)
    np.testing.assert_allclose(half.heads["row_mass"], 1, atol=1e-6)
    np.testing.assert_allclose(half.heads["first_mass"], exact.heads["first_mass"], atol=0.05)
