"""What a row of weights looks like, whoever the keys are: entropy, support, norm, exact zeros."""

import torch

from sinkscope.attention import Reductions
from sinkscope.metrics.base import over
from sinkscope.statistics.accumulate import Sums


def entropy(reductions: Reductions) -> Sums:
    """Mean over rows of H(p) = -Σ p·ln p with p = |w| / Σ|w| over the real keys; rows of zeros are left out."""
    return over(_entropies(reductions), _nonzero(reductions))


def entropy_normalised(reductions: Reductions) -> Sums:
    """Mean of H(p) / ln n over the rows that see at least two keys."""
    rows = _nonzero(reductions) & (reductions.keys >= 2)
    return over(_entropies(reductions) / reductions.keys.clamp(min=2).log(), rows)


def effective_support(reductions: Reductions) -> Sums:
    """Mean of 1 / Σp²: how many keys an even spread of the same concentration would have."""
    whole, squares = reductions.absolute_row, _squares(reductions)
    # Squares of weights below 1e-19 are 0 in fp32, and say nothing of such a row.
    return over(whole.square() / squares.masked_fill(squares == 0, 1), _nonzero(reductions) & (squares != 0))


def frobenius(reductions: Reductions) -> Sums:
    """‖A‖_F = √ΣΣw² of each window's map, every real query included; of a sample of queries, scaled up to all."""
    question = reductions.question
    total, _ = over(_squares(reductions), question.kept[:, None] & reductions.seeing())
    scale = question.keep.sum(-1) / question.kept.sum(-1).clamp(min=1)
    return (total * scale[:, None]).sqrt(), torch.ones_like(total)


def exact_zeros(reductions: Reductions) -> Sums:
    """The share of visible entries to which the normalizer gives no weight."""
    if reductions.zeros is None:
        raise ValueError("expected reductions with zeros, got none")
    rows = reductions.counted()
    seen, _ = over(reductions.keys.expand_as(reductions.zeros), rows)
    return over(reductions.zeros, rows)[0], seen


def lse(reductions: Reductions) -> Sums:
    """Mean of log Σ exp(score) over the keys a query sees and a learned sink."""
    if reductions.lse is None:
        raise ValueError("expected reductions with log-sum-exp, got none")
    return over(reductions.lse, reductions.counted())


def degenerate_rows(reductions: Reductions) -> Sums:
    """The share of rows where the normalizer's formula defines nothing."""
    rows = reductions.counted()
    if reductions.degenerate is None:
        return over(torch.zeros_like(reductions.row_mass), torch.zeros_like(rows))
    return over(reductions.degenerate, rows)


def _nonzero(reductions: Reductions) -> torch.Tensor:
    # A row that is no number stays, so that the figure is none either.
    return reductions.counted() & reductions.weighing()


def _entropies(reductions: Reductions) -> torch.Tensor:
    if reductions.entropy is None:
        raise ValueError("expected reductions with entropy, got none")
    return reductions.entropy


def _squares(reductions: Reductions) -> torch.Tensor:
    if reductions.squares is None:
        raise ValueError("expected reductions with squares, got none")
    return reductions.squares
