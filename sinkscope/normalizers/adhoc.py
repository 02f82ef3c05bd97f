"""Formulas from blog articles that no paper defines, exactly as written there, so that they can be tried.

Each differs from the published formula of a similar name, and each has rows for which it defines nothing. Those
rows are marked, and the card says what is done with them.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter, positive, scored, seen_or_zero

_VANISHING = 1e-4
"""A sum below this part of its absolute sum counts as 0: below it fp32 has few true digits and fp16 overflows."""


def softpick_tau(scores: Float[Tensor, "*rows key"], tau: float) -> Float[Tensor, "*rows key"]:
    """φ / Σ|φ| with φ = z for z > τ, else z − τ·softplus(z − τ)."""
    parts = _softpick_tau_parts(scores, tau)
    # Divided by its largest part first: parts at the end of the range must not add up to inf.
    parts = parts / _largest(parts)
    total = parts.abs().sum(-1, keepdim=True)
    return parts / (total + (total == 0))


def sa_sigmoid(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    """z·σ(αz) / Σ z·σ(αz)."""
    return _over_signed_sum(_sa_sigmoid_parts(scores, alpha))


def polyaksum(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """The scores over their sum, z / Σ z."""
    return _over_signed_sum(seen_or_zero(scores))


def invsquare(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """z⁻² / Σ z⁻², as (a/|z|)² over its sum with a = min |z|."""
    size = scores.abs().clamp_min(torch.finfo(scores.dtype).tiny)
    parts = (size.detach().amin(-1, keepdim=True) / size).square()
    return parts / parts.sum(-1, keepdim=True)


def poly2(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """[z]₊² / Σ [z]₊²."""
    parts = scores.relu()
    parts = (parts / _largest(parts)).square()
    total = parts.sum(-1, keepdim=True)
    return parts / (total + (total == 0))


def _softpick_tau_parts(scores: Float[Tensor, "*rows key"], tau: float) -> Float[Tensor, "*rows key"]:
    seen = seen_or_zero(scores)
    bent = seen - tau * torch.nn.functional.softplus(seen - tau)
    return torch.where(seen > tau, seen, bent).masked_fill(scores == -torch.inf, 0)


def _sa_sigmoid_parts(scores: Float[Tensor, "*rows key"], alpha: float) -> Float[Tensor, "*rows key"]:
    seen = seen_or_zero(scores)
    return seen * torch.sigmoid(seen * alpha)


def _largest(parts: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows 1"]:
    largest = parts.detach().abs().amax(-1, keepdim=True)
    return largest + (largest == 0)


def _relative_sum(parts: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows"]:
    """Σ parts / Σ|parts|, from -1 to 1; 0 for a row of zeros."""
    size = parts.abs().sum(-1)
    return parts.sum(-1) / (size + (size == 0))


def _over_signed_sum(parts: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    vanishing = (_relative_sum(parts).abs() <= _VANISHING).unsqueeze(-1)
    return parts / parts.sum(-1, keepdim=True).masked_fill(vanishing, torch.inf)


def _softpick_tau_is_degenerate(scores: Float[Tensor, "*rows key"], tau: float) -> Bool[Tensor, "*rows"]:
    return (_softpick_tau_parts(scores, tau) == 0).all(-1)


def _sa_sigmoid_is_degenerate(scores: Float[Tensor, "*rows key"], alpha: float) -> Bool[Tensor, "*rows"]:
    return _relative_sum(_sa_sigmoid_parts(scores, alpha)) <= _VANISHING


def _polyaksum_is_degenerate(scores: Float[Tensor, "*rows key"]) -> Bool[Tensor, "*rows"]:
    return _relative_sum(seen_or_zero(scores)) <= _VANISHING


def _invsquare_is_degenerate(scores: Float[Tensor, "*rows key"]) -> Bool[Tensor, "*rows"]:
    return (scores.abs() <= torch.finfo(scores.dtype).tiny).any(-1)


def _poly2_is_degenerate(scores: Float[Tensor, "*rows key"]) -> Bool[Tensor, "*rows"]:
    return (scores <= 0).all(-1)


_SIGNED = "a sum within 1e-4 of its absolute sum gives zeros; a negative one divides as written and flips signs"

SOFTPICK_TAU = Normalizer(
    name="softpick_tau",
    function=softpick_tau,
    summary="an article's softpick with a threshold, over its absolute sum; not the paper's softpick",
    formula="φ / Σ|φ|, φ = z if z > τ else z − τ·softplus(z − τ)",
    source="ad hoc, unpublished; compare softpick",
    published=False,
    parameters=(Parameter("tau", 1.0, 0.0, 1e4, "the threshold, for which the article gives no value"),),
    row_sum="at most one",
    may_be_negative=True,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    degenerate=_softpick_tau_is_degenerate,
    caveat="an absolute sum of 0 gives zeros",
    support=scored,
)

SA_SIGMOID = Normalizer(
    name="sa_sigmoid",
    function=sa_sigmoid,
    summary="an article's self-adjusting softmax with a sigmoid in it; not the paper's sa_softmax",
    formula="z·σ(αz) / Σ z·σ(αz)",
    source="ad hoc, unpublished; compare sa_softmax",
    published=False,
    parameters=(Parameter("alpha", 1.0, 0.0, 100.0, "the slope of the sigmoid"),),
    row_sum="one or zero",
    may_be_negative=True,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    degenerate=_sa_sigmoid_is_degenerate,
    caveat=_SIGNED,
    support=scored,
)

POLYAKSUM = Normalizer(
    name="polyaksum",
    function=polyaksum,
    summary="an article's scores over their own sum, which can vanish or be negative",
    formula="z / Σ z",
    source="ad hoc, unpublished; compare polynomial",
    published=False,
    row_sum="one or zero",
    may_be_negative=True,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    degenerate=_polyaksum_is_degenerate,
    caveat=_SIGNED,
    support=scored,
)

INVSQUARE = Normalizer(
    name="invsquare",
    function=invsquare,
    summary="an article's inverse squares: the score nearest to zero takes the row, whatever its sign",
    formula="z⁻² / Σ z⁻²",
    source="ad hoc, unpublished",
    published=False,
    row_sum="one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    degenerate=_invsquare_is_degenerate,
    caveat="scores of 0 share the row among themselves, the limit of the formula",
)

POLY2 = Normalizer(
    name="poly2",
    function=poly2,
    summary="an article's squared positive parts over their sum; the published relu2 has no sum",
    formula="[z]₊² / Σ [z]₊²",
    source="ad hoc, unpublished; compare relu2",
    published=False,
    row_sum="one or zero",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=True,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    degenerate=_poly2_is_degenerate,
    caveat="a row without a positive score gives zeros",
    support=positive,
)
