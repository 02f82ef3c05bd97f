"""What a comparison says in words is a finding of its tables: said where it is so, and not said where it is not."""

import math
import re

import pandas as pd
import pytest
from builders import tiny

import sinkscope
from sinkscope.normalizers import Modifier
from sinkscope.report import Report
from sinkscope.report.readings import notes, readings
from sinkscope.statistics.intervals import student

BEFORE = {
    "normalizer": "softmax",
    "windows": 4,
    "perplexity": 20.0,
    "nll": math.log(20),
    "first_share": 0.4,
    "first_mass": 0.4,
    "row_mass": 1.0,
    "zero_rows": 0.0,
    "sink_rate": 0.5,
    "first_queries": 100,
}


def read(layers=(), **after):
    row = BEFORE | {"normalizer": "other", "nll_delta": 0.5, "nll_delta_se": 0.1, "perplexity": 33.0} | after
    row |= {"kl_to_baseline": after.get("kl_to_baseline", 0.4)}
    empty = pd.DataFrame()
    summary = pd.DataFrame([BEFORE | {"windows": row["windows"]}, row])
    return readings(Report(empty, pd.DataFrame(layers), empty, empty, summary))["other"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            {"first_mass": 0.2, "row_mass": 0.5},
            "only because rows now add up to 0.500; first-token share unchanged (40.0%)",
        ),
        (
            {"first_share": 0.6, "first_mass": 0.3, "row_mass": 0.5},
            "because rows now add up to 0.500; first-token share rises from 40.0% to 60.0%",
        ),
        ({"first_share": 0.2, "first_mass": 0.6, "row_mass": 3.0}, "from 40.0% to 20.0% although its raw mass rises"),
        (
            {"first_share": 0.2, "first_mass": 0.1, "row_mass": 0.6},
            "partly because rows now add up to 0.600; first-token share falls from 40.0% to 20.0% less than it",
        ),
        ({"first_share": 0.381, "first_mass": 0.379, "row_mass": 0.999}, "share almost unchanged (40.0% to 38.1%)"),
        ({"first_share": 0.2, "first_mass": 0.2}, "First-token share falls from 40.0% to 20.0%."),
        ({"first_share": 0.6, "first_mass": 0.6}, "First-token share rises from 40.0% to 60.0%."),
        ({"first_share": 0.4001, "first_mass": 0.4}, "First-token share unchanged (40.0%)"),
        ({"first_share": 0.01, "first_mass": -20.0, "row_mass": 9e3}, "First-token share falls from 40.0% to 1.0%."),
        ({"first_queries": 10}, "10.0% of the queries that saw the first token still see it; over these:"),
        ({"first_queries": 0, "first_share": math.nan}, "No query sees the first token any more."),
        ({"first_share": math.nan, "first_mass": 0.0}, "Every weight is 0, so the first token has no share."),
        ({"first_share": math.nan, "first_mass": math.nan}, "Its weights are no numbers"),
        (
            {"first_share_before": 0.0, "first_share": 0.3, "first_mass": 0.3},
            "First-token share rises from 0.0% to 30.0%",
        ),
        ({"first_share_before": 1e-4, "first_share": 3e-4}, "First-token share stays less than 0.1%."),
        ({"first_share_before": 0.0, "first_share": 0.0}, "First-token share unchanged (0.0%)."),
    ],
)
def test_raw_mass_and_share_are_told_apart(after, said):
    assert said in read(**after)


def test_a_change_is_told_from_the_same_rows_and_not_from_the_baselines_own():
    said = read(first_queries=10, first_share=0.6, first_share_before=0.6, first_mass=0.6, first_mass_before=0.6)
    assert "First-token share unchanged (60.0%)" in said
    assert "40.0%" not in said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.5, 0.5, "Sink rate unchanged (50.0%)."),
        (0.5, 0.49, "Sink rate almost unchanged (50.0% to 49.0%)."),
        (0.222, 0.0, "Sink rate falls from 22.2% to 0.0%."),
        (0.0, 0.1, "Sink rate rises from 0.0% to 10.0%."),
        (0.0, 0.0, "No head is a sink, before or after."),
        (1e-4, 4e-4, "Sink rate stays less than 0.1%."),
    ],
)
def test_sinks_are_judged_by_their_rate_whatever_the_share_does(before, after, said):
    for share in (0.2, 0.4, 0.6):
        assert said in read(sink_rate_before=before, sink_rate=after, first_share=share, first_mass=share)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({}, "Perplexity rises from 20.00 to 33.00 (+0.500 nats a token)"),
        ({"nll_delta": -0.5, "perplexity": 12.0}, "Perplexity falls from 20.00 to 12.00"),
        ({"perplexity": 6.6e9, "nll_delta": 19.0}, "The model breaks: perplexity from 20.00 to 6.6e+09"),
        ({"perplexity": math.inf, "nll_delta": 900.0}, "beyond all numbers"),
        ({"nll": math.nan}, "no longer a number"),
        ({"nll_delta": 1e-6, "nll_delta_se": math.nan, "windows": 1, "kl_to_baseline": 1e-9}, "Perplexity unchanged ("),
    ],
)
def test_the_loss_is_told(after, said):
    assert said in read(**after)


