"""Softmax and its relatives by scale, by an extra key, and by the norm that divides it."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.normalizers.base import Normalizer, Parameter


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """e^z / Σ e^z."""
    return torch.softmax(scores, -1)


def sink_logit(scores: Float[Tensor, "*rows key"], s: float) -> Float[Tensor, "*rows key"]:
    """e^z / (e^s + Σ e^z), as softmax(z)·sigmoid(LSE(z) − s): nothing to overflow, whatever the level."""
    level = torch.logsumexp(scores, -1, keepdim=True)
    return torch.softmax(scores, -1) * torch.sigmoid(level - s)


def softmax_n(scores: Float[Tensor, "*rows key"], n: float) -> Float[Tensor, "*rows key"]:
    """e^z / (n + Σ e^z): n further keys, all of score zero and value zero."""
    return sink_logit(scores, _log(n))


def softmax1(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """e^z / (1 + Σ e^z)."""
    return sink_logit(scores, 0.0)


def temperature(scores: Float[Tensor, "*rows key"], t: float) -> Float[Tensor, "*rows key"]:
    """softmax(z / t)."""
    return torch.softmax(scores / t, -1)


def ssmax(
    scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"], s: float
) -> Float[Tensor, "*rows key"]:
    """softmax(s·log n·z), n the number of keys that the row can see."""
    return torch.softmax(scores * _log_length_scale(visible, s), -1)


def p_softmax(scores: Float[Tensor, "*rows key"], p: float) -> Float[Tensor, "*rows key"]:
    """e^z / (Σ e^{pz})^{1/p}, in logarithms."""
    return torch.exp(scores - torch.logsumexp(scores * p, -1, keepdim=True) / p)


def _log(n: float) -> float:
    return math.log(n) if n else -math.inf


def _log_length_scale(visible: Float[Tensor, "*rows 1"], s: float) -> Float[Tensor, "*rows 1"]:
    # log 1 = 0, and 0 · −inf is NaN at the hidden keys of a row that sees one key.
    return (visible.log() * s).clamp_min(torch.finfo(visible.dtype).tiny)


SOFTMAX = Normalizer(
    name="softmax",
    function=softmax,
    summary="the usual one: positive weights that add up to one",
    formula="e^z / Σ e^z",
    source="Vaswani et al. 2017, arXiv 1706.03762",
    published=True,
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    form=lambda visible: (1.0, -math.inf),  # noqa: ARG005 - every form is asked with the number of keys
)

SOFTMAX_N = Normalizer(
    name="softmax_n",
    function=softmax_n,
    summary="softmax beside n silent keys of score zero, so that a head can attend to nothing",
    formula="e^z / (n + Σ e^z)",
    source="github.com/softmax1/Flash-Attention-Softmax-N",
    published=True,
    parameters=(Parameter("n", 1.0, 0.0, 1e6, "how many silent keys"),),
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    form=lambda visible, n: (1.0, _log(n)),  # noqa: ARG005 - every form is asked with the number of keys
)

SOFTMAX1 = Normalizer(
    name="softmax1",
    function=softmax1,
    summary="softmax beside one silent key: exactly softmax times the sigmoid of its log-sum-exp",
    formula="e^z / (1 + Σ e^z)",
    source="Miller 2023, Attention Is Off By One (an essay)",
    published=True,
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    form=lambda visible: (1.0, 0.0),  # noqa: ARG005 - every form is asked with the number of keys
)

SINK_LOGIT = Normalizer(
    name="sink_logit",
    function=sink_logit,
    summary="softmax beside one silent key of a given score, as gpt-oss learns one for each head",
    formula="e^z / (e^s + Σ e^z)",
    source="OpenAI 2025, gpt-oss (its reference implementation)",
    published=True,
    parameters=(Parameter("s", 0.0, -math.inf, 1e4, "the silent key's score"),),
    row_sum="at most one",
    may_be_negative=False,
    shift_invariant=False,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    form=lambda visible, s: (1.0, s),  # noqa: ARG005 - every form is asked with the number of keys
)

TEMPERATURE = Normalizer(
    name="temperature",
    function=temperature,
    summary="softmax made sharper (t < 1) or flatter (t > 1)",
    formula="softmax(z / t)",
    source="common practice",
    published=True,
    parameters=(Parameter("t", 2.0, 1e-4, 1e4, "the temperature"),),
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    form=lambda visible, t: (1 / t, -math.inf),  # noqa: ARG005 - every form is asked with the number of keys
)

SSMAX = Normalizer(
    name="ssmax",
    function=ssmax,
    summary="scalable softmax: sharper the more keys there are, so that attention does not fade with length",
    formula="softmax(s·log n·z), n = visible keys",
    source="Nakanishi 2025, arXiv 2501.19399",
    published=True,
    parameters=(Parameter("s", 0.43, 0.0, 100.0, "the scale, learned for each head in the paper"),),
    row_sum="one",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
    counts_keys=True,
    form=lambda visible, s: (_log_length_scale(visible, s), -math.inf),
)

P_SOFTMAX = Normalizer(
    name="p_softmax",
    function=p_softmax,
    summary="exponentials divided by their p-norm: rows add up to more than one for p > 1, to less for p < 1",
    formula="e^z / (Σ e^{pz})^{1/p}",
    source="Gu et al. 2025, arXiv 2410.10781, appendix D",
    published=True,
    parameters=(Parameter("p", 2.0, 0.1, 100.0, "the order of the norm"),),
    row_sum="any",
    may_be_negative=False,
    shift_invariant=True,
    exact_zeros=False,
    differentiable=True,
    rowwise=True,
    degree=0.0,
)
