"""Which keys some queries see, and along which stretches of keys any is hidden: nothing else need be touched."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST_STRETCHES = 4
"""Filling more stretches than this one by one takes longer than filling all that lies between them."""


@dataclass(frozen=True, eq=False)
class Sight:
    """Who sees whom, as small as the mask is: heads that see the same share an axis of one, and so do batch rows."""

    visible: Bool[Tensor, "#batch #head query key"]

    @cached_property
    def hidden(self) -> Bool[Tensor, "#batch #head query key"]:
        """The contrary of `visible`."""
        return ~self.visible

    @cached_property
    def blind(self) -> Bool[Tensor, "#batch #head query 1"] | None:
        """The queries that see nothing; None where there is none."""
        found = ~_any(self.visible, -1)[..., None]
        return found if bool(found.any()) else None

    @cached_property
    def count(self) -> Float[Tensor, "#batch #head query 1"]:
        """How many keys each query sees."""
        return self.visible.view(torch.uint8).sum(dim=-1, keepdim=True, dtype=torch.int32).float()

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The first key that any query sees, and the one behind the last; never empty."""
        seen = _any(self.visible.flatten(0, 2), 0).nonzero()
        return (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 1)

    @cached_property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Where along the keys any query has one hidden, as (start, stop)."""
        partly = _any(self.hidden.flatten(0, 2), 0).to(torch.int8)
        edges = torch.nn.functional.pad(partly, (1, 1)).diff().nonzero()[:, 0].tolist()
        found = tuple(zip(edges[::2], edges[1::2], strict=True))
        return found if len(found) <= MOST_STRETCHES else ((edges[0], edges[-1]),)

    def of_heads(self, heads: list[int]) -> "Sight":
        """The sight of these heads, in this order."""
        return self if self.visible.shape[1] == 1 else Sight(self.visible[:, heads])

    def fill_(
        self, tensor: Float[Tensor, "batch head query key"], value: float
    ) -> Float[Tensor, "batch head query key"]:
        """Put the value at hidden keys, in place: a masked fill of everything takes as long as four exponentials."""
        for start, stop in self.stretches:
            tensor[..., start:stop].masked_fill_(self.hidden[..., start:stop], value)
        return tensor

    def erased(self, weights: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
        """The weights with 0 at hidden keys, in place unless a gradient may need them as they are."""
        if weights.requires_grad:
            return weights.masked_fill(self.hidden, 0)
        # An expanded tensor is one number in many places.
        return self.fill_(weights.clone() if 0 in weights.stride() else weights, 0.0)


def _any(flags: Bool[Tensor, "*axes"], axis: int) -> Bool[Tensor, "*rest"]:
    """As torch's own, in a twentieth of its time on the CPU."""
    return flags.view(torch.uint8).amax(dim=axis).view(torch.bool)
