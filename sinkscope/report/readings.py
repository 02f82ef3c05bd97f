"""What a comparison says in plain words: a few sentences per normalizer, each a finding of the tables.

What changes is compared over the same rows before and after: `_before` and not the baseline's own figure.
"""

import math

import pandas as pd

from sinkscope.report import Report
from sinkscope.report.verdict import percent
from sinkscope.statistics.intervals import student

ROUNDING = 1e-5
"""KL in nats below which predictions are the same but for rounding."""

UNSEEN = 5e-4
"""Changes of the loss that would be printed as 0.000."""

SMALL = 0.01
"""The relative change of perplexity within which it is called unchanged. It is also the KL, in nats a token, from which
predictions are never called unchanged: KL is how much worse the loss becomes on text that the model itself would
write, and 0.01 nats are 1% of the perplexity."""

FEW = 5
"""With fewer windows than this, a change that is not clear is not called small either."""

BROKEN = 20
"""The factor of perplexity from which a model is called broken."""

NOTICED = 0.05
"""Relative changes of masses, shares and rates below this are called none."""


def readings(report: Report) -> dict[str, str]:
    """For each normalizer but the baseline, by name: what became of the loss, of the sinks, and in which layer most."""
    baseline = report.summary.iloc[0]
    return {
        str(row["normalizer"]): " ".join(
            [_loss(baseline, row), *_sinks(baseline, row), *_most(report, row), *_rows(row)]
        )
        for _, row in report.summary.iloc[1:].iterrows()
    }


def notes(report: Report) -> list[str]:
    """What holds for all normalizers of the comparison and has to be known to read it."""
    found = []
    if pd.notna(report.summary.iloc[0].get("sink_logit_mass")):
        found.append(
            "The learned sinks of this model stay: each is one more key with value zero, whose logit goes through the "
            "new normalizer with the scores."
        )
    after = report.summary.iloc[1:]
    if (after.get("first_queries_delta", pd.Series(dtype=float)) < 0).any():
        found.append(
            "Queries that no longer see the first token count neither before nor after in its changes; the table of "
            "shares has the baseline over all its rows."
        )
    return found


def _loss(baseline: pd.Series, row: pd.Series) -> str:
    if pd.isna(baseline["nll"]):
        return "The loss is undefined, before the swap and after it."
    if pd.isna(row["nll"]):
        return "The model's output is no longer a number."
    before, after = baseline["perplexity"], row["perplexity"]
    kl = row.get("kl_to_baseline", math.nan)
    if abs(kl) < ROUNDING and abs(row["nll_delta"]) < UNSEEN:
        return f"Perplexity unchanged ({before:,.2f})."
    if after > BROKEN * before:
        return f"The model breaks: perplexity {_to(before, after)}."
    return _moved(row, _to(before, after), kl)


def _moved(row: pd.Series, shown: str, kl: float) -> str:
    """Whether perplexity changed, as far as the windows tell: `shown` says from what to what."""
    change = row["nll_delta"]
    half = student(int(row["windows"]) - 1) * row["nll_delta_se"]
    if change + half <= math.log1p(SMALL) and change - half >= math.log1p(-SMALL):
        little = "changes by less than" if kl > SMALL else "unchanged within"
        return f"Perplexity {little} {SMALL:.0%} ({shown}).{_other(kl)}"
    if abs(change) > half:
        return f"Perplexity {'rises' if change > 0 else 'falls'} {shown} ({change:+.3f} nats a token)."
    if row["windows"] < FEW:
        return f"Perplexity {shown}: too few windows to tell ({row['windows']}).{_other(kl)}"
    interval = f"{change - half:+.3f} to {change + half:+.3f} nats a token"
    return f"Perplexity {shown}: no clear change (95% interval {interval}).{_other(kl)}"


def _other(kl: float) -> str:
    """That predictions are others, where they are."""
    return f" The predictions change: KL {kl:.3f} nats a token." if kl > SMALL else ""


def _to(before: float, after: float) -> str:
    shown = "beyond all numbers" if math.isinf(after) else f"{after:,.2f}" if after < 1e6 else f"{after:.1e}"
    return f"from {before:,.2f} to {shown}"


