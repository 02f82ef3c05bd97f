"""Sparsemax and α-entmax: weights that add up to one and are exactly zero for scores far below the best.

All α > 1 share one form. With δ = α − 1 the weights are [1 + δ(z − t)]₊^{1/δ}, which tends to e^{z−t} as δ → 0, and
t is the root of Σ weights = 1. It is found for all rows at once, without sorting, and differentiated by the
implicit function theorem.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter

_MOST_NEWTON_STEPS = 50


def sparsemax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """[z − τ]₊ with Σ = 1: the nearest point of the simplex."""
    return entmax(scores, 2.0)


def entmax(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    """[(α − 1)z − τ]₊^{1/(α−1)} with Σ = 1; softmax at α = 1."""
    if alpha == 1:
        return torch.softmax(scores, -1)
    weights: Tensor = _Entmax.apply(scores, alpha)  # type: ignore[no-untyped-call]  # as torch ships it
    return weights


class _Entmax(torch.autograd.Function):
    """The solution, with the Jacobian diag(g) − g gᵀ / Σg where g = w^{2−α} on the support."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float) -> Tensor:
        gaps = scores - scores.amax(-1, keepdim=True)
        weights = _by_newton(gaps, alpha - 1) if alpha <= 2 else _by_bisection(gaps, alpha - 1)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        # For α > 2 the slope of a small weight is beyond fp32, and inf − inf is no gradient.
        slopes = weights.pow(2 - ctx.alpha).clamp_max(1e30).masked_fill(weights == 0, 0)
        mean = (slopes * grads[0]).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
        return slopes * (grads[0] - mean), None


def _by_newton(gaps: Float[Tensor, "*rows key"], delta: float) -> Float[Tensor, "*rows key"]:
    """Weights for δ <= 1 from gaps z − max z, by Newton's method on (Σ weights)^δ.

    As a norm of the scores above the threshold it is convex, and from t = max z every step stays on one side.
    """
    offset = torch.zeros_like(gaps[..., :1])
    near = _nearest(gaps, 1 / delta)
    tolerance = 32 * torch.finfo(gaps.dtype).eps
    for _ in range(_MOST_NEWTON_STEPS):
        weights, slopes = _powers(near, offset, delta)
        total = weights.sum(-1, keepdim=True)
        if bool((total - 1).abs().max() <= tolerance):
            break
        excess = torch.expm1(total.log() * -delta) / -delta
        offset = offset + excess * total / slopes.sum(-1, keepdim=True)
    weights, _ = _powers(gaps, offset, delta)
    return weights.div_(weights.sum(-1, keepdim=True))


def _powers(
    gaps: Float[Tensor, "*rows key"], offset: Float[Tensor, "*rows 1"], delta: float
) -> tuple[Float[Tensor, "*rows key"], Tensor]:
    """The weights [1 + δ(z − t)]₊^{1/δ}, and their derivatives −d/dt, which are weights^{1−δ} on the support."""
    inner = (gaps - offset).mul_(delta).clamp_min_(-1)
    if delta == 1:
        weights = inner.add_(1)
        return weights, weights > 0
    if delta == 0.5:
        root = inner.add_(1)
        return root.square(), root
    # log1p keeps the digits of 1 + δ(…) as δ → 0.
    weights = inner.log1p().div_(delta).exp_()
    return weights, weights / inner.add_(1).clamp_min_(torch.finfo(gaps.dtype).tiny)


def _by_bisection(gaps: Float[Tensor, "*rows key"], delta: float) -> Float[Tensor, "*rows key"]:
    """Weights for δ > 1 from gaps z − max z, by halving the range of the largest log-weight.

    The slope of the sum is infinite wherever a key enters, so Newton's steps lead nowhere.
    """
    high = torch.zeros_like(gaps[..., :1])
    low = high - math.log(gaps.shape[-1])
    near = _nearest(gaps, 1 / delta)
    for _ in range(2 + torch.finfo(gaps.dtype).bits):
        middle = (low + high) / 2
        above = _below_peak(near, middle, delta).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    weights = _below_peak(gaps, high, delta)
    return weights.div_(weights.sum(-1, keepdim=True))


def _below_peak(
    gaps: Float[Tensor, "*rows key"], log_peak: Float[Tensor, "*rows 1"], delta: float
) -> Float[Tensor, "*rows key"]:
    """s·[1 + δ·gap·s^{−δ}]₊^{1/δ}, the weights of which the largest is s: exact for ties, however many."""
    stretch = (log_peak * -delta).clamp_max(60).exp() * delta
    return (gaps * stretch).clamp_min_(-1).log1p_().div_(delta).add_(log_peak).exp_()


def _nearest(gaps: Float[Tensor, "*rows key"], reach: float) -> Float[Tensor, "*rows near"]:
    """Every gap within reach of the best key, and as many others as the fullest row makes it.

    No key further away than 1/δ has weight, and few are that near: selecting them is cheaper than a step over all.
    """
    most = int((gaps > -reach).sum(-1, dtype=torch.int32).max())
    return gaps.topk(most, sorted=False).values if most < gaps.shape[-1] // 4 else gaps


SPARSEMAX = Normalizer(
    name="sparsemax",
    function=sparsemax,
    summary="the distribution nearest to the scores: linear, and exactly zero for most keys",
    formula="[z − τ]₊ with τ such that Σ = 1",
    source="Martins and Astudillo 2016, arXiv 1602.02068",
    published=True,
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
)

ENTMAX = Normalizer(
    name="entmax",
    function=entmax,
    summary="between softmax (α = 1) and sparsemax (α = 2): exact zeros, but smoother",
    formula="[(α − 1)z − τ]₊^{1/(α−1)} with τ such that Σ = 1; α = 1 is softmax",
    source="Peters, Niculae and Martins 2019, arXiv 1905.05702",
    published=True,
    parameters=(Parameter("alpha", 1.5, 1.0, 10.0, "how sparse"),),
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
)
