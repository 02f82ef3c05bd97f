"""The vectors that the weights are applied to, and what comes out: norms of values and head outputs."""

import torch

from sinkscope.accumulate import Sums
from sinkscope.attention import Reductions
from sinkscope.metrics.base import over


def value_norm_ratio(reductions: Reductions) -> Sums:
    """‖v‖ of the first token ÷ the mean ‖v‖ of the window's other tokens."""
    if reductions.value_norm is None:
        raise ValueError("expected reductions with value norms, got none")
    first = reductions.question.marked["first"]
    others = reductions.question.keep & ~first
    norms = reductions.value_norm[..., None]
    at_first, _ = over(norms, first[:, None, :, None])
    total, count = over(norms, others[:, None, :, None])
    defined = (count > 0) & (total > 0)
    ratio = at_first * count / torch.where(defined, total, 1)
    return torch.where(defined, ratio, 0)[..., 0], defined[..., 0].to(total.dtype)


def output_norm(reductions: Reductions) -> Sums:
    """Mean over rows of ‖Σ w·v‖, the head's output before the output projection."""
    if reductions.output_norm is None:
        raise ValueError("expected reductions with output norms, got none")
    return over(reductions.output_norm, reductions.counted())