def _pair(baseline: pd.Series, row: pd.Series, name: str) -> tuple[float, float]:
    """A figure before and after, over the same rows."""
    # A report of an older version has no column for it.
    return row.get(f"{name}_before", baseline[name]), row[name]


def _sinks(baseline: pd.Series, row: pd.Series) -> list[str]:
    seen = row["first_queries"] / baseline["first_queries"] if baseline["first_queries"] else 0
    if not row["first_queries"]:
        return ["No query sees the first token" + (" any more." if baseline["first_queries"] else ", before or after.")]
    share = _pair(baseline, row, "first_share")
    if pd.isna(row["first_mass"]):
        return ["Its weights are no numbers, so nothing can be said of sinks."]
    if math.isnan(share[1]):
        return ["Every weight is 0, so the first token has no share."]
    fewer = [f"{percent(seen)} of the queries that saw the first token still see it; over these:"] if seen < 1 else []
    return [*fewer, _share(baseline, row, share), _rate(_pair(baseline, row, "sink_rate"))]


def _share(baseline: pd.Series, row: pd.Series, share: tuple[float, float]) -> str:
    """What became of the first token's share, and of its raw mass where rows no longer add up to what they did."""
    mass, sums = (_pair(baseline, row, name) for name in ("first_mass", "row_mass"))
    grown, raised = _relative(*share), _relative(*mass)
    masses, rows = f"from {mass[0]:.3f} to {mass[1]:.3f}", f"rows now add up to {sums[1]:.3f}"
    # The row's sum explains a fall of the raw mass only as far as the share does not fall with it.
    if 0 <= sums[1] < sums[0] and mass[1] >= 0 and raised < -NOTICED and grown - raised > NOTICED:
        how = "partly because" if grown <= -NOTICED else "because" if grown >= NOTICED else "only because"
        less = " less than it" if grown <= -NOTICED else ""
        return f"Raw first-token mass falls {masses} {how} {rows}; first-token share {_became(share)}{less}."
    if raised > NOTICED and grown <= -NOTICED:
        return f"First-token share {_became(share)} although its raw mass rises {masses}: {rows}."
    return f"First-token share {_became(share)}."


def _became(figure: tuple[float, float]) -> str:
    """What became of a share: what changes by less than NOTICED of itself has not risen or fallen."""
    before, after = (percent(each) for each in figure)
    small = abs(_relative(*figure)) < NOTICED
    if before == after:
        return f"unchanged ({before})" if small else f"stays {before}"
    if small:
        return f"almost unchanged ({before} to {after})"
    return f"{'rises' if figure[1] > figure[0] else 'falls'} from {before} to {after}"


def _rate(rate: tuple[float, float]) -> str:
    """What became of the sinks themselves: a share can stay where every head that was a sink is none any more."""
    return "No head is a sink, before or after." if rate == (0, 0) else f"Sink rate {_became(rate)}."


def _most(report: Report, row: pd.Series) -> list[str]:
    """The layer whose share changes most, which a mean over layers may hide."""
    layers = report.layers
    if "first_share_delta" not in layers or layers["layer"].nunique() < 2:
        return []
    layers = layers[layers["normalizer"] == row["normalizer"]].dropna(subset=["first_share_delta"])
    if layers.empty:
        return []
    top = layers.loc[layers["first_share_delta"].abs().idxmax()]
    before, after = (percent(each) for each in (top["first_share_before"], top["first_share"]))
    if before == after:
        return []
    calls = (layers["layer"] == top["layer"]).sum()
    where = f"layer {top['layer']}" + (f", call {top['call']}" if calls > 1 else "")
    return [f"Largest change of first-token share: {where}, from {before} to {after}."]


def _rows(row: pd.Series) -> list[str]:
    told = []
    if row.get("zero_rows", 0) > 0:
        told.append(f"{_begun(percent(row['zero_rows']))} of rows attend to nothing.")
    if row.get("degenerate_rows", 0) > 0:
        told.append(f"Its formula defines nothing in {percent(row['degenerate_rows'])} of rows.")
    return told


def _relative(before: float, after: float) -> float:
    if not before:
        return 0.0 if not after else math.copysign(math.inf, after)
    return (after - before) / abs(before)


def _begun(words: str) -> str:
    """As the beginning of a sentence."""
    return words[:1].upper() + words[1:]
