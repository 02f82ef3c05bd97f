"""Which normalizer takes softmax's place in a layer, after which change of the scores, and in which heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.normalizers import NORMALIZERS, Modifier, Normalizer

SOFTMAX = NORMALIZERS["softmax"]


@dataclass(frozen=True, eq=False)
class Weighed:
    """Some queries' scores as the normalizer saw them, what they may see, and their weights."""

    scores: Float[Tensor, "batch head query key"]
    visible: Bool[Tensor, "batch #head query key"]
    weights: Float[Tensor, "batch head query key"]
    sink: Float[Tensor, "batch head query"] | None
    """The weight of the learned sink, where the layer has one."""
    degenerate: Bool[Tensor, "batch head query"] | None = None
    """The rows where the normalizer's formula defines nothing; None where that cannot happen."""


@dataclass(frozen=True)
class Swap:
    """A normalizer and a modifier for some heads of a layer (None: all); the other heads keep plain softmax."""

    normalizer: Normalizer = SOFTMAX
    modifier: Modifier | None = None
    heads: frozenset[int] | None = None

    @property
    def label(self) -> str:
        """How tables name it."""
        changed = "" if self.modifier is None else self.modifier.label
        return f"{self.normalizer.spec} + {changed}" if changed else self.normalizer.spec

    @property
    def signed(self) -> bool:
        """Whether a weight may be negative, for all anybody knows."""
        return self.normalizer.may_be_negative is not False

    def weigh(self, part: Call) -> Weighed:
        """The weights of every query of the call."""
        scores, visible = part.scores(), part.visible()
        swapped = self._whole(part, scores, visible)
        if self.heads is None:
            return swapped
        plain = PLAIN._whole(part, scores, visible)
        heads = torch.tensor([head in self.heads for head in range(scores.shape[1])], device=scores.device)
        chosen = heads[:, None, None]
        sink = swapped.sink
        if sink is not None and plain.sink is not None:
            sink = torch.where(chosen[..., 0], sink, plain.sink)
        return Weighed(
            torch.where(chosen, swapped.scores, plain.scores),
            torch.where(chosen, swapped.visible, plain.visible),
            torch.where(chosen, swapped.weights, plain.weights),
            sink,
            None if swapped.degenerate is None else swapped.degenerate & chosen[..., 0],
        )

    def _whole(
        self, part: Call, scores: Float[Tensor, "batch head query key"], seen: Bool[Tensor, "#batch #head query key"]
    ) -> Weighed:
        # Masks are often the same for the whole batch, but the classes of its tokens are not.
        visible = seen.expand(scores.shape[0], *seen.shape[1:])
        if self.modifier is not None:
            scores = self.modifier.apply(scores, seen, part.first)
            visible = scores > -torch.inf
        row, extra = scores, 0
        if part.sink is not None:
            logit = part.sink[..., None].to(scores.dtype).expand(*scores.shape[:3], 1)
            row, extra = torch.cat([scores, logit], dim=-1), 1
        weights = self.normalizer.weigh(row, extra=extra)
        degenerate = None
        if self.normalizer.degenerate is not None:
            degenerate = self.normalizer.degenerate_rows(row, extra=extra)
        if part.sink is None:
            return Weighed(scores, visible, weights, None, degenerate)
        return Weighed(scores, visible, weights[..., :-1], weights[..., -1], degenerate)


PLAIN = Swap()
"""Softmax in every head."""
