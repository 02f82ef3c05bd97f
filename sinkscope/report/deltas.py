"""What a comparison adds to the tables: differences to plain softmax, paired by window, the sweep, the levels.

A change is that of a figure over the same rows of the same windows. `before` is the baseline over the rows that count
after the swap; where these are fewer, it is not the baseline's own figure, and so it stands in a `_before` column.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from sinkscope.metrics.levels import EDGES
from sinkscope.report import tables
from sinkscope.report.pooling import Pair, pooled
from sinkscope.report.tables import Row, Sheet, perplexity_of
from sinkscope.runs.record import Record
from sinkscope.statistics.accumulate import Blocks, influences, ratio, resampled, standard_error

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


def summary(before: Record, record: Record, sheet: Sheet) -> Row:
    """The scores against the baseline, and the change of every mean with its paired standard error."""
    row = _scores(record, sheet) | _loss(before, record, sheet)
    for name, pairs in _pairs(before, record, sheet.columns).items():
        row |= _change(name, pairs, _defined(*pairs), sheet)
    return row


def heads(before: Record, record: Record, baseline: Record, sheet: Sheet) -> pd.DataFrame:
    """The table of heads, with the change of the PER_HEAD figures in each, and of the rows that see each class."""
    found: dict[str, list[float]] = {}
    for name, (old, new) in _per_head(before, record, sheet).items():
        found[f"{name}_before"] = ratio(*old).tolist()
        found[f"{name}_delta"] = (ratio(*new) - ratio(*old)).tolist()
        pulls = influences(*new) - influences(*old)
        errors = sheet.errors(f"{name}_delta", pulls, _shared(old, new), partial(_changes, old, new))
        found |= {key: error.tolist() for key, error in errors.items()}
    masses = _pairs(baseline, record, sheet.columns)
    for column in sheet.columns:
        fewer = masses[f"{column}_mass"][1][1] - masses[f"{column}_mass"][0][1]
        found[f"{column}_queries_delta"] = fewer.sum(0).tolist()
    return pd.concat([tables.heads(record, sheet), pd.DataFrame(found)], axis=1)


def layers(before: Record, record: Record, sheet: Sheet) -> pd.DataFrame:
    """The table of layers, with the change of the PER_HEAD figures: the mean over the heads that have one."""
    table = tables.layers(record, sheet)
    groups = _groups(record)
    found: dict[str, list[float]] = {}
    for name, pairs in _per_head(before, record, sheet).items():
        defined = _defined(*pairs)
        for group in groups:
            for key, value in _change(name, pairs, defined & group, sheet).items():
                found.setdefault(key, []).append(value)
    return pd.concat([table, pd.DataFrame(found)], axis=1)


def positions(before: Record, record: Record, blocks: Blocks | None = None) -> pd.DataFrame:
    """The table of positions, with the change in each bin of each head."""
    table, old = tables.positions(record, blocks), tables.positions(before)["first_mass"]
    return table.assign(first_mass_before=old, first_mass_delta=table["first_mass"] - old)


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


def _pairs(before: Record, record: Record, columns: tuple[str, ...]) -> dict[str, tuple[Pair, Pair]]:
    """Sums and counts of every figure over all heads of the model, before and after."""
    old, new = (pooled(each, columns) for each in (before, record))
    return {name: (old[name], new[name]) for name in new if name in old}


def _per_head(before: Record, record: Record, sheet: Sheet) -> dict[str, tuple[Pair, Pair]]:
    return {name: pairs for name, pairs in _pairs(before, record, sheet.columns).items() if name in PER_HEAD}


def _groups(record: Record) -> list[Bool[Tensor, "head"]]:
    """Which of all heads are those of each attention call."""
    sizes = [layer.heads for layer in record.in_order()]
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return [index == each for each in range(len(sizes))]


def _defined(before: Pair, after: Pair) -> Bool[Tensor, "head"]:
    """The heads that have the figure both times."""
    return (before[1].sum(0) > 0) & (after[1].sum(0) > 0)


def _only(pair: Pair, some: Bool[Tensor, "head"]) -> tuple[Tensor, Tensor]:
    return pair[0][:, some], pair[1][:, some]


def _change(name: str, pairs: tuple[Pair, Pair], some: Bool[Tensor, "head"], sheet: Sheet) -> Row:
    """What the mean over some heads was, and its change."""
    before, after = (_only(pair, some) for pair in pairs)
    return {f"{name}_before": float(ratio(*before).mean())} | _difference(f"{name}_delta", before, after, sheet)


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
