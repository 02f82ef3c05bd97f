"""Attention calls whose weights are written down by hand, and the questions asked of them."""

import torch

from sinkscope.attention import OPTIONAL, Call, Question, dense
from sinkscope.attention.swap import Swap
from sinkscope.normalizers import Normalizer

AS_GIVEN = Normalizer(
    name="as_given",
    function=lambda scores: scores.masked_fill(scores == -torch.inf, 0),
    summary="the scores themselves",
    formula="w = s",
    source="tests",
    published=False,
    may_be_negative=True,
)
"""With it a call's weights are its scores, and those of `written` are what was written."""


def written(weights, *, visible=None, value=None, sink=None):
    """A call whose scores are these weights [batch head query key]; causal unless `visible` says what is seen."""
    batch, heads, queries, keys = weights.shape
    key = torch.eye(keys, dtype=weights.dtype).expand(batch, heads, keys, keys)
    seen = torch.ones(queries, keys, dtype=torch.bool).tril()[None, None] if visible is None else visible
    return Call(weights, key, key if value is None else value, 1.0, mask=seen, sink=sink)


def asked(keep, *, needs=OPTIONAL, epsilon=0.3, **marked):
    """A question whose classes are `first` and, unless others are given, `other`."""
    first = keep & (keep.long().cumsum(-1) == 1)
    classes = {"first": first} | (marked or {"other": keep & ~first})
    return Question(keep, keep & ~first, classes, needs, epsilon)


def real(batch, length):
    """Nothing but real tokens."""
    return torch.ones(batch, length, dtype=torch.bool)


def reduced(weights, question=None, **parts):
    """The reductions of weights written by hand."""
    batch, _, queries, _ = weights.shape
    asks = asked(real(batch, queries)) if question is None else question
    return dense.attend_and_reduce(written(weights, **parts), Swap(AS_GIVEN), asks)[1]
