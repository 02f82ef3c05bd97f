"""The distribution of each head's log-sum-exp, which says what softmax1 and a sink logit would do to it."""

import math

import torch
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.statistics.accumulate import Sums

EDGES = (-math.inf, -16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
"""Level b is [edge b, edge b+1); softmax1 keeps sigmoid(LSE) of a row: 0.02 at -4, 0.5 at 0, 0.98 at 4."""


def share_by_level(reductions: Reductions) -> Sums:
    """How many rows have their log-sum-exp in each level, [batch head level], over all rows that count."""
    if reductions.lse is None:
        raise ValueError("expected reductions with log-sum-exp, got none")
    rows = reductions.counted().double().expand_as(reductions.lse)
    edges = torch.tensor(EDGES[1:-1], dtype=reductions.lse.dtype, device=reductions.lse.device)
    level = torch.bucketize(reductions.lse, edges, right=True)
    member: Tensor = torch.nn.functional.one_hot(level, len(EDGES) - 1).double()
    counts = (member * rows[..., None]).sum(dim=2)
    return counts, rows.sum(dim=2)[..., None].expand_as(counts)
