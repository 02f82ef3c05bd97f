"""Softmax with keys cut away: by rank, by weight, and by clipping."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter, just_below
from sinkscope.normalizers.groups import of_best_groups


def topk(scores: Float[Tensor, "*rows key"], k: int) -> Float[Tensor, "*rows key"]:
    """The softmax over the keys whose score is at least the k-th largest; all that tie with it stay."""
    k = min(k, scores.shape[-1])
    last = of_best_groups(scores.detach(), k).topk(k, sorted=False).values.amin(-1, keepdim=True)
    # Ones and zeros at once: a product with them takes a tenth of the time of a masked fill.
    kept = torch.softmax(scores, -1) * torch.ge(scores.detach(), last, out=torch.empty_like(scores))
    return kept / kept.sum(-1, keepdim=True)


def topk_support(
    scores: Float[Tensor, "*rows key"],
    weights: Float[Tensor, "*rows key"],  # noqa: ARG001 - every support is asked with the weights
    k: int,
) -> Bool[Tensor, "*rows key"]:
    """The keys whose score is at least the k-th largest."""
    return scores >= scores.topk(min(k, scores.shape[-1]), sorted=False).values.amin(-1, keepdim=True)


def threshold(scores: Float[Tensor, "*rows key"], tau: float) -> Float[Tensor, "*rows key"]:
    """p·1[p ≥ τ] with p = softmax(z)."""
    return torch.nn.functional.threshold(torch.softmax(scores, -1), just_below(tau, scores.dtype), 0.0)


def threshold_support(
    scores: Float[Tensor, "*rows key"], weights: Float[Tensor, "*rows key"], tau: float
) -> Bool[Tensor, "*rows key"]:
    """The keys with p ≥ τ, in logarithms where fp32 does not hold such a p."""
    if tau >= torch.finfo(scores.dtype).tiny:
        return weights != 0
    return torch.log_softmax(scores, -1) >= (math.log(tau) if tau else -math.inf)


def threshold_renormalised(scores: Float[Tensor, "*rows key"], tau: float) -> Float[Tensor, "*rows key"]:
    """p·1[p ≥ τ] / Σ p·1[p ≥ τ], zeros where nothing reaches τ."""
    kept = threshold(scores, tau)
    total = kept.sum(-1, keepdim=True)
    return kept / (total + (total == 0))


def clipped(scores: Float[Tensor, "*rows key"], gamma: float, zeta: float) -> Float[Tensor, "*rows key"]:
    """clip((ζ − γ)·softmax(z) + γ, 0, 1)."""
    return (torch.softmax(scores, -1) * (zeta - gamma) + gamma).clamp(0, 1)


def clipped_support(
    scores: Float[Tensor, "*rows key"],  # noqa: ARG001 - every support is asked with the scores
    weights: Float[Tensor, "*rows key"],
    gamma: float,
    zeta: float,  # noqa: ARG001 - every support is asked with all settings
) -> Bool[Tensor, "*rows key"]:
    """The keys above the lower clip; all of them where nothing is clipped below."""
    return weights != 0 if gamma else torch.ones_like(weights, dtype=torch.bool)


_TAU = Parameter("tau", 0.01, 0.0, 1.0, "the smallest weight that is kept")

TOPK = Normalizer(
    name="topk",
    function=topk,
    summary="softmax over the k largest scores, nothing for the others",
    formula="softmax over {z ≥ k-th largest z}; ties with the k-th stay",
    source="Gupta et al. 2021 (github.com/ag1988/top_k_attention)",
    published=True,
    parameters=(Parameter("k", 8.0, 1.0, 2.0**31, "how many keys are kept", whole=True),),
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=topk_support,
)

THRESHOLD = Normalizer(
    name="threshold",
    function=threshold,
    summary="softmax with its small weights set to zero",
    formula="p·1[p ≥ τ], p = softmax(z)",
    source="common practice",
    published=True,
    parameters=(_TAU,),
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=threshold_support,
)

THRESHOLD_RENORMALISED = Normalizer(
    name="threshold_renormalised",
    function=threshold_renormalised,
    summary="softmax with its small weights set to zero and the others scaled up to one again",
    formula="p·1[p ≥ τ] / Σ p·1[p ≥ τ], p = softmax(z); zeros where no p reaches τ",
    source="common practice",
    published=True,
    parameters=(_TAU,),
    row_sum="one or zero",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=threshold_support,
)

CLIPPED = Normalizer(
    name="clipped",
    function=clipped,
    summary="softmax stretched a little beyond [0, 1] and clipped, so that a head can reach exact zeros and ones",
    formula="clip((ζ − γ)·softmax(z) + γ, 0, 1)",
    source="Bondarenko et al. 2023, arXiv 2306.12929",
    published=True,
    parameters=(
        Parameter("gamma", -0.03, -1.0, 0.0, "the lower end of the stretch"),
        Parameter("zeta", 1.0, 1.0, 2.0, "the upper end of the stretch"),
    ),
    row_sum="any",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=clipped_support,
)
