"""What a comparison says in words follows from its numbers."""

import math

import pandas as pd
import pytest

from sinkscope.readings import readings
from sinkscope.report import Report

BEFORE = {
    "normalizer": "softmax",
    "perplexity": 20.0,
    "nll": math.log(20),
    "first_share": 0.4,
    "first_mass": 0.4,
    "row_mass": 1.0,
    "zero_rows": 0.0,
    "sink_rate": 0.5,
    "first_queries": 100,
}


def read(**after):
    row = BEFORE | {"normalizer": "other", "nll_delta": 0.5, "nll_delta_se": 0.1, "perplexity": 33.0} | after
    empty = pd.DataFrame()
    report = Report(empty, empty, empty, empty, pd.DataFrame([BEFORE, row]))
    return readings(report)["other"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"first_share": 0.4, "first_mass": 0.2, "row_mass": 0.5}, "only because rows now add up to 0.500"),
        ({"first_share": 0.6, "first_mass": 0.3, "row_mass": 0.5}, "the sinks are stronger, not weaker"),
        ({"first_share": 0.2, "first_mass": 0.6, "row_mass": 3.0}, "(40.0% to 20.0%) although its raw mass rises"),
        (
            {"first_share": 0.2, "first_mass": 0.1, "row_mass": 0.6},
            "partly because rows now add up to 0.600: its share falls",
        ),
        ({"first_share": 0.381, "first_mass": 0.379, "row_mass": 0.999}, "keeps its share (40.0% to 38.1%)"),
        ({"first_share": 0.2, "first_mass": 0.2}, "The first token's share falls (40.0% to 20.0%)."),
        ({"first_share": 0.6, "first_mass": 0.6}, "The first token's share rises (40.0% to 60.0%)."),
        ({"first_share": 0.401, "first_mass": 0.401}, "keeps its share (40.0% to 40.1%), so the sinks survive"),
        ({"first_share": 0.01, "first_mass": -20.0, "row_mass": 9e3}, "The first token's share falls (40.0% to 1.0%)."),
        ({"first_queries": 10}, "Only 10.0% of the queries still see the first token; they give it 40.0%"),
        ({"first_share": math.nan, "first_mass": math.nan}, "No query has a share for the first token"),
    ],
)
def test_raw_mass_and_share_are_told_apart(after, said):
    assert said in read(**after)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({}, "Perplexity rises from 20.00 to 33.00 (+0.500 nats a token)"),
        ({"nll_delta": -0.5, "perplexity": 12.0}, "Perplexity falls from 20.00 to 12.00"),
        ({"nll_delta": 0.1}, "within two standard errors of no change"),
        ({"nll_delta": 0.1, "nll_delta_se": math.nan}, "Perplexity rises"),
        ({"nll_delta": 1e-5, "nll_delta_se": math.nan, "perplexity": 20.0}, "Perplexity is what it was, 20.00"),
        ({"perplexity": 6.6e9, "nll_delta": 19.0}, "The model breaks: perplexity from 20.00 to 6.6e+09"),
        ({"perplexity": math.inf, "nll_delta": 900.0}, "beyond all numbers"),
        ({"nll": math.nan}, "no longer a number"),
    ],
)
def test_the_loss_is_told_with_its_error(after, said):
    assert said in read(**after)


def test_nothing_survives_where_nothing_was():
    row = BEFORE | {"sink_rate": 0.0}
    after = row | {"normalizer": "other", "nll_delta": 0.5, "nll_delta_se": 0.1, "perplexity": 33.0}
    empty = pd.DataFrame()
    said = readings(Report(empty, empty, empty, empty, pd.DataFrame([row, after])))["other"]
    assert "there were no sinks before either" in said


def test_rows_that_have_no_weights_or_no_definition_are_told():
    said = read(zero_rows=0.25, degenerate_rows=0.5)
    assert "25.0% of rows attend to nothing" in said
    assert "Less than 0.1% of rows attend" in read(zero_rows=1e-5)
    assert "defines nothing in 50.0% of rows" in said
