"""From the tallies of a record to sums and counts over all its heads, of every figure and of the replicates of samples.

Where queries were sampled, each window's sampled rows stand for all of its rows: sums and counts of a mean over rows
are multiplied by the number of rows there are ÷ the number that were sampled, which masks tell exactly.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.metrics import Metric
from sinkscope.runs.record import Layer, Record
from sinkscope.statistics.accumulate import influences
from sinkscope.statistics.sampling import sampling_error

EVEN = frozenset({"mass", "share", "lift"})
"""Figures of a class that even attention settles: its part of the visible keys, and for lift 1."""

Pair = tuple[Float[Tensor, "window head"], Float[Tensor, "window head"]]
"""Sums and counts of one figure."""


def pooled(record: Record, columns: Sequence[str]) -> dict[str, Pair]:
    """Sums and counts of every figure over all heads of all layers, in the order of layers."""
    return _joined(_pairs(record, layer, columns) for layer in record.in_order())


def queries(record: Record, columns: Sequence[str]) -> dict[str, Float[Tensor, "head"]]:
    """Over how many rows the figures of each head are: `queries`, and for each class `{class}_queries`."""
    layers = record.in_order()
    found = {"queries": torch.cat([layer.tallies["row_mass"].by_window()[1].sum(0) for layer in layers])}
    by_class = torch.cat([layer.tallies["mass"].by_window()[1].sum(0) for layer in layers])
    return found | {f"{column}_queries": by_class[:, index] for index, column in enumerate(columns)}


def sampling_errors(
    record: Record, columns: Sequence[str], group: Int[Tensor, "head"] | None = None
) -> dict[str, Float[Tensor, "figure"]]:
    """The error of each mean over rows that comes from sampling queries, by head or of the means over groups of heads.

    Of a class's figures it holds, beside what replicates tell, how far the sample is from all rows in the class's part
    of the visible keys: √(replicates² + offset²). Empty where queries were not sampled.
    """
    errors = {}
    offsets = _offsets(record, columns)
    for name, pair in _joined(_replicates(record, layer, columns) for layer in record.in_order()).items():
        pulls = influences(*pair)
        fractions = torch.tensor([record.fractions[window] for window in sorted(record.fractions)], dtype=pulls.dtype)
        of = pulls if group is None else group_means(pulls, pair, group)
        errors[name] = sampling_error(of, record.parts, fractions)
        if name in offsets:
            offset = offsets[name] if group is None else group_means(offsets[name][None], pair, group)[0]
            errors[name] = torch.hypot(errors[name], offset)
    return errors


def _offsets(record: Record, columns: Sequence[str]) -> dict[str, Float[Tensor, "head"]]:
    """By how much each class's figure would be off by head, if as much of it as can be were even attention.

    Even attention gives a class its part of the visible keys. The mean of that part is known for all rows and for the
    sampled ones, which mostly miss a window's first rows, where it is largest. Replicates miss these rows as well.
    """
    found: dict[str, list[Tensor]] = {f"{column}_{metric}": [] for column in columns for metric in EVEN}
    for layer in record.in_order():
        if not layer.even.windows:
            return {}
        sampled, known = (side.sum(0) for side in layer.even.by_window())
        rows = layer.population.by_window()[0].sum(0)[..., : known.shape[-1]]
        off, part = sampled / known - 1, known / rows
        for name, metric, index in _named(record, columns):
            if name in found:
                sums, counts = _figure(layer.tallies[metric.name].by_window(), index)
                even = part[..., index] if metric.name != "lift" else torch.ones_like(off[..., index])
                size = torch.minimum((sums.sum(0) / counts.sum(0)).abs(), even)
                found[name].append(size * off[..., index])
    return {name: torch.cat(parts) for name, parts in found.items() if parts}


def group_means(
    values: Float[Tensor, "row head"], pair: Pair, group: Int[Tensor, "head"]
) -> Float[Tensor, "row group"]:
    """The means over the heads of each group for which anything was counted; NaN where there is none."""
    defined = pair[1].sum(0) > 0
    count = int(group.max()) + 1
    total = values.new_zeros(len(values), count).index_add_(1, group, values.masked_fill(~defined, 0))
    return total / values.new_zeros(count).index_add_(0, group, defined.to(values.dtype))


def _joined(layers: Iterable[Iterable[tuple[str, Pair]]]) -> dict[str, Pair]:
    parts: dict[str, list[Pair]] = {}
    for layer in layers:
        for name, pair in layer:
            parts.setdefault(name, []).append(pair)
    return {
        name: (torch.cat([sums for sums, _ in pairs], dim=1), torch.cat([counts for _, counts in pairs], dim=1))
        for name, pairs in parts.items()
    }


def _pairs(record: Record, layer: Layer, columns: Sequence[str]) -> Iterable[tuple[str, Pair]]:
    """Every figure of a layer by its name in the tables."""
    weights = _weights(layer)
    for name, metric, index in _named(record, columns):
        pair = _figure(layer.tallies[metric.name].by_window(), index)
        yield name, pair if weights is None or not metric.by_row else _weighed(pair, weights[..., _column(index)])


def _replicates(record: Record, layer: Layer, columns: Sequence[str]) -> Iterable[tuple[str, Pair]]:
    """The figures that are means over rows, of the replicates of a sample of queries, as if each were a window."""
    if (weights := _weights(layer)) is None:
        return
    for name, metric, index in _named(record, columns):
        if metric.by_row:
            pair = _figure(layer.sampled[metric.name].by_window(), index)
            repeated = weights[..., _column(index)].repeat_interleave(record.parts, dim=0)
            yield name, _weighed(pair, repeated)


def _named(record: Record, columns: Sequence[str]) -> Iterable[tuple[str, Metric, int | None]]:
    """Every figure by its name: classes first, each with its metrics together and its place among the classes."""
    by_class = [metric for metric in record.metrics if metric.per_class]
    for index, column in enumerate(columns):
        for metric in by_class:
            yield f"{column}_{metric.name}", metric, index
    for metric in record.metrics:
        if not metric.per_class:
            yield metric.name, metric, None


def _weights(layer: Layer) -> Float[Tensor, "window head column"] | None:
    """For how many of its window's rows a sampled row stands; None where none were sampled."""
    if not layer.population.windows:
        return None
    rows, sampled = layer.population.by_window()
    return torch.where(sampled > 0, rows / sampled.clamp(min=1), 0)


def _column(index: int | None) -> int:
    """Where the weights of a class stand, and behind them those of figures that are of no class."""
    return -1 if index is None else index


def _figure(pair: tuple[Tensor, Tensor], index: int | None) -> Pair:
    return pair if index is None else (pair[0][..., index], pair[1][..., index])


def _weighed(pair: Pair, weights: Float[Tensor, "window head"]) -> Pair:
    return pair[0] * weights, pair[1] * weights
