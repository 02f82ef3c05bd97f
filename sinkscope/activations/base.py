"""The card of a figure of hidden states and its law: a batch of states in, a sum and a count for each window out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.activations.states import Pair, States


@dataclass(frozen=True)
class Activation:
    """A figure of one module's output, which is Σsum ÷ Σcount over windows.

    `function` turns the states of a batch into (sum, count), both [batch], in fp64. A count of 0 means that the figure
    is undefined in that window; one that is a mean over windows has a count of 1 for each. It reads real tokens only:
    padding may hold anything.

    `unit`, `low` and `high` are those of the figure, `source` the paper whose definition it is. Every figure is one of
    the output of a decoder layer; one `of_attention` is one of the attention module's output too. An `optional` figure
    costs more than the others together, and is measured only where it is asked for.
    """

    name: str
    function: Callable[[States], Pair]
    summary: str
    unit: str
    source: str
    low: float | None = None
    high: float | None = None
    of_attention: bool = False
    optional: bool = False


Figures = tuple[Float[Tensor, "batch figure"], Float[Tensor, "batch figure"]]
"""Sums and counts of several figures in each window."""


def measured(activations: Sequence[Activation], states: States) -> Figures:
    """Every figure of each window; NaN in a window that holds an infinite value or one that is no number."""
    pairs = [each.function(states) for each in activations]
    total, count = (torch.stack([pair[side] for pair in pairs], dim=1) for side in (0, 1))
    broken = ~states.finite[:, None]
    return total.masked_fill(broken, torch.nan), count.masked_fill(broken, 1)
