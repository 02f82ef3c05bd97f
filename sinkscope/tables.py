"""From what a run recorded to the tidy tables of a report."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.accumulate import influences, ratio, standard_error
from sinkscope.metrics import Metric
from sinkscope.record import Layer, Record

Row = dict[str, Any]
Pair = tuple[Float[Tensor, "window head"], Float[Tensor, "window head"]]
"""Sums and counts of one figure."""


def heads(record: Record, columns: tuple[str, ...], fixed: Row) -> pd.DataFrame:
    """One row per head: where it is, how it was measured, every figure and its standard error over windows."""
    rows = []
    for call, layer in numbered(record):
        figures = _figures(record, layer, columns)
        for head in range(layer.heads):
            row = place(record, layer, call) | {"head": head} | _kind(layer) | fixed
            row["queries"] = int(layer.tallies["row_mass"].by_window()[1][:, head].sum())
            rows.append(row | {name: float(values[head]) for name, values in figures.items()})
    return pd.DataFrame(rows)


def layers(record: Record, columns: tuple[str, ...], fixed: Row) -> pd.DataFrame:
    """One row per attention call: the unweighted means of its heads, with standard errors over windows."""
    rows = []
    for call, layer in numbered(record):
        row = place(record, layer, call) | {"module": layer.name} | _kind(layer) | {"heads": layer.heads} | fixed
        rows.append(row | _means(record, [layer], columns))
    return pd.DataFrame(rows)


def summary(record: Record, columns: tuple[str, ...], fixed: Row) -> pd.DataFrame:
    """One row: the unweighted means over all heads of the model, and the loss."""
    row: Row = {"normalizer": record.normalizer, "layers": len(record.layers)}
    row["heads"] = sum(layer.heads for layer in record.layers.values())
    row["first_queries"] = _first_queries(record, columns)
    return pd.DataFrame([row | fixed | _means(record, list(record.layers.values()), columns) | loss(record)])


def _first_queries(record: Record, columns: tuple[str, ...]) -> int:
    """How many queries of all heads together can see the first token."""
    pairs = (layer.tallies["mass"].by_window() for layer in record.layers.values())
    return int(sum(float(counts[..., columns.index("first")].sum()) for _, counts in pairs))


def loss(record: Record) -> Row:
    """Perplexity exp(ΣNLL/Σtokens) and the loss behind it in nats; null where no token was scored."""
    sums, counts = record.loss.by_window()
    nll = float(ratio(sums, counts)[0])
    error = float(standard_error(influences(sums, counts))[0])
    try:
        perplexity = math.exp(nll)
    except OverflowError:
        perplexity = math.inf
    return {
        "perplexity": perplexity,
        "perplexity_se": perplexity * error,
        "nll": nll,
        "nll_se": error,
        "tokens_scored": int(counts.sum()),
    }


def positions(record: Record) -> pd.DataFrame:
    """First-token mass by how far behind the first token a query stands, one row per head and bin."""
    edges = record.edges
    rows = []
    for call, layer in numbered(record):
        sums, counts = layer.by_position.by_window()
        figure, count = ratio(sums, counts), counts.sum(0)
        for head in range(layer.heads):
            where = place(record, layer, call) | {"head": head}
            for index, (start, stop) in enumerate(pairwise(edges)):
                bin_ = {"query_from": start, "query_to": stop - 1, "queries": int(count[head, index])}
                rows.append(where | bin_ | {"first_mass": float(figure[head, index])})
    return pd.DataFrame(rows)


def received(record: Record) -> pd.DataFrame:
    """What each key of each window receives, as the model's mean over heads, and its top head."""
    found = record.received
    windows, length = found.total.shape
    top = found.top.masked_fill(found.top.isinf(), math.nan)
    return pd.DataFrame(
        {
            "normalizer": record.normalizer,
            "window": torch.arange(windows).repeat_interleave(length).numpy(),
            "position": torch.arange(length).repeat(windows).numpy(),
            "received": found.mean().flatten().numpy(),
            "receivers": found.fewest.masked_fill(found.fewest.isinf(), 0).long().flatten().numpy(),
            "top_received": top.flatten().numpy(),
            "top_layer": _optional(found.top_layer),
            "top_head": _optional(found.top_head),
        }
    )


def _optional(tensor: Tensor) -> list[float]:
    """Numbers where -1 stands for none."""
    return tensor.double().masked_fill(tensor < 0, math.nan).flatten().tolist()


def numbered(record: Record) -> Iterable[tuple[int, Layer]]:
    """The layers, each with its index among the calls that share its layer number."""
    calls: dict[int, int] = {}
    for layer in record.in_order():
        calls[layer.layer] = calls.get(layer.layer, -1) + 1
        yield calls[layer.layer], layer


def place(record: Record, layer: Layer, call: int) -> Row:
    """The columns that say where a row belongs."""
    return {"normalizer": record.normalizer, "layer": layer.layer, "call": call}


def _kind(layer: Layer) -> Row:
    window = layer.window_length
    return {"layer_type": layer.kind, "window_length": math.nan if window is None else float(window)}


def _figures(record: Record, layer: Layer, columns: tuple[str, ...]) -> dict[str, Float[Tensor, "head"]]:
    figures = {}
    for name, metric, sums, counts in _sums(record, layer, columns):
        figures[name] = ratio(sums, counts)
        figures[f"{name}_se"] = standard_error(influences(sums, counts))
        if metric.name == "mass":
            figures[name.removesuffix("mass") + "queries"] = counts.sum(0)
    return figures


def pooled(record: Record, chosen: list[Layer], columns: tuple[str, ...]) -> dict[str, Pair]:
    """Sums and counts of every figure over all heads of some layers, [window head]."""
    parts: dict[str, list[Pair]] = {}
    for layer in chosen:
        for name, _, sums, counts in _sums(record, layer, columns):
            parts.setdefault(name, []).append((sums, counts))
    return {
        name: (torch.cat([sums for sums, _ in pairs], dim=1), torch.cat([counts for _, counts in pairs], dim=1))
        for name, pairs in parts.items()
    }


def _means(record: Record, chosen: list[Layer], columns: tuple[str, ...]) -> Row:
    """Unweighted means over the heads in which a figure is defined, and their errors over windows."""
    row: Row = {}
    for name, (sums, counts) in pooled(record, chosen, columns).items():
        defined = counts.sum(0) > 0
        some = sums[:, defined], counts[:, defined]
        row[name] = float(ratio(*some).mean())
        row[f"{name}_se"] = float(standard_error(influences(*some).mean(dim=1)))
    return row


def _sums(
    record: Record, layer: Layer, columns: tuple[str, ...]
) -> Iterable[tuple[str, Metric, Float[Tensor, "window head"], Float[Tensor, "window head"]]]:
    """Every figure by its name in the tables: classes first, each with its metrics together."""
    by_class = [metric for metric in record.metrics if metric.per_class]
    for index, column in enumerate(columns):
        for metric in by_class:
            sums, counts = layer.tallies[metric.name].by_window()
            yield f"{column}_{metric.name}", metric, sums[..., index], counts[..., index]
    for metric in record.metrics:
        if not metric.per_class:
            yield metric.name, metric, *layer.tallies[metric.name].by_window()
