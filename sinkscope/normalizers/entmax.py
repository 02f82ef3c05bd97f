"""Sparsemax and α-entmax: weights that add up to one and are exactly zero for scores far below the best.

All α > 1 share one form. With δ = α − 1 the weights are [1 + δ(z − t)]₊^{1/δ}, which tends to e^{z−t} as δ → 0, and
t is the root of Σ weights = 1. It is found for all rows at once, without sorting, and differentiated by the
implicit function theorem.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter
from sinkscope.normalizers.groups import best_of_groups, of_best_groups

_MOST_NEWTON_STEPS = 50

_MOST_FACTORS = 8
"""A product of more factors takes longer than a logarithm and an exponential."""

_LEAST_DELTA = 0.2
"""Above it the smallest number that fp32 tells from 0 beside 1 has a power of 1/δ that fp32 can hold."""

_SLACK = 1e-3
"""How far beyond its reach a key must be to be left aside: a small inaccuracy of the root must not decide."""


def sparsemax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """[z − τ]₊ with Σ = 1: the nearest point of the simplex."""
    return entmax(scores, 2.0)


def entmax(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    """[(α − 1)z − τ]₊^{1/(α−1)} with Σ = 1; softmax at α = 1."""
    if alpha == 1:
        return torch.softmax(scores, -1)
    weights: Tensor = _Entmax.apply(scores, alpha)  # type: ignore[no-untyped-call]  # as torch ships it
    return weights


def entmax_support(
    scores: Float[Tensor, "*rows key"], weights: Float[Tensor, "*rows key"], alpha: float
) -> Bool[Tensor, "*rows key"]:
    """The keys with (α − 1)z > τ: those that the largest weight s leaves one, s^{α−1} + (α − 1)(z − max z) > 0."""
    if alpha == 1:
        return torch.ones_like(weights, dtype=torch.bool)
    delta = alpha - 1
    if delta > _LEAST_DELTA:
        return weights != 0
    reach = weights.amax(-1, keepdim=True) ** delta
    return (weights != 0) | (reach + delta * (scores - scores.amax(-1, keepdim=True)) > 0)


class _Entmax(torch.autograd.Function):
    """The solution, with the Jacobian diag(g) − g gᵀ / Σg where g = w^{2−α} on the support."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float) -> Tensor:
        best = best_of_groups(scores)
        peak = best.amax(-1, keepdim=True)
        solve = _by_newton if alpha <= 2 else _by_bisection
        weights = solve(scores - peak, best - peak, alpha - 1)
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


def _by_newton(
    gaps: Float[Tensor, "*rows key"], best: Float[Tensor, "*rows group"], delta: float
) -> Float[Tensor, "*rows key"]:
    """Weights for δ <= 1 from gaps z − max z, first of the best of each group of keys, then of all that can have any.

    Fewer keys have their root at a lower t: there no other group than those whose best has a weight can have one.
    """
    gaps, best = gaps.mul_(delta), best * delta
    power = _power(delta)
    level = _newton(best, torch.full_like(best[..., :1], 1.0 if power else 0.0), delta)
    reach = level + (_SLACK if power else 1 + _SLACK)
    level = _newton(_near(gaps, best > -reach), level, delta)
    weights, _ = _powers(gaps, level, delta)
    return weights.div_(weights.sum(-1, keepdim=True))


def _newton(
    gaps: Float[Tensor, "*rows key"], level: Float[Tensor, "*rows 1"], delta: float
) -> Float[Tensor, "*rows 1"]:
    """The level −δt (plus 1 where 1/δ is whole) at which the weights add up to 1, by Newton's method on (Σ weights)^δ.

    As a norm of the scores above the threshold it is convex, so that every step stays on one side.
    """
    tolerance = 32 * torch.finfo(gaps.dtype).eps
    for _ in range(_MOST_NEWTON_STEPS):
        weights, slopes = _powers(gaps, level, delta)
        total = weights.sum(-1, keepdim=True)
        if bool((total - 1).abs().max() <= tolerance):
            break
        level = level + torch.expm1(total.log() * -delta) * total / slopes.sum(-1, keepdim=True)
    return level


def _power(delta: float) -> int:
    """1/δ where it is a small whole number, so that weights are products; else 0."""
    power = round(1 / delta) if delta > 1 / (_MOST_FACTORS + 1) else 0
    return power if power and power * delta == 1 else 0


def _powers(
    gaps: Float[Tensor, "*rows key"], level: Float[Tensor, "*rows 1"], delta: float
) -> tuple[Float[Tensor, "*rows key"], Float[Tensor, "*rows key"]]:
    """The weights [1 + δ(z − t)]₊^{1/δ} from δ(z − max z), and weights^{1−δ} on the support: their slopes −d/dt."""
    if power := _power(delta):
        root = (gaps + level).relu_()
        if power == 1:
            return root, root.sign()
        slopes = root
        for _ in range(power - 2):
            slopes = slopes * root
        return slopes * root, slopes
    # log1p keeps the digits of 1 + δ(…) as δ → 0.
    inner = (gaps + level).clamp_min_(-1)
    weights = _exp(inner.log1p().div_(delta))
    return weights, weights / inner.add_(1).clamp_min_(torch.finfo(gaps.dtype).tiny)


def _by_bisection(
    gaps: Float[Tensor, "*rows key"], best: Float[Tensor, "*rows group"], delta: float
) -> Float[Tensor, "*rows key"]:
    """Weights for δ > 1 from gaps z − max z, by halving the range of the largest log-weight, in the same two rounds.

    The slope of the sum is infinite wherever a key enters, so Newton's steps lead nowhere.
    """
    peak = _bisection(best, delta)
    near = _near(gaps, best * _stretch(peak, delta) > -1 - _SLACK)
    weights = _below_peak(gaps, _bisection(near, delta), delta)
    return weights.div_(weights.sum(-1, keepdim=True))


def _bisection(gaps: Float[Tensor, "*rows key"], delta: float) -> Float[Tensor, "*rows 1"]:
    """The log of the largest weight."""
    high = torch.zeros_like(gaps[..., :1])
    low = high - math.log(gaps.shape[-1])
    for _ in range(2 + torch.finfo(gaps.dtype).bits):
        middle = (low + high) / 2
        above = _below_peak(gaps, middle, delta).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high


def _stretch(log_peak: Float[Tensor, "*rows 1"], delta: float) -> Float[Tensor, "*rows 1"]:
    return (log_peak * -delta).clamp_max(60).exp() * delta


def _below_peak(
    gaps: Float[Tensor, "*rows key"], log_peak: Float[Tensor, "*rows 1"], delta: float
) -> Float[Tensor, "*rows key"]:
    """s·[1 + δ·gap·s^{−δ}]₊^{1/δ}, the weights of which the largest is s: exact for ties, however many."""
    return _exp((gaps * _stretch(log_peak, delta)).clamp_min_(-1).log1p_().div_(delta).add_(log_peak))


def _exp(logs: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """e^logs in place, 0 below the dtype's normal range: there torch's own takes up to fifty times as long."""
    floor = math.log(torch.finfo(logs.dtype).tiny) + 1
    return torch.nn.functional.threshold(logs.clamp_min_(floor).exp_(), math.exp(floor) * (1 + _SLACK), 0.0)


def _near(gaps: Float[Tensor, "*rows key"], live: Bool[Tensor, "*rows group"]) -> Float[Tensor, "*rows near"]:
    """The gaps of as many groups as the fullest row has live ones."""
    return of_best_groups(gaps, int(live.sum(-1).max()))


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
    support=entmax_support,
)
