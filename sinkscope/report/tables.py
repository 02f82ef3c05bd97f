"""From what a run recorded to the tidy tables of a report."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.report.pooling import Pair, group_means, pooled, queries, sampling_errors
from sinkscope.runs.record import Layer, Record
from sinkscope.statistics.accumulate import Blocks, contributing, influences, interval, ratio, resampled, standard_error

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sheet:
    """What the tables of a run have in common: its classes of tokens, and what is the same in every row.

    Standard errors are over windows, or with `blocks` over documents, by the number of each window's. With `draws`,
    figures have the 95 % interval of these bootstrap samples of the same, beside their standard errors.
    """

    columns: tuple[str, ...]
    fixed: Row = field(default_factory=dict)
    draws: Float[Tensor, "resample window"] | None = None
    blocks: Blocks | None = None

    def errors(self, name: str, pulls: Tensor, counts: Tensor, again: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """The error of a figure over windows: from their influences and counts, and from the figure in each sample."""
        found = {f"{name}_se": standard_error(pulls, counts, self.blocks)}
        if self.draws is not None:
            alone = contributing(counts, self.blocks) < 2
            for end, value in zip(("low", "high"), interval(again(self.draws)), strict=True):
                found[f"{name}_{end}"] = value.masked_fill(alone, math.nan)
        return found


def heads(record: Record, sheet: Sheet) -> pd.DataFrame:
    """One row per head: where it is, how it was measured, every figure and its standard error over windows."""
    rows = []
    for call, layer in numbered(record):
        row = place(record, layer, call)
        rows += [row | {"head": head} | _kind(layer) | sheet.fixed for head in range(layer.heads)]
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(_figures(record, sheet))], axis=1)


def layers(record: Record, sheet: Sheet) -> pd.DataFrame:
    """One row per attention call: the unweighted means of its heads, with standard errors over windows."""
    rows = [
        place(record, layer, call)
        | {"module": layer.name}
        | _kind(layer)
        | {"sees_all": layer.full, "heads": layer.heads}
        | sheet.fixed
        for call, layer in numbered(record)
    ]
    group = torch.tensor([index for index, layer in enumerate(record.in_order()) for _ in range(layer.heads)])
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(_means(record, group, sheet))], axis=1)


def summary(record: Record, sheet: Sheet) -> pd.DataFrame:
    """One row: the unweighted means over all heads of the model, and the loss."""
    row: Row = {"normalizer": record.normalizer, "layers": len(record.layers)}
    row["heads"] = sum(layer.heads for layer in record.layers.values())
    row["full_layers"] = sum(layer.full for layer in record.layers.values())
    row["limited_layers"] = len(record.layers) - row["full_layers"]
    row["first_queries"] = _first_queries(record, sheet.columns)
    means = _means(record, torch.zeros(row["heads"], dtype=torch.int64), sheet)
    figures = {name: float(mean[0]) for name, mean in means.items()}
    return pd.DataFrame([row | sheet.fixed | figures | loss(record, sheet)])


def documents(record: Record, sheet: Sheet, of: Sequence[str]) -> pd.DataFrame:
    """One row per document: its windows, and the model's means and loss over them alone; `of` names each window's."""
    names = list(dict.fromkeys(of))
    group = torch.tensor([names.index(name) for name in of])
    windows = torch.bincount(group, minlength=len(names))
    row: Row = {"normalizer": record.normalizer, "document": names, "windows": windows.numpy()}
    for name, pair in pooled(record, sheet.columns).items():
        row |= _by_document(name, pair, group, len(names))
    row |= _by_document("nll", record.loss.by_window(), group, len(names))
    row["perplexity"] = [perplexity_of(nll) for nll in row["nll"]]
    row["tokens_scored"] = _grouped(record.loss.by_window()[1], group, len(names))[:, 0].long().numpy()
    return pd.DataFrame(row)


def _by_document(name: str, pair: Pair, group: Int[Tensor, "window"], count: int) -> dict[str, Any]:
    """The mean over heads of a figure in each document, and its error over the document's own windows."""
    sums, counts = (_grouped(side, group, count) for side in pair)
    defined = counts > 0
    some = defined.sum(1)
    figure = (sums / counts).masked_fill(~defined, 0).sum(1) / some
    pulls = (pair[0] - (sums / counts)[group] * pair[1]) / counts[group]
    pull = pulls.masked_fill(~defined[group], 0).sum(1) / some[group]
    windows = _grouped((pair[1].sum(1) > 0).double(), group, count)
    spread = _grouped(pull.square(), group, count) * windows / (windows - 1)
    error = spread.sqrt().masked_fill(windows < 2, math.nan)
    return {name: figure.numpy(), f"{name}_se": error.numpy()}


