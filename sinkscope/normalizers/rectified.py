"""Normalizers that read the sign of a score: keys below zero get nothing."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter, just_below, positive, seen_or_zero


def softpick(scores: Float[Tensor, "*rows key"], eps: float) -> Float[Tensor, "*rows key"]:
    """[e^z − 1]₊ / (Σ|e^z − 1| + ε), each term times e^{−M} with M = max(0, max z).

    ε is added after that shift, as in the paper. |e^z − 1| is e^{max(z,0)}·(1 − e^{−|z|}), which keeps its digits
    near zero and does not overflow.
    """
    peak = scores.amax(-1, keepdim=True).clamp_min(0)
    # At hidden keys the size would be e^{−M}, not 0: left in the sum it would outweigh a row of small scores.
    seen = seen_or_zero(scores)
    size = (seen.clamp_min(0).sub_(peak).exp_() * seen.abs().neg_().expm1_()).neg_()
    return (size * seen.sign()).relu_() / (size.sum(-1, keepdim=True) + eps)


def rectified(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """The softmax over the keys with z ≥ 0, zeros where there is none."""
    # The lowest finite number instead of -inf: a row without a key stays finite, in the gradient too.
    lowest = torch.finfo(scores.dtype).min
    kept = torch.nn.functional.threshold(scores, just_below(0.0, scores.dtype), lowest)
    return torch.softmax(kept, -1) * (scores.amax(-1, keepdim=True) >= 0)


def rectified_support(
    scores: Float[Tensor, "*rows key"],
    weights: Float[Tensor, "*rows key"],  # noqa: ARG001 - every support is asked with the weights
) -> Bool[Tensor, "*rows key"]:
    """The keys with z ≥ 0."""
    return scores >= 0


def relu(scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"], a: float) -> Float[Tensor, "*rows key"]:
    """[z]₊ / n^a, n the number of keys that the row can see."""
    return scores.relu() / visible**a


def relu2(
    scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"], a: float
) -> Float[Tensor, "*rows key"]:
    """[z]₊² / n^a, n the number of keys that the row can see."""
    return scores.relu().square() / visible**a


_LENGTH = Parameter("a", 1.0, 0.0, 2.0, "the power of the number of visible keys to divide by; 0 does not divide")

SOFTPICK = Normalizer(
    name="softpick",
    function=softpick,
    summary="rectified softmax: only positive scores get weight, but negative ones still enter the sum",
    formula="[e^z − 1]₊ / (Σ|e^z − 1| + ε)",
    source="Zuhri et al. 2025, arXiv 2504.20966",
    published=True,
    parameters=(Parameter("eps", 1e-6, 1e-12, 1.0, "what keeps the sum from vanishing, after the shift by max z"),),
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=positive,
)

RECTIFIED = Normalizer(
    name="rectified",
    function=rectified,
    summary="softmax over the keys of non-negative score, nothing for the others",
    formula="softmax over {z ≥ 0}; zeros where there is none",
    source="Zuhri et al. 2025, arXiv 2504.20966, table 3",
    published=True,
    row_sum="one or zero",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    support=rectified_support,
)

RELU = Normalizer(
    name="relu",
    function=relu,
    summary="the positive part of the score over the number of keys",
    formula="[z]₊ / n^a, n = visible keys",
    source="Wortsman et al. 2023, arXiv 2309.08586",
    published=True,
    parameters=(_LENGTH,),
    row_sum="any",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=False,
    degree=1.0,
    counts_keys=True,
    support=positive,
)

RELU2 = Normalizer(
    name="relu2",
    function=relu2,
    summary="the squared positive part of the score over the number of keys",
    formula="[z]₊² / n^a, n = visible keys",
    source="Hua et al. 2022, FLASH (squared ReLU; the power of n is a parameter here)",
    published=True,
    parameters=(_LENGTH,),
    row_sum="any",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=False,
    degree=2.0,
    counts_keys=True,
    support=positive,
)
