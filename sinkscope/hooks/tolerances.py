"""How far two computations of the same figures may be apart, for no other reason than rounding."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import Call
from sinkscope.attention.dense import blocks
from sinkscope.attention.swap import PLAIN

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest accepted difference, relative to the largest value: rounding in the model's own dtype."""

PER_SCORE = 2.0
"""Roundings of the largest score that weights may be apart by.

A score s is a sum that is rounded to about eps·|s|, in another order of additions to something else, and an error of δ
in a score is one of δ in its weight, relative to that. Measured on Qwen2 in fp32 with biases of queries and keys from 3
to 200 (|s| from 33 to 150,000, head widths 16, 64 and 128, eager and sdpa): where that is more than TOLERANCES at all,
a layer's output is apart by 0.8 eps·|s| at most, and the logits by 0.3.
"""

MOST = 1e-2
"""No score is so large that more than this is rounding; in half precision TOLERANCES are above it already."""


def tolerance(dtype: torch.dtype, largest_score: float = 0.0) -> float:
    """Largest accepted difference where scores are as large as this."""
    least = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
    return max(least, min(MOST, PER_SCORE * torch.finfo(dtype).eps * largest_score))


@torch.no_grad()
def largest_score(call: Call) -> float:
    """The largest |score| that any query of a call sees."""
    largest = [each.weighed.scores.masked_fill(~each.weighed.visible, 0).abs().amax() for each in blocks(call, PLAIN)]
    return float(torch.stack(largest).max())


def difference(ours: Float[Tensor, "*shape"], theirs: Float[Tensor, "*shape"]) -> float:
    """max|ours - theirs| ÷ max|theirs|; NaN where either has one. Equal infinities are equal, and no largest value."""
    ours, theirs = ours.float(), theirs.float()
    ruled_out = (ours == theirs) & theirs.isinf()
    largest = theirs.abs().masked_fill(ruled_out, 0).max()
    return float((ours - theirs).abs().masked_fill(ruled_out, 0).max() / largest.clamp(min=1e-30))
