"""What a comparison adds to the tables: differences to plain softmax, paired by window, the sweep, the levels."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pandas as pd
from torch import Tensor

from sinkscope import tables
from sinkscope.accumulate import Tally, influences, ratio, standard_error
from sinkscope.levels import EDGES
from sinkscope.record import Record
from sinkscope.tables import Pair, Row

PER_HEAD = (
    "first_mass",
    "first_share",
    "initial_mass",
    "initial_share",
    "punctuation_mass",
    "punctuation_share",
    "row_mass",
    "entropy",
    "sink_rate",
)
"""The figures whose change is given head by head; the model's means have it for all."""


def summary(baseline: Record, record: Record, columns: tuple[str, ...]) -> Row:
    """The scores against the baseline, and the change of every mean with its paired standard error."""
    row = _scores(record) | _loss(baseline, record)
    for name, (before, after) in _pairs(baseline, record, columns).items():
        defined = (before[1].sum(0) > 0) & (after[1].sum(0) > 0)
        row[f"{name}_delta"], row[f"{name}_delta_se"] = _difference(before, after, defined)
    return row


def heads(baseline: Record, record: Record, columns: tuple[str, ...], fixed: Row) -> pd.DataFrame:
    """The table of heads, with the change of the PER_HEAD figures in each."""
    found: dict[str, list[float]] = {}
    for name, (before, after) in _pairs(baseline, record, columns).items():
        if name in PER_HEAD:
            found[f"{name}_delta"] = (ratio(*after) - ratio(*before)).tolist()
            found[f"{name}_delta_se"] = standard_error(influences(*after) - influences(*before)).tolist()
    return pd.concat([tables.heads(record, columns, fixed), pd.DataFrame(found)], axis=1)


def sweep(baseline: Record, records: Sequence[tuple[int, str, Record]]) -> pd.DataFrame:
    """One row per (normalizer, layer) of a sweep: what swapping that layer alone does to the loss."""
    rows = []
    for layer, normalizer, record in records:
        row = {"normalizer": normalizer, "layer": layer} | tables.loss(record) | _loss(baseline, record)
        rows.append(row | _scores(record))
    return pd.DataFrame(rows)


def levels(records: Sequence[Record]) -> pd.DataFrame:
    """How each head's log-sum-exp is distributed, for the records that have it: the share of its rows in each level."""
    rows = []
    for record in records:
        for call, layer in tables.numbered(record):
            if not layer.by_level.windows:
                continue
            share = ratio(*layer.by_level.by_window())
            for head in range(layer.heads):
                place = tables.place(record, layer, call) | {"head": head}
                for level, (low, high) in enumerate(pairwise(EDGES)):
                    rows.append(place | {"lse_from": low, "lse_to": high, "share": float(share[head, level])})
    return pd.DataFrame(rows)


def _scores(record: Record) -> Row:
    """How far the predictions are from the baseline's."""
    row: Row = {}
    for name, tally in (("kl_to_baseline", record.divergence), ("top1_agreement", record.agreement)):
        row[name], row[f"{name}_se"] = _scored(tally)
    return row


def _scored(tally: Tally) -> tuple[float, float]:
    sums, counts = tally.by_window()
    return float(ratio(sums, counts)[0]), float(standard_error(influences(sums, counts))[0])


def _loss(baseline: Record, record: Record) -> Row:
    before, after = baseline.loss.by_window(), record.loss.by_window()
    change = float((ratio(*after) - ratio(*before))[0])
    error = float(standard_error(influences(*after) - influences(*before))[0])
    first, second = (tables.loss(each)["perplexity"] for each in (baseline, record))
    # The perplexity's error by the delta method: each window pulls it by itself times its pull on the loss.
    pull = second * influences(*after) - first * influences(*before) if math.isfinite(second) else None
    return {
        "nll_delta": change,
        "nll_delta_se": error,
        "perplexity_delta": second - first,
        "perplexity_delta_se": math.nan if pull is None else float(standard_error(pull)[0]),
    }


def _pairs(baseline: Record, record: Record, columns: tuple[str, ...]) -> dict[str, tuple[Pair, Pair]]:
    """Sums and counts of every figure over all heads of the model, before and after."""
    before, after = (tables.pooled(each, list(each.in_order()), columns) for each in (baseline, record))
    return {name: (before[name], after[name]) for name in after if name in before}


def _difference(before: Pair, after: Pair, defined: Tensor) -> tuple[float, float]:
    """The change of the mean over the heads in which the figure is defined both times."""
    before = (before[0][:, defined], before[1][:, defined])
    after = (after[0][:, defined], after[1][:, defined])
    change = float((ratio(*after) - ratio(*before)).mean())
    pull: Tensor = (influences(*after) - influences(*before)).mean(dim=1)
    return change, float(standard_error(pull))
