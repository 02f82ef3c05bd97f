"""What a comparison says in plain words: one sentence or two per normalizer, read as the numbers allow."""

import math

import pandas as pd

from sinkscope.report import Report
from sinkscope.verdict import percent

CLEAR = 2.0
"""A change is told as one where it is more than this many standard errors."""

UNSEEN = 5e-4
"""Changes of the loss that would be printed as 0.000."""

NOTICED = 0.05
"""Relative changes of masses and shares below this are called none."""


def readings(report: Report) -> dict[str, str]:
    """For each normalizer but the baseline, by name: what became of the loss, and of the sinks."""
    baseline = report.summary.iloc[0]
    return {
        str(row["normalizer"]): " ".join([_loss(baseline, row), *_sinks(baseline, row), *_rows(row)])
        for _, row in report.summary.iloc[1:].iterrows()
    }


def _loss(baseline: pd.Series, row: pd.Series) -> str:
    if pd.isna(row["nll"]):
        return "The model's output is no longer a number."
    before, after = baseline["perplexity"], row["perplexity"]
    change, error = row["nll_delta"], row["nll_delta_se"]
    if abs(change) < UNSEEN:
        return f"Perplexity is what it was, {before:,.2f}."
    if not pd.isna(error) and abs(change) <= CLEAR * error:
        return f"Perplexity {_to(before, after)}: within two standard errors of no change."
    if after > 20 * before:
        return f"The model breaks: perplexity {_to(before, after)}."
    return f"Perplexity {'rises' if change > 0 else 'falls'} {_to(before, after)} ({change:+.3f} nats a token)."


def _to(before: float, after: float) -> str:
    shown = "beyond all numbers" if math.isinf(after) else f"{after:,.2f}" if after < 1e6 else f"{after:.1e}"
    return f"from {before:,.2f} to {shown}"


def _sinks(baseline: pd.Series, row: pd.Series) -> list[str]:
    share, mass = ((baseline[name], row[name]) for name in ("first_share", "first_mass"))
    if pd.isna(share[1]):
        return ["No query has a share for the first token."]
    seen = row["first_queries"] / baseline["first_queries"]
    if seen < 1:
        return [f"Only {percent(seen)} of the queries still see the first token; they give it {percent(share[1])}."]
    shares = f"({percent(share[0])} to {percent(share[1])})"
    masses = f"from {mass[0]:.3f} to {mass[1]:.3f}"
    rows = f"rows now add up to {row['row_mass']:.3f}"
    grown, raised = _relative(*share), _relative(*mass)
    # The row's sum explains a fall of the raw mass only as far as the share does not fall with it.
    shrunk = 0 <= row["row_mass"] < baseline["row_mass"] and mass[1] >= 0
    by_rows = shrunk and raised < -NOTICED and grown - raised > NOTICED
    survive = "so the sinks survive" if baseline["sink_rate"] > 0 else "and there were no sinks before either"
    if by_rows and grown >= NOTICED:
        sentence = (
            f"The raw mass on the first token falls {masses}, but {rows}, and its share rises {shares}: "
            "the sinks are stronger, not weaker."
        )
    elif by_rows and grown > -NOTICED:
        sentence = (
            f"The raw mass on the first token falls {masses} only because {rows}: its share stays {shares}, {survive}."
        )
    elif by_rows:
        sentence = (
            f"The raw mass on the first token falls {masses}, partly because {rows}: its share falls less {shares}."
        )
    elif raised > NOTICED and grown <= -NOTICED:
        sentence = f"The first token's share falls {shares} although its raw mass rises {masses}: {rows}."
    elif abs(grown) < NOTICED:
        sentence = f"The first token keeps its share {shares}, {survive}."
    else:
        sentence = f"The first token's share {'rises' if grown > 0 else 'falls'} {shares}."
    return [sentence]


def _rows(row: pd.Series) -> list[str]:
    told = []
    if row.get("zero_rows", 0) > 0:
        told.append(f"{_begun(percent(row['zero_rows']))} of rows attend to nothing.")
    if row.get("degenerate_rows", 0) > 0:
        told.append(f"Its formula defines nothing in {percent(row['degenerate_rows'])} of rows.")
    return told


def _relative(before: float, after: float) -> float:
    return math.nan if not before else (after - before) / abs(before)


def _begun(words: str) -> str:
    """As the beginning of a sentence."""
    return words[:1].upper() + words[1:]
