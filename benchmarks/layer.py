"""One attention layer of SmolLM2-135M's shape, with random queries, keys and values."""

import torch
from torch import Tensor

from sinkscope.attention import Call, Question
from sinkscope.metrics import METRICS

HEADS, GROUPS, WIDTH = 9, 3, 64
PUNCTUATED = 9
"""Every ninth token is punctuation: about its share in prose."""


def call(length: int) -> Call:
    """A causal call."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, length, WIDTH) for heads in (HEADS, GROUPS, GROUPS))
    return Call(query=query, key=key, value=value, scale=WIDTH**-0.5, causal=True)


def sdpa(each: Call) -> Tensor:
    """What the model itself would run."""
    found = torch.nn.functional.scaled_dot_product_attention(
        each.query, each.key, each.value, is_causal=True, enable_gqa=True
    )
    return found.transpose(1, 2)


def question(length: int) -> Question:
    """Everything that `sinkscope measure` asks by default."""
    place = torch.arange(length)[None]
    keep, first = torch.ones_like(place, dtype=torch.bool), place == 0
    punctuation = (place % PUNCTUATED == PUNCTUATED - 1) & ~first
    none = torch.zeros_like(keep)
    marked = {
        "first": first,
        "special": none,
        "punctuation": punctuation,
        "newline": none,
        "other": ~(first | punctuation),
        "initial": place < 4,
        "bos": none,
    }
    needs = frozenset({"received"}).union(*(metric.needs for metric in METRICS.values() if not metric.optional))
    return Question(keep=keep, rows=keep & ~first, marked=marked, needs=needs)
