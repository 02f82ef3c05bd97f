"""Which normalizer takes softmax's place in a layer, after which change of the scores, and in which heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.normalizers import NORMALIZERS, Modifier, Normalizer

SOFTMAX = NORMALIZERS["softmax"]


@dataclass(frozen=True)
class Swap:
    """A normalizer and a modifier for some heads of a layer (None: all); the other heads keep plain softmax."""

    normalizer: Normalizer = SOFTMAX
    modifier: Modifier | None = None
    heads: frozenset[int] | None = None

    @property
    def signed(self) -> bool:
        """Whether a weight may be negative, for all anybody knows."""
        return self.normalizer.may_be_negative is not False

    def weights(
        self, part: Call
    ) -> tuple[Bool[Tensor, "batch #head query key"], Float[Tensor, "batch head query key"], Tensor | None]:
        """What each query may see, its weights, and those of the learned sink, [batch head query], if there is one."""
        scores, seen = part.scores(), part.visible()
        if self.heads is None:
            return self._weigh(part, scores, seen)
        chosen = torch.tensor([head in self.heads for head in range(scores.shape[1])], device=scores.device)
        plain, swapped = Swap()._weigh(part, scores, seen), self._weigh(part, scores, seen)  # noqa: SLF001 - of its own class
        visible = torch.where(chosen[:, None, None], swapped[0], plain[0])
        weights = torch.where(chosen[:, None, None], swapped[1], plain[1])
        if plain[2] is None or swapped[2] is None:
            return visible, weights, None
        return visible, weights, torch.where(chosen[:, None], swapped[2], plain[2])

    def _weigh(
        self, part: Call, scores: Float[Tensor, "batch head query key"], seen: Bool[Tensor, "#batch #head query key"]
    ) -> tuple[Bool[Tensor, "batch #head query key"], Float[Tensor, "batch head query key"], Tensor | None]:
        # Masks are often the same for the whole batch, but the classes of its tokens are not.
        visible = seen.expand(scores.shape[0], *seen.shape[1:])
        if self.modifier is not None:
            scores = self.modifier.apply(scores, seen, part.first)
            visible = scores > -torch.inf
        if part.sink is None:
            return visible, self.normalizer.weigh(scores), None
        logit = part.sink[..., None].to(scores.dtype).expand(*scores.shape[:3], 1)
        weights = self.normalizer.weigh(torch.cat([scores, logit], dim=-1), extra=1)
        return visible, weights[..., :-1], weights[..., -1]
