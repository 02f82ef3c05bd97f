"""Some queries in place of all: a systematic sample of each window's positions, and the error it brings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

REPLICATES = 8
"""Interleaved parts of a sample, of which each is a sample too: how far they differ tells the error of the whole."""


def systematic(length: int, count: int, seed: int) -> Int[Tensor, "query"]:
    """`count` positions from 0 to length - 1 at equal distances, from a random start that `seed` decides."""
    step = length / count
    start = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((torch.arange(count, dtype=torch.float64) + start) * step).long().clamp(max=length - 1)


def replicates(count: int) -> int:
    """Into how many parts a sample of `count` queries is divided."""
    return min(REPLICATES, count)


def sampling_error(influences: Float[Tensor, "part *head"], parts: int, fraction: float) -> Float[Tensor, "*head"]:
    """The standard error that comes from sampling `fraction` of the queries; NaN with fewer than two parts.

    `influences` are those of `accumulate`, window by window, each with its `parts` replicates in turn. A replicate is
    compared with the next one of its window, which stands a step further on: so a trend along the window, which a
    systematic sample follows, counts for the little that it misses. What windows differ in is no part of it, and of a
    sample of everything it is 0.
    """
    if parts < 2:
        return torch.full_like(influences[0], torch.nan)
    steps = influences.reshape(-1, parts, *influences.shape[1:]).diff(dim=1)
    scale = parts / (2 * (parts - 1)) * (1 - fraction)
    error: Tensor = (steps.square().sum(dim=(0, 1)) * scale).sqrt()
    return error