def _grouped(values: Float[Tensor, "window *head"], group: Int[Tensor, "window"], count: int) -> Tensor:
    """The sums over the windows of each document."""
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, group, values)


def _first_queries(record: Record, columns: tuple[str, ...]) -> int:
    """How many queries of all heads together can see the first token."""
    return int(queries(record, columns)["first_queries"].sum())


def loss(record: Record, sheet: Sheet) -> Row:
    """Perplexity exp(ΣNLL/Σtokens) and the loss behind it in nats; null where no token was scored."""
    sums, counts = record.loss.by_window()
    nll = float(ratio(sums, counts)[0])
    errors = sheet.errors("nll", influences(sums, counts), counts, partial(resampled, sums, counts))
    row = {"nll": nll} | {name: float(error[0]) for name, error in errors.items()}
    perplexity = perplexity_of(nll)
    ends = {f"perplexity_{end}": perplexity_of(row[f"nll_{end}"]) for end in ("low", "high") if f"nll_{end}" in row}
    error = {"perplexity_se": perplexity * row["nll_se"]}
    return {"perplexity": perplexity} | error | ends | row | {"tokens_scored": int(counts.sum())}


def perplexity_of(nll: float) -> float:
    """The perplexity of a loss in nats, infinite where it overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def positions(record: Record, blocks: Blocks | None = None) -> pd.DataFrame:
    """First-token mass by how far behind the first token a query stands, one row per head and bin."""
    rows, figures, errors, seeing = [], [], [], []
    for call, layer in numbered(record):
        rows += [place(record, layer, call) | {"head": head} for head in range(layer.heads)]
        sums, counts = layer.by_position.by_window()
        figures.append(ratio(sums, counts))
        errors.append(standard_error(influences(sums, counts), counts, blocks))
        seeing.append(counts.sum(0).long())
    heads, bins = len(rows), len(record.edges) - 1
    table = pd.DataFrame(rows).loc[np.repeat(np.arange(heads), bins)].reset_index(drop=True)
    return table.assign(
        query_from=np.tile(record.edges[:-1], heads),
        query_to=np.tile(record.edges[1:], heads) - 1,
        queries=torch.cat(seeing).flatten().numpy(),
        first_mass=torch.cat(figures).flatten().numpy(),
        first_mass_se=torch.cat(errors).flatten().numpy(),
    )


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


def _figures(record: Record, sheet: Sheet) -> dict[str, Any]:
    """Every figure of every head, layers in order."""
    rows = queries(record, sheet.columns)
    figures: dict[str, Any] = {"queries": rows["queries"].long().numpy()}
    by_class = {f"{column}_mass": f"{column}_queries" for column in sheet.columns}
    for name, pair in pooled(record, sheet.columns).items():
        figures[name] = ratio(*pair).numpy()
        errors = sheet.errors(name, influences(*pair), pair[1], partial(resampled, *pair))
        figures |= {key: error.numpy() for key, error in errors.items()}
        if name in by_class:
            figures[by_class[name]] = rows[by_class[name]].numpy()
    errors = sampling_errors(record, sheet.columns)
    return figures | {f"{name}_sampling_se": error.numpy() for name, error in errors.items()}


def _means(record: Record, group: Int[Tensor, "head"], sheet: Sheet) -> dict[str, Any]:
    """Unweighted means over the heads of each group in which a figure is defined, and their errors over windows."""
    means: dict[str, Any] = {}
    for name, pair in pooled(record, sheet.columns).items():
        means[name] = group_means(ratio(*pair)[None], pair, group)[0].numpy()
        pulls = group_means(influences(*pair), pair, group)
        errors = sheet.errors(name, pulls, _by_group(pair[1], group), partial(_means_again, pair, group))
        means |= {key: error.numpy() for key, error in errors.items()}
    errors = sampling_errors(record, sheet.columns, group)
    return means | {f"{name}_sampling_se": error.numpy() for name, error in errors.items()}


def _by_group(counts: Float[Tensor, "window head"], group: Int[Tensor, "head"]) -> Float[Tensor, "window group"]:
    """The counts of all heads of each group together."""
    return counts.new_zeros(len(counts), int(group.max()) + 1).index_add_(1, group, counts)


def _means_again(
    pair: Pair, group: Int[Tensor, "head"], times: Float[Tensor, "resample window"]
) -> Float[Tensor, "resample group"]:
    """The means of each group in each bootstrap sample."""
    return group_means(resampled(*pair, times), pair, group)
