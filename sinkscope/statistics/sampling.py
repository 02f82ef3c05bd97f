"""Some queries in place of all: a systematic sample of the positions of each window, and the error it brings."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.statistics.intervals import student

NORMAL = 1.959964
"""Between whose negative and itself 95 % of a normal distribution lies."""

REPLICATES = 8
"""Interleaved parts of a sample, of which each is a sample too: how far they differ tells the error of the whole."""


@dataclass(frozen=True)
class Sample:
    """So many queries of each window. Each window has a random start of its own, from the seed and its index alone."""

    count: int
    seed: int

    def positions(self, length: int, windows: Sequence[int]) -> Int[Tensor, "batch query"]:
        """The queries of these windows of one length, ascending; windows of `count` tokens or fewer are taken whole."""
        return torch.stack([systematic(length, min(self.count, length), self.seed, window) for window in windows])


def systematic(length: int, count: int, seed: int, window: int) -> Int[Tensor, "query"]:
    """`count` positions from 0 to length - 1 at equal distances, from a start that seed and window decide."""
    step = length / count
    places = (torch.arange(count, dtype=torch.float64) + _start(seed, window)) * step
    return places.long().clamp(max=length - 1)


def _start(seed: int, window: int) -> float:
    """From 0 to 1. A hash, because generators with neighbouring seeds may begin alike."""
    return int.from_bytes(hashlib.sha256(f"{seed} {window}".encode()).digest()[:6]) / (1 << 48)


def replicates(count: int) -> int:
    """Into how many parts a sample of `count` queries is divided."""
    return min(REPLICATES, count)


def sampling_error(
    influences: Float[Tensor, "part *head"], parts: int, fractions: Float[Tensor, "window"]
) -> Float[Tensor, "*head"]:
    """The standard error that comes from sampling a fraction of each window's queries; NaN with fewer than two parts.

    `influences` are those of `accumulate`, window by window, each with its `parts` replicates in turn. A replicate is
    compared with the next one of its window, which stands a step further on: so a trend along the window, which a
    systematic sample follows, counts for the little that it misses. The first comparison counts twice, since figures
    change most among a window's first rows and the first replicate has no other neighbour. What windows differ in is
    no part of it, and of a sample of everything it is 0. Windows are sampled independently, so their variances add up.

    An error that few replicates tell is itself uncertain. It is multiplied by Student's quantile ÷ the normal one, so
    that two errors mean as much for one window as for many.
    """
    if parts < 2:
        return torch.full_like(influences[0], torch.nan)
    squares = influences.reshape(-1, parts, *influences.shape[1:]).diff(dim=1).square()
    variances = (squares.sum(dim=1) + squares[:, 0]) / 2
    error: Tensor = torch.tensordot(1 - fractions, variances, 1).sqrt()
    # Neighbours share a replicate, so that half as many are independent.
    degrees = max(1, int((fractions < 1).sum()) * parts // 2)
    return error * student(degrees) / NORMAL
