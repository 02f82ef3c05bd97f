"""Which normalizer takes softmax's place in a layer, after which change of the scores, and in which heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.attention.sight import Sight
from sinkscope.normalizers import NORMALIZERS, Modifier, Normalizer

SOFTMAX = NORMALIZERS["softmax"]


@dataclass(frozen=True, eq=False)
class Weighed:
    """Some queries' scores as the normalizer saw them, what they may see, and their weights, 0 at hidden keys."""

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
        """Whether a weight may be negative, as far as is known."""
        return self.normalizer.may_be_negative is not False

    def zeros(self, part: Call, found: Weighed) -> Int[Tensor, "batch head query"]:
        """How many visible keys get no weight by the normalizer's own formula, of the weights of this call.

        A weight that is 0 only because fp32 holds nothing smaller is not counted where the card tells them apart.
        """
        scores, weights = found.scores, found.weights
        if part.sink is not None and found.sink is not None:
            logit = part.sink[..., None].to(scores.dtype).expand(*scores.shape[:3], 1)
            scores, weights = torch.cat([scores, logit], dim=-1), torch.cat([weights, found.sink[..., None]], dim=-1)
        supported = self.normalizer.supported(scores, weights)[..., : found.weights.shape[-1]]
        if self.heads is not None:
            # The other heads keep softmax, which gives every key a weight.
            others = [head for head in range(scores.shape[1]) if head not in self.heads]
            supported = supported.index_fill(1, torch.tensor(others, device=scores.device, dtype=torch.int64), 1)
        return (found.visible & ~supported).sum(dim=-1)

    def visible(self, part: Call) -> Bool[Tensor, "#batch #head query key"]:
        """What each query sees once the modifier has hidden keys."""
        if self.modifier is None:
            return part.sight.visible
        modified = _modified(self.modifier, part).visible
        if self.heads is None:
            return modified
        chosen = [head in self.heads for head in range(part.query.shape[1])]
        return torch.where(torch.tensor(chosen, device=modified.device)[:, None, None], modified, part.sight.visible)

    def weigh(self, part: Call) -> Weighed:
        """The weights of every query of the call."""
        scores = part.scores()
        count = scores.shape[1]
        chosen = [head for head in range(count) if self.heads is None or head in self.heads]
        if len(chosen) == count:
            return self._of(part, scores)
        others = [head for head in range(count) if head not in chosen]
        if not chosen:
            return PLAIN._of(part, scores)
        order = torch.tensor(chosen + others, device=scores.device).argsort()
        return _merged(self._of(part, scores, chosen), PLAIN._of(part, scores, others), order)

    def _of(
        self, part: Call, scores: Float[Tensor, "batch all_heads query key"], heads: list[int] | None = None
    ) -> Weighed:
        """The weights in these heads, in their order."""
        sight, logit = part.sight, part.sink
        if self.modifier is not None:
            scores = self.modifier.apply(scores, sight.visible, part.first)
            sight = _modified(self.modifier, part)
        if heads is not None:
            scores, sight = scores[:, heads], sight.of_heads(heads)
            logit = None if logit is None else logit[:, heads]
        # A row of nothing but -inf is NaN to every softmax: compute it on zeros, erase it later.
        row = scores if sight.blind is None else scores.masked_fill(sight.blind, 0)
        if row is scores and self.normalizer.row_sum is None:
            # A function from outside may write over its scores, or return them.
            row = scores.clone()
        if logit is not None:
            row = torch.cat([row, logit[..., None].to(row.dtype).expand(*row.shape[:3], 1)], dim=-1)
        count = sight.count.clamp(min=1).to(row.dtype).expand(*row.shape[:3], 1)
        degenerate = None
        if self.normalizer.degenerate is not None:
            degenerate = self.normalizer.degenerate(row, **self.normalizer.settings)
            degenerate = degenerate if sight.blind is None else degenerate & ~sight.blind[..., 0]
        weights = self.normalizer.bare(row, count)
        sink = None
        if logit is not None:
            weights, sink = weights[..., :-1], weights[..., -1]
            sink = sink if sight.blind is None else sink.masked_fill(sight.blind[..., 0], 0)
        visible = sight.visible.expand(scores.shape[0], *sight.visible.shape[1:])
        return Weighed(scores, visible, sight.erased(weights), sink, degenerate)


PLAIN = Swap()
"""Softmax in every head."""


def _modified(modifier: Modifier, part: Call) -> Sight:
    """Who sees whom under a modifier, from its effect on scores of zero: every head has the same windows."""
    visible = part.sight.visible
    flat = torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, -torch.inf)
    flat = flat.expand(part.query.shape[0], *flat.shape[1:])
    return Sight(modifier.apply(flat, visible, part.first) > -torch.inf)


def _merged(swapped: Weighed, plain: Weighed, order: Int[Tensor, "head"]) -> Weighed:
    """The heads of both, put in order."""

    def both(left: Tensor, right: Tensor) -> Tensor:
        return torch.cat([left, right], dim=1)[:, order]

    def wide(found: Weighed) -> Tensor:
        return found.visible.expand_as(found.scores)

    return Weighed(
        both(swapped.scores, plain.scores),
        both(wide(swapped), wide(plain)),
        both(swapped.weights, plain.weights),
        None if swapped.sink is None or plain.sink is None else both(swapped.sink, plain.sink),
        None
        if swapped.degenerate is None
        else both(swapped.degenerate, torch.zeros_like(plain.weights[..., 0], dtype=torch.bool)),
    )
