"""Normalizers without a denominator: a weight depends on its own score and on the number of keys."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter, scored, seen_or_zero


def sigmoid(
    scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"], b: float, a: float
) -> Float[Tensor, "*rows key"]:
    """σ(z + b − a·log n), n the number of keys that the row can see."""
    return torch.sigmoid(scores + (b - a * visible.log()))


def elu1(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """elu(z) + 1, as e^{min(z,0)} + max(z,0): far below zero it stays e^z and does not round to 0."""
    return scores.clamp_max(0).exp() + scores.relu()


def polynomial(
    scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"], p: int
) -> Float[Tensor, "*rows key"]:
    """z^p / √n, n the number of keys that the row can see."""
    return seen_or_zero(scores) ** p / visible.sqrt()


SIGMOID = Normalizer(
    name="sigmoid",
    function=sigmoid,
    summary="each key for itself, with a bias that makes n equal keys of score zero share about one",
    formula="σ(z + b − a·log n), n = visible keys",
    source="Ramapuram et al. 2024, arXiv 2409.04431 (b = 0, a = 1; its released models: b = −7.62, a = 0)",
    published=True,
    parameters=(
        Parameter("b", 0.0, -1e4, 1e4, "a fixed bias"),
        Parameter("a", 1.0, 0.0, 2.0, "how much of log n is subtracted"),
    ),
    row_sum="any",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=False,
    degree=0.0,
    counts_keys=True,
)

ELU1 = Normalizer(
    name="elu1",
    function=elu1,
    summary="exponential below zero and linear above, never divided",
    formula="elu(z) + 1",
    source="Gu et al. 2025, arXiv 2410.10781",
    published=True,
    row_sum="any",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=False,
    degree=1.0,
)

POLYNOMIAL = Normalizer(
    name="polynomial",
    function=polynomial,
    summary="a power of the score over the root of the number of keys, sign and all",
    formula="z^p / √n, n = visible keys",
    source="Saratchandran et al. 2024, arXiv 2410.18613",
    published=True,
    parameters=(Parameter("p", 3.0, 1.0, 9.0, "the power", whole=True),),
    row_sum="any",
    may_be_negative=True,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=False,
    degree="p",
    counts_keys=True,
    support=scored,
)
