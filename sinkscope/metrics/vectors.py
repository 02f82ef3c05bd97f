"""The vectors that the weights are applied to, and what comes out: norms of values and head outputs."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import Question, Reductions
from sinkscope.metrics.base import over
from sinkscope.statistics.accumulate import Sums


def value_norm_ratio(reductions: Reductions) -> Sums:
    """‖v‖ of the first token ÷ the mean ‖v‖ of the window's other tokens."""
    if reductions.value_norm is None:
        raise ValueError("expected reductions with value norms, got none")
    return first_by_others(reductions.value_norm, reductions.question)


def output_norm(reductions: Reductions) -> Sums:
    """Mean over rows of ‖Σ w·v‖, the head's output before the output projection."""
    if reductions.output_norm is None:
        raise ValueError("expected reductions with output norms, got none")
    return over(reductions.output_norm, reductions.counted())


def first_by_others(norms: Float[Tensor, "batch head key"], question: Question) -> Sums:
    """What the first token has ÷ the mean of what the window's other tokens have, once for each window."""
    first = question.marked["first"]
    others = question.keep & ~first
    at_first, _ = over(norms, first[:, None])
    total, count = over(norms, others[:, None])
    defined = (count > 0) & (total > 0)
    ratio = at_first * count / torch.where(defined, total, 1)
    return torch.where(defined, ratio, 0), defined.to(total.dtype)
