"""What a comparison adds to the tables: differences to plain softmax, paired by window, the sweep, the levels."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor

from sinkscope import tables
from sinkscope.accumulate import Blocks, influences, ratio, resampled, standard_error
from sinkscope.levels import EDGES
from sinkscope.pooling import Pair, pooled
from sinkscope.record import Record
from sinkscope.tables import Row, Sheet, perplexity_of

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


def summary(baseline: Record, record: Record, sheet: Sheet) -> Row:
    """The scores against the baseline, and the change of every mean with its paired standard error."""
    row = _scores(record, sheet) | _loss(baseline, record, sheet)
    for name, (before, after) in _pairs(baseline, record, sheet.columns).items():
        defined = (before[1].sum(0) > 0) & (after[1].sum(0) > 0)
        row |= _difference(f"{name}_delta", _only(before, defined), _only(after, defined), sheet)
    return row


def heads(baseline: Record, record: Record, sheet: Sheet) -> pd.DataFrame:
    """The table of heads, with the change of the PER_HEAD figures in each."""
    found: dict[str, list[float]] = {}
    for name, (before, after) in _pairs(baseline, record, sheet.columns).items():
        if name in PER_HEAD:
            found[f"{name}_delta"] = (ratio(*after) - ratio(*before)).tolist()
            pulls = influences(*after) - influences(*before)
            errors = sheet.errors(f"{name}_delta", pulls, _shared(before, after), partial(_changes, before, after))
            found |= {key: error.tolist() for key, error in errors.items()}
    return pd.concat([tables.heads(record, sheet), pd.DataFrame(found)], axis=1)


def sweep(baseline: Record, records: Sequence[tuple[int, str, Record]], sheet: Sheet) -> pd.DataFrame:
    """One row per (normalizer, layer) of a sweep: what swapping that layer alone does to the loss."""
    rows = []
    for layer, normalizer, record in records:
        row = {"normalizer": normalizer, "layer": layer} | tables.loss(record, sheet) | _loss(baseline, record, sheet)
        rows.append(row | _scores(record, sheet))
    return pd.DataFrame(rows)


def levels(records: Sequence[Record], blocks: Blocks | None = None) -> pd.DataFrame:
    """How each head's log-sum-exp is distributed, for the records that have it: the share of its rows in each level."""
    rows = []
    for record in records:
        for call, layer in tables.numbered(record):
            if not layer.by_level.windows:
                continue
            pair = layer.by_level.by_window()
            share, error = ratio(*pair), standard_error(influences(*pair), pair[1], blocks)
            for head in range(layer.heads):
                place = tables.place(record, layer, call) | {"head": head}
                for level, (low, high) in enumerate(pairwise(EDGES)):
                    figures = {"share": float(share[head, level]), "share_se": float(error[head, level])}
                    rows.append(place | {"lse_from": low, "lse_to": high} | figures)
    return pd.DataFrame(rows)


def _scores(record: Record, sheet: Sheet) -> Row:
    """How far the predictions are from the baseline's."""
    row: Row = {}
    for name, tally in (("kl_to_baseline", record.divergence), ("top1_agreement", record.agreement)):
        pair = tally.by_window()
        row[name] = float(ratio(*pair)[0])
        errors = sheet.errors(name, influences(*pair), pair[1], partial(resampled, *pair))
        row |= {key: float(error[0]) for key, error in errors.items()}
    return row


def _loss(baseline: Record, record: Record, sheet: Sheet) -> Row:
    before, after = baseline.loss.by_window(), record.loss.by_window()
    row = _difference("nll_delta", before, after, sheet)
    first, second = (perplexity_of(float(ratio(*pair)[0])) for pair in (before, after))
    row["perplexity_delta"] = second - first
    if not math.isfinite(second):
        return row | {key.replace("nll", "perplexity"): math.nan for key in row if key.startswith("nll_delta_")}
    # The perplexity's error by the delta method: each window pulls it by itself times its pull on the loss.
    pulls = second * influences(*after) - first * influences(*before)
    errors = sheet.errors("perplexity_delta", pulls, _shared(before, after), partial(_perplexities, before, after))
    return row | {key: float(error[0]) for key, error in errors.items()}


def _pairs(baseline: Record, record: Record, columns: tuple[str, ...]) -> dict[str, tuple[Pair, Pair]]:
    """Sums and counts of every figure over all heads of the model, before and after."""
    before, after = (pooled(each, columns) for each in (baseline, record))
    return {name: (before[name], after[name]) for name in after if name in before}


def _only(pair: Pair, defined: Tensor) -> tuple[Tensor, Tensor]:
    return pair[0][:, defined], pair[1][:, defined]


def _shared(before: Pair, after: Pair) -> Tensor:
    """What counts in a change: a window that counts both times."""
    return torch.minimum(before[1], after[1])


def _difference(name: str, before: Pair, after: Pair, sheet: Sheet) -> Row:
    """The change of a mean over heads, with its error paired by window."""
    pulls = (influences(*after) - influences(*before)).mean(dim=1)
    counts = _shared(before, after).sum(dim=1)
    errors = sheet.errors(name, pulls, counts, lambda times: _changes(before, after, times).mean(dim=1))
    row = {name: float((ratio(*after) - ratio(*before)).mean())}
    return row | {key: float(error) for key, error in errors.items()}


def _changes(before: Pair, after: Pair, times: Tensor) -> Tensor:
    """The change of each head's figure in each bootstrap sample, of the same windows before and after."""
    return resampled(*after, times) - resampled(*before, times)


def _perplexities(before: Pair, after: Pair, times: Tensor) -> Tensor:
    return resampled(*after, times).exp() - resampled(*before, times).exp()
