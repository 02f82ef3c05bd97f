"""The card of a metric and its law: reductions in, a sum and a count per window and head out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.statistics.accumulate import Sums


@dataclass(frozen=True)
class Metric:
    """A figure per head that is exact over any number of windows: Σsum ÷ Σcount.

    `function` turns one call's reductions into (sum, count), both [batch, head], in any float dtype; they are added up
    in fp64. A count of 0 over all windows means that the figure is undefined there; it is reported as null, never as 0.
    A figure that is a mean over windows has a count of 1 for each.

    A metric `per_class` returns [batch, head, column] and is reported once for each class of tokens, as
    `{class}_{name}`. `needs` names the optional reductions that the function reads. `low` and `high` bound the figure
    where it has bounds; None means that it has none. An `optional` metric is measured only where it is asked for.
    A metric `by_row` is a mean over rows: of a sample of them it is an estimate, whose error the sample itself tells.
    The function must not let padding or rows that do not count change its result: `reductions.counted()` tells which
    do.
    """

    name: str
    function: Callable[[Reductions], Sums]
    summary: str
    unit: str
    low: float | None = None
    high: float | None = None
    needs: frozenset[str] = frozenset()
    per_class: bool = False
    optional: bool = False
    by_row: bool = False


def over(values: Float[Tensor, "batch #head query *column"], rows: Bool[Tensor, "batch #head query *column"]) -> Sums:
    """Sum and count over the rows that are marked, in fp64 where the device has it."""
    exact = torch.float32 if values.device.type == "mps" else torch.float64
    # where, not a product: rows that are not marked may hold anything, NaN included.
    total = torch.where(rows, values, 0).sum(dim=2, dtype=exact)
    count = rows.sum(dim=2).to(exact)
    return total, count.expand_as(total)
