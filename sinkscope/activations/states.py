"""The output of a module over a batch of windows, and what several figures want to know of it, computed once."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.activations.moments import Swept, kurtosis, pooled, swept

Pair = tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]
"""Sum and count of a figure in each window."""

TOP = 3
"""How many of the largest entries are told apart."""


@dataclass(frozen=True, eq=False)
class Entries:
    """The TOP largest entries of each window by |x|, the largest first: signed values, and where they are."""

    values: Float[Tensor, "batch top"]
    positions: Int[Tensor, "batch top"]
    dimensions: Int[Tensor, "batch top"]


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states in fp32, and which positions are real tokens; each window has at least one.

    What is said of a token is of no meaning on padding, unless it says otherwise.
    """

    values: Float[Tensor, "batch position width"]
    keep: Bool[Tensor, "batch position"]

    @cached_property
    def first(self) -> Bool[Tensor, "batch position"]:
        """The first real token of each window."""
        return self.keep & (self.keep.cumsum(-1) == 1)

    @cached_property
    def swept(self) -> Swept:
        """What one pass over the states tells of each token."""
        return swept(self.values)

    @cached_property
    def largest(self) -> Float[Tensor, "batch position"]:
        """Each token's max|x|; -1 on padding."""
        return torch.where(self.keep, torch.maximum(self.swept.highest, -self.swept.lowest), -1)

    @cached_property
    def finite(self) -> Bool[Tensor, "batch"]:
        """Whether every entry of a window's tokens is a finite number."""
        return self.largest.amax(-1).isfinite()

    @cached_property
    def whole(self) -> Float[Tensor, "batch 5"]:
        """The moments of all entries of each window, tokens and features together."""
        return pooled(torch.where(self.keep[..., None], self.swept.moments, 0))

    @cached_property
    def norms(self) -> Float[Tensor, "batch position"]:
        """Each token's ‖x‖₂."""
        count, mean, second, _, _ = self.swept.moments.unbind(-1)
        return (second + count * mean.square()).sqrt()

    @cached_property
    def kurtoses(self) -> Float[Tensor, "batch position"]:
        """The kurtosis of each token's entries; NaN where all are equal."""
        return kurtosis(self.swept.moments)

    @property
    def median(self) -> Float[Tensor, "batch"]:
        """The median |x| of each window; the lower of the two middle ones where their number is even."""
        return self.typical[:, 0]

    @property
    def mean_size(self) -> Float[Tensor, "batch"]:
        """The mean |x| of each window."""
        return self.typical[:, 1]

    @cached_property
    def typical(self) -> Float[Tensor, "batch 2"]:
        """Median and mean of the |x| of each window, which exist one window at a time; NaN where one is not finite."""
        found = []
        for values, finite in zip(self.real(), self.finite.tolist(), strict=True):
            sizes = values.abs().flatten()
            mean = sizes.mean()
            found.append(torch.stack([median(sizes), mean]) if finite else values.new_full((2,), torch.nan))
        return torch.stack(found)

    @cached_property
    def top(self) -> Entries:
        """The largest entries of each window."""
        positions, width = self.values.shape[1:]
        # The largest entries of all are among those of the tokens that have the largest.
        held, tokens = self.largest.topk(min(TOP, positions), dim=1)
        rows = self.values.gather(1, tokens[..., None].expand(-1, -1, width))
        flat = torch.where(held[..., None] < 0, -1, rows.abs()).flatten(1)
        index = flat.topk(min(TOP, flat.shape[1]), dim=1).indices
        token, dimension = tokens.gather(1, index // width), index % width
        windows = torch.arange(len(token), device=token.device)[:, None]
        return Entries(self.values[windows, token, dimension], token, dimension)

    def real(self) -> Iterator[Float[Tensor, "token width"]]:
        """The states of each window's tokens, without its padding."""
        # Choosing all of them by a mask would cost a copy.
        full = self.keep.all(-1).tolist()
        rows = zip(self.values, self.keep, full, strict=True)
        return (values if all_of_it else values[keep] for values, keep, all_of_it in rows)

    def over(self, values: Float[Tensor, "batch position"], tokens: Bool[Tensor, "batch position"]) -> Pair:
        """Sum and count over the tokens that are marked."""
        # where, not a product: tokens that are not marked may hold anything, NaN included.
        return torch.where(tokens, values, 0).sum(-1).to(self.exact), tokens.sum(-1).to(self.exact)

    @property
    def exact(self) -> torch.dtype:
        """The dtype of sums: fp64 where the device has it."""
        return self.swept.moments.dtype


def median(values: Float[Tensor, "entry"]) -> Float[Tensor, ""]:
    """torch.median of finite values, which it may reorder; a good deal sooner on the CPU.

    numpy's partition is vectorised there, and torch's selection is not.
    """
    if values.device.type != "cpu":
        return values.median()
    middle = (values.numel() - 1) // 2
    values.numpy().partition(middle)
    return values[middle].clone()
