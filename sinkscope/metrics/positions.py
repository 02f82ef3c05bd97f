"""Figures with a position in them: the mass each key receives, and the first token's mass by query position."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.statistics.accumulate import Sums

RANKED_FROM = 32
"""A key is ranked by received mass only where at least this many later queries can see it."""


def bin_edges(length: int) -> list[int]:
    """Query positions 1, 2, 3, 4, 6, 8, 12, … up to `length`, two bins an octave; bin b is [edge b, edge b+1)."""
    edges = [1, 2, 3]
    while edges[-1] < length:
        edges.append(edges[-2] * 2)
    return [*(edge for edge in edges if edge < length), length]


def first_mass_by_position(reductions: Reductions, edges: list[int]) -> Sums:
    """The mass on the first token, [batch, head, bin], by how far behind it the query stands.

    A row that cannot see the first token counts in no bin.
    """
    first = reductions.column("first")
    rows = reductions.counted() & reductions.seeing_class()[..., first]
    values = torch.where(rows, reductions.mass[..., first], 0).double()
    distance = reductions.question.before
    bins = torch.bucketize(distance, torch.tensor(edges[1:-1], device=distance.device), right=True)
    member = torch.nn.functional.one_hot(bins, len(edges) - 1).double()
    total = values @ member
    return total, (rows.double() @ member).expand_as(total)


@dataclass
class Received:
    """What each key of each window receives: the model's mean over heads, and the head that gives it most.

    A head enters a key's mean where at least one later query can see the key, and can be its top head where at least
    RANKED_FROM can. `fewest` is the smallest number of later queries among the heads of the mean.
    """

    total: Float[Tensor, "window key"]
    heads: Int[Tensor, "window key"]
    fewest: Float[Tensor, "window key"]
    top: Float[Tensor, "window key"]
    top_layer: Int[Tensor, "window key"]
    top_head: Int[Tensor, "window key"]

    @classmethod
    def empty(cls, windows: int, length: int) -> "Received":
        """Nothing received yet."""
        shape = (windows, length)
        return cls(
            total=torch.zeros(shape, dtype=torch.float64),
            heads=torch.zeros(shape, dtype=torch.int64),
            fewest=torch.full(shape, torch.inf, dtype=torch.float64),
            top=torch.full(shape, -torch.inf, dtype=torch.float64),
            top_layer=torch.full(shape, -1),
            top_head=torch.full(shape, -1),
        )

    def add(self, windows: Sequence[int], layer: int, reductions: Reductions) -> None:
        """Take in one call's reductions for these windows, which begin at column 0 and are of one length."""
        if reductions.received is None or reductions.receivers is None:
            raise ValueError("expected reductions with received mass, got none")
        received = reductions.received.cpu().double()
        receivers = reductions.receivers.cpu().double().expand_as(received)
        figure = received / receivers.clamp(min=1)
        seen = receivers > 0
        at = torch.tensor(windows)[:, None], torch.arange(figure.shape[-1])
        self.total[at] += (figure * seen).sum(dim=1)
        self.heads[at] += seen.sum(dim=1)
        fewest = receivers.masked_fill(~seen, torch.inf).amin(dim=1)
        self.fewest[at] = torch.minimum(self.fewest[at], fewest)
        best, head = figure.masked_fill(receivers < RANKED_FROM, -torch.inf).max(dim=1)
        better = best > self.top[at]
        self.top[at] = torch.where(better, best, self.top[at])
        self.top_layer[at] = torch.where(better, layer, self.top_layer[at])
        self.top_head[at] = torch.where(better, head, self.top_head[at])

    def mean(self) -> Float[Tensor, "window key"]:
        """The unweighted mean over heads; NaN where no later query of any head can see the key."""
        return self.total / self.heads
