"""The one ± that people see: which of the two errors it holds, and what it says would reduce it."""

import math

import pandas as pd
import pytest

from sinkscope.report.uncertainty import uncertainty, unsettled

ALIKE = "windows of one text are alike, so it may be larger"
ALONE = "one window says nothing of other texts"
SAMPLED = {"queries": {"sampled": True, "number": 32, "of": 2048}}


def row(over=math.nan, sampled=None, windows=4):
    cells = {"first_share_se": over, "windows": windows}
    return pd.Series(cells if sampled is None else cells | {"first_share_sampling_se": sampled})


def by(over, number, documents):
    return {"standard_errors": {"over": over, "number": number, "documents": documents}}


@pytest.mark.parametrize(
    ("over", "sampled", "wanted"),
    [(0.03, 0.02, 0.03), (0.01, 0.02, 0.02), (math.nan, 0.02, 0.02), (0.03, None, 0.03), (0.03, math.nan, 0.03)],
)
def test_the_spread_over_windows_holds_the_error_of_the_sample_and_is_never_less(over, sampled, wanted):
    assert uncertainty(row(over, sampled), "first_share") == wanted


def test_where_nothing_is_known_nothing_is_said():
    assert math.isnan(uncertainty(row(), "first_share"))
    assert unsettled(row(), {}) == []
    assert unsettled(row(0.0009), {}) == []


@pytest.mark.parametrize(
    ("figures", "metadata", "said"),
    [
        ((0.021, None), by("windows", 4, 4), "Uncertainty ± 2.1% (4 windows); more windows reduce it."),
        ((0.021, None), {}, "Uncertainty ± 2.1% (4 windows); more windows reduce it."),
        ((0.021, None), by("windows", 4, 1), f"Uncertainty ± 2.1% (4 windows); more windows reduce it; {ALIKE}."),
        ((0.021, None), by("documents", 7, 7), "Uncertainty ± 2.1% (7 documents); more documents reduce it."),
        (
            (0.03, 0.01),
            by("windows", 4, 4) | SAMPLED,
            "Uncertainty ± 3.0% (4 windows, 32 queries of each); more windows reduce it.",
        ),
        (
            (0.03, 0.025),
            by("windows", 4, 4) | SAMPLED,
            "Uncertainty ± 3.0% (4 windows, 32 queries of each); more queries reduce it.",
        ),
        (
            (math.nan, 0.025),
            by("windows", 1, 1) | SAMPLED,
            f"Uncertainty ± 2.5% (1 window, 32 queries of each); more queries reduce it; {ALONE}.",
        ),
    ],
)
def test_the_sentence_names_what_reduces_the_larger_part(figures, metadata, said):
    assert unsettled(row(*figures, windows=metadata.get("standard_errors", {}).get("number", 4)), metadata) == [said]
