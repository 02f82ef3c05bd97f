"""From what a run recorded of hidden states to tidy tables, and to the columns that they add to the summary."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.activations.figures import is_massive
from sinkscope.activations.moments import kurtosis, pooled
from sinkscope.activations.record import Entry, HiddenRecord, Outline
from sinkscope.activations.states import TOP
from sinkscope.activations.watching import Place
from sinkscope.statistics.accumulate import Blocks, influences, ratio, standard_error

Row = dict[str, Any]

TOKEN_COLUMNS = ("token_id", "token", "class")
"""What the table of tokens says of a position."""


def activations(record: HiddenRecord, blocks: Blocks | None = None) -> pd.DataFrame:
    """One row per call of a decoder layer, with attention or without: every figure and its error over windows in `_se`.

    With `blocks`, errors are over documents, by the number of each window's.

    Figures of the attention's output are in `attention_*`, in layers in which attention ran once.
    """
    rows = []
    for call, place in _numbered(record):
        row = _place(record, place, call) | _figures(record, place, blocks)
        attention = [each for each in record.places if each.inside == place]
        figures = _figures(record, attention[0], blocks) if len(attention) == 1 else {}
        rows.append(row | {f"attention_{name}": figure for name, figure in figures.items()})
    return pd.DataFrame(rows)


def massive(record: HiddenRecord, tokens: pd.DataFrame | None = None) -> pd.DataFrame:
    """The entries of each call of a layer with the largest |x| over all windows, each with its window.

    One row per (normalizer, layer, call, rank): the signed `value`, its `ratio` to the median |x| of its window, where
    it is, and whether it is `massive` by the rule of Sun et al. `tokens` is a report's table of tokens, from which the
    token's id, text and class are taken.
    """
    known = {} if tokens is None else _known(record, tokens)
    rows = []
    for call, place in _numbered(record):
        for rank, (entry, outline) in enumerate(_largest(record, place), start=1):
            row = _place(record, place, call) | {"rank": rank, "value": entry.value}
            row |= {"ratio": abs(entry.value) / outline.median if outline.median else math.nan}
            row |= {"window": entry.window, "position": entry.position}
            row |= known.get((entry.window, entry.position), dict.fromkeys(TOKEN_COLUMNS))
            size, median = torch.tensor(entry.value).abs(), torch.tensor(outline.median)
            rows.append(row | {"dimension": entry.dimension, "massive": bool(is_massive(size, median))})
    return pd.DataFrame(rows)


def summary(record: HiddenRecord, blocks: Blocks | None = None) -> Row:
    """The columns that hidden states add to a summary: over all layers, all windows and all their tokens at once.

    `kurt_global` with the range of the entries (Zuhri et al. 2025, arXiv 2504.20966) is null unless every layer is
    defined; its error is a jackknife over windows, or over documents with `blocks`. `inf_norm_max` is the largest mean
    over windows of ‖x‖∞ of any layer or attention (Bondarenko et al. 2023), with its module; `largest_activation` the
    largest |x| of any layer.
    """
    places = [place for _, place in _numbered(record)]
    whole = bool(places) and all(record.defined(place) for place in places)
    row: Row = dict.fromkeys(("kurt_global", "kurt_global_se", "activation_min", "activation_max"), math.nan)
    if whole:
        outlines = [outline for place in places for outline in record.places[place].outlines.values()]
        row["kurt_global"], row["kurt_global_se"] = _global(record, places, blocks)
        row["activation_min"] = _extreme([each.low for each in outlines], smallest=True)
        row["activation_max"] = _extreme([each.high for each in outlines])
    return row | _inf_norm(record) | _largest_of_all(record)


def _numbered(record: HiddenRecord) -> Iterable[tuple[int, Place]]:
    """The layers by number, each with its index among the calls that share its number, in the order of execution."""
    calls: dict[int | None, int] = {}
    layers = (place for place in record.places if not place.attention)
    for place in sorted(layers, key=lambda each: -1 if each.layer is None else each.layer):
        calls[place.layer] = calls.get(place.layer, -1) + 1
        yield calls[place.layer], place


def _place(record: HiddenRecord, place: Place, call: int) -> Row:
    return {"normalizer": record.normalizer, "layer": place.layer, "call": call, "module": place.module}


def _figures(record: HiddenRecord, place: Place, blocks: Blocks | None) -> Row:
    """Every figure measured at a place, and its standard error; NaN where the place is undefined."""
    cards = record.figures(place)
    if not (cards and record.defined(place)):
        return {name: math.nan for card in cards for name in (card.name, f"{card.name}_se")}
    pair = record.places[place].tally.by_window()
    figures, errors = ratio(*pair).tolist(), standard_error(influences(*pair), pair[1], blocks).tolist()
    row: Row = {}
    for card, figure, error in zip(cards, figures, errors, strict=True):
        row |= {card.name: figure, f"{card.name}_se": error}
    return row


def _known(record: HiddenRecord, tokens: pd.DataFrame) -> dict[tuple[int, int], Row]:
    """What the table of tokens says, by window and position."""
    own = tokens[tokens["normalizer"] == record.normalizer] if "normalizer" in tokens else tokens
    names = ["window", "position", *TOKEN_COLUMNS]
    rows = zip(*(own[name].tolist() for name in names), strict=True)
    return {(window, position): dict(zip(TOKEN_COLUMNS, each, strict=True)) for window, position, *each in rows}


def _largest(record: HiddenRecord, place: Place) -> list[tuple[Entry, Outline]]:
    """The largest entries of a layer over all windows; none where a value is no number."""
    outlines = record.places[place].outlines
    if not record.defined(place) or not all(math.isfinite(each.low + each.high) for each in outlines.values()):
        return []
    found = [(entry, outline) for outline in outlines.values() for entry in outline.entries]
    found.sort(key=lambda each: (-abs(each[0].value), each[0].window, each[0].position, each[0].dimension))
    return found[:TOP]


def _global(record: HiddenRecord, places: list[Place], blocks: Blocks | None) -> tuple[float, float]:
    """Kurtosis of the entries of all layers and windows together, and its standard error by leaving windows out.

    With `blocks`, all windows of a document are left out together.
    """
    windows = sorted({window for place in places for window in record.places[place].outlines})
    parts = pooled(torch.stack([torch.stack([_moments(record, place, each) for place in places]) for each in windows]))
    block = torch.arange(len(windows)) if blocks is None else blocks
    without = [kurtosis(pooled(parts[block != left_out])) for left_out in range(int(block.max()) + 1)]
    return float(kurtosis(pooled(parts))), _jackknife(torch.stack(without))


def _moments(record: HiddenRecord, place: Place, window: int) -> Float[Tensor, "5"]:
    outline = record.places[place].outlines.get(window)
    return torch.zeros(5, dtype=torch.float64) if outline is None else outline.moments


def _jackknife(without: Float[Tensor, "block"]) -> float:
    """The standard error of a figure, from what it is without each block of windows; NaN with fewer than two."""
    count = len(without)
    if count < 2:
        return math.nan
    return float(((without - without.mean()).square().sum() * (count - 1) / count).sqrt())


def _inf_norm(record: HiddenRecord) -> Row:
    """The largest mean over windows of ‖x‖∞ among all modules, and which module it is of."""
    norms: dict[str, float] = {}
    for place, seen in record.places.items():
        if record.defined(place):
            each = [_extreme([-outline.low, outline.high]) for outline in seen.outlines.values()]
            norms[place.module] = max(norms.get(place.module, 0.0), sum(each) / len(each), key=_size)
    module, norm = max(norms.items(), key=lambda each: _size(each[1]), default=(None, math.nan))
    return {"inf_norm_max": norm, "inf_norm_module": module}


def _largest_of_all(record: HiddenRecord) -> Row:
    """The largest entry of any layer, and where it is; null where a value of any layer is no number."""
    layers = [(place, _largest(record, place)) for _, place in _numbered(record) if record.defined(place)]
    names = ("largest_activation", "largest_layer", "largest_window", "largest_position", "largest_dimension")
    if not layers or not all(found for _, found in layers):
        return dict.fromkeys(names, math.nan)
    place, ((entry, _), *_) = max(layers, key=lambda each: abs(each[1][0][0].value))
    return dict(zip(names, (entry.value, place.layer, entry.window, entry.position, entry.dimension), strict=True))


def _extreme(values: list[float], *, smallest: bool = False) -> float:
    """The largest or smallest; NaN if one of them is."""
    found = torch.tensor(values, dtype=torch.float64)
    return float(found.min() if smallest else found.max())


def _size(value: float) -> float:
    """Its place among others: NaN comes first, so that it is not hidden."""
    return math.inf if math.isnan(value) else value
