"""Softmax times the score itself, raw or brought into [0, 1]."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter, scored, seen_or_zero


def sa_softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """z·softmax(z)."""
    return seen_or_zero(scores) * torch.softmax(scores, -1)


def sa_softmax_normalised(scores: Float[Tensor, "*rows key"], eps: float) -> Float[Tensor, "*rows key"]:
    """(z − l) / (h − l + ε)·softmax(z) with l = min(0, min z) and h = max(0, max z)."""
    seen = seen_or_zero(scores)
    low = seen.amin(-1, keepdim=True).clamp_max(0)
    high = seen.amax(-1, keepdim=True).clamp_min(0)
    return (seen - low) / (high - low + eps) * torch.softmax(scores, -1)


def normalised_support(
    scores: Float[Tensor, "*rows key"],
    weights: Float[Tensor, "*rows key"],  # noqa: ARG001 - every support is asked with the weights
    eps: float,  # noqa: ARG001 - and with all settings
) -> Bool[Tensor, "*rows key"]:
    """The keys above min(0, min z)."""
    seen = seen_or_zero(scores)
    return seen > seen.amin(-1, keepdim=True).clamp_max(0)


SA_SOFTMAX = Normalizer(
    name="sa_softmax",
    function=sa_softmax,
    summary="self-adjusting softmax: softmax times the score, so that weights can be negative and grow",
    formula="z·softmax(z)",
    source="arXiv 2502.18277",
    published=True,
    row_sum="any",
    may_be_negative=True,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=1.0,
    support=scored,
)

SA_SOFTMAX_NORMALISED = Normalizer(
    name="sa_softmax_normalised",
    function=sa_softmax_normalised,
    summary="self-adjusting softmax with the score brought into [0, 1] first; a lone key of score <= 0 gets nothing",
    formula="(z − min(0, min z)) / (max(0, max z) − min(0, min z) + ε)·softmax(z)",
    source="arXiv 2502.18277; ε as in github.com/HKUDS/SepLLM",
    published=True,
    parameters=(Parameter("eps", 1e-10, 1e-30, 1.0, "what keeps the range from vanishing"),),
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=normalised_support,
)
