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

    `influences` are those of `accumulate`, window by window, each with its `parts` replicates in turn. Replicates are
    compared within their window, so what windows differ in is no part of it. Of a sample of everything it is 0. The
    positions of a systematic sample lie farther apart in a replicate than in the whole, so it is rather too large.
    """
    if parts < 2:
        return torch.full_like(influences[0], torch.nan)
    within = influences.reshape(-1, parts, *influences.shape[1:])
    within = within - within.mean(dim=1, keepdim=True)
    error: Tensor = (within.square().sum(dim=(0, 1)) * (parts / (parts - 1)) * (1 - fraction)).sqrt()
    return error