@pytest.mark.parametrize("windows", [1, 2, 3, 4, 5, 12])
@pytest.mark.parametrize("kl", [1e-4, 0.02, 2.2])
@pytest.mark.parametrize("error", [1e-5, 1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("change", [0.0, 0.002, -0.02, 0.2, 2.1])
def test_unchanged_is_a_claim_about_the_whole_interval_and_the_predictions(windows, kl, error, change):
    error = math.nan if windows == 1 else error
    after = {"nll_delta": change, "nll_delta_se": error, "perplexity": 20 * math.exp(change), "windows": windows}
    said = read(**after, kl_to_baseline=kl).partition("First-token")[0]
    half = student(windows - 1) * error
    within = math.exp(change + half) <= 1.01 and math.exp(change - half) >= 0.99
    clear = abs(change) > half
    assert ("unchanged" in said) == (within and kl <= 0.01)
    assert ("by less than 1%" in said) == (within and kl > 0.01)
    assert ("too few windows" in said) == (not within and not clear and windows < 5)
    assert ("no clear change" in said) == (not within and not clear and windows >= 5)
    assert ("rises" in said or "falls" in said) == (clear and not within)
    assert not (re.search(r"rises|falls", said) and "The predictions change" in said)
    if kl > 0.01 and not clear:
        assert f"KL {kl:.3f}" in said


def test_the_broken_model_of_three_windows_is_not_unchanged():
    said = read(perplexity=388.9, nll_delta=2.1, nll_delta_se=1.2, kl_to_baseline=2.2, windows=3)
    assert "too few windows to tell (3). The predictions change: KL 2.200 nats a token." in said


def _layer(number, before, after, call=0, name="other"):
    row = {"normalizer": name, "layer": number, "call": call, "first_share": after, "first_share_before": before}
    return row | {"first_share_delta": after - before}


def test_the_largest_change_of_a_layer_is_told_where_there_is_one():
    layers = [_layer(0, 0.1, 0.1), _layer(29, 0.41, 0.001), _layer(3, 0.2, 0.3), _layer(5, 0.1, 0.9, name="a third")]
    assert "Largest change of first-token share: layer 29, from 41.0% to 0.1%." in read(layers)
    twice = [_layer(0, 0.1, 0.1), _layer(2, 0.5, 0.5), _layer(2, 0.5, 0.9, call=1)]
    assert "layer 2, call 1, from 50.0% to 90.0%" in read(twice)
    for none in (
        [_layer(0, 0.1, 0.5)],
        [_layer(0, 0.1, 0.1), _layer(1, 0.3, 0.3)],
        [_layer(0, math.nan, math.nan)] * 2,
    ):
        assert "Largest change" not in read(none)


def test_rows_that_have_no_weights_or_no_definition_are_told():
    said = read(zero_rows=0.25, degenerate_rows=0.5)
    assert "25.0% of rows attend to nothing" in said
    assert "Less than 0.1% of rows attend" in read(zero_rows=1e-5)
    assert "defines nothing in 50.0% of rows" in said
    assert "attend to nothing" not in read()


@pytest.mark.parametrize(("architecture", "there"), [("gpt_oss", True), ("llama", False)])
def test_what_becomes_of_learned_sinks_is_said_where_there_are_some(ids, architecture, there):
    report = sinkscope.compare(tiny(architecture), input_ids=ids, normalizers=["softmax1"], only=())
    assert any("learned sinks" in note for note in notes(report)) == there
    assert not any("no longer see" in note for note in notes(report))


def test_a_window_is_told_by_the_rows_that_still_see_the_first_token(ids):
    report = sinkscope.compare(
        tiny("llama"), input_ids=ids, modifier=Modifier(window=8), normalizers=["softmax"], only=()
    )
    (said,) = readings(report).values()
    assert "30.4% of the queries that saw the first token still see it; over these: First-token share unchanged" in said
    assert "Largest change" not in said
    assert any("no longer see" in note for note in notes(report))
