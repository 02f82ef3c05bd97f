"""The figures of published protocols, as functions of reductions like any metric's."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.metrics.base import over
from sinkscope.metrics.mass import rate
from sinkscope.statistics.accumulate import Sums


def _real(reductions: Reductions) -> Bool[Tensor, "batch 1 query"]:
    """Every real query, the first one included, whether or not it can see the first token."""
    return reductions.question.kept[:, None, :]


def _first(reductions: Reductions, *, shares: bool) -> Float[Tensor, "batch head query"]:
    """What each query gives to the first token, 0 where it cannot see it: the weight, or its share of the row."""
    column = reductions.column("first")
    sees = reductions.seen[..., column] > 0
    if not shares:
        return torch.where(sees, reductions.mass[..., column], 0)
    of = reductions.whole()
    return torch.where(sees, reductions.absolute_mass[..., column] / of.masked_fill(of == 0, 1), 0)


def first_column(reductions: Reductions, *, shares: bool) -> Sums:
    """α: the mean over all real queries, the first one included, of what they give to the first token."""
    values = _first(reductions, shares=shares)
    return over(values, _real(reductions).expand_as(values))


def exceeding(reductions: Reductions, *, shares: bool, epsilon: float) -> Sums:
    """Whether α exceeds ε in each sample, so that the mean over samples is a rate; the inequality is strict."""
    return rate(first_column(reductions, shares=shares), epsilon)


def lower_triangle_zeros(reductions: Reductions) -> Sums:
    """The share of the lower triangle, diagonal included, whose weight is exactly 0; hidden keys weigh 0 too."""
    if reductions.zeros is None:
        raise ValueError("expected reductions with zeros, got none")
    every = (reductions.question.before + 1)[:, None, :].to(reductions.zeros.dtype).expand_as(reductions.zeros)
    rows = _real(reductions).expand_as(reductions.zeros)
    hidden = every - reductions.keys
    return over(reductions.zeros + hidden, rows)[0], over(every, rows)[0]


def last_query(reductions: Reductions) -> Sums:
    """What the last real query of each sample gives to the first token."""
    values = _first(reductions, shares=False)
    return over(values, reductions.question.last[:, None].expand_as(values))
