"""What can be done to scores before they are normalized: a bias on the first keys, a window, a decay with distance."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def initial_keys(length: int) -> int:
    """How many leading keys to treat as sinks in a window of that many tokens: 4 + ⌊log2(n/512)⌋, at least 4."""
    return max(4, 4 + math.floor(math.log2(length / 512)))


def slopes(heads: int) -> Float[Tensor, "head"]:
    """ALiBi's slope of each head (arXiv 2108.12409): 2^(-8h/H) for H = 2^m heads, else filled up from twice as many."""
    whole = 2 ** math.floor(math.log2(heads))
    found = [2 ** (-8 * (head + 1) / whole) for head in range(whole)]
    found += [2 ** (-4 * (head + 1) / whole) for head in range(0, 2 * (heads - whole), 2)]
    return torch.tensor(found)


@dataclass(frozen=True)
class Modifier:
    """A change of the scores of one call, by the positions of query and key; combinable with any normalizer.

    * `sink_bias` is added to the scores of the first `initial` real keys; -inf hides them.
    * `window` hides all but the last that many keys, the query's own included; with `keep_sinks` the first `initial`
      keys stay visible: the pattern of StreamingLLM (arXiv 2309.17453), without its new positions.
    * `alibi` lowers scores linearly with distance, by each head's slope.

    An `initial` of None is as many keys as the run that compares with it calls initial.
    """

    initial: int | None = 4
    sink_bias: float | None = None
    window: int | None = None
    keep_sinks: bool = False
    alibi: bool = False

    def __post_init__(self) -> None:
        if self.initial is not None and self.initial < 1:
            raise ValueError(f"expected initial >= 1, got {self.initial}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"expected window >= 1, got {self.window}")
        if self.keep_sinks and self.window is None:
            raise ValueError("expected a window together with keep_sinks, got none")
        if self.sink_bias is not None and not self.sink_bias < math.inf:
            raise ValueError(f"expected a sink_bias below infinity, got {self.sink_bias}")

    @property
    def label(self) -> str:
        """How tables name it; empty where it changes nothing."""
        parts = []
        if self.sink_bias is not None:
            parts.append(f"sink_bias={self.sink_bias:g}")
        if self.window is not None:
            parts.append(f"window={self.window}")
        if self.keep_sinks:
            parts.append("keep_sinks")
        if self.sink_bias is not None or self.keep_sinks:
            parts.append(f"initial={self.initial}")
        return ",".join([*parts, "alibi"] if self.alibi else parts)

    def apply(
        self,
        scores: Float[Tensor, "batch head query key"],
        visible: Bool[Tensor, "#batch #head query key"],
        first: Int[Tensor, "#batch"],
    ) -> Float[Tensor, "batch head query key"]:
        """The changed scores; `first` is the index of the first real key of each row of the batch.

        A query stands where the last key that it can see stands.
        """
        keys = torch.arange(scores.shape[-1], device=scores.device)
        position = torch.where(visible, keys, -1).amax(dim=-1, keepdim=True)
        distance = position - keys
        if self.initial is None:
            raise ValueError("expected a number of initial keys, got None, which means that of a run")
        sinks = (keys - first.to(keys.device)[:, None] < self.initial)[:, None, None]
        if self.alibi:
            slope = slopes(scores.shape[1]).to(scores)[:, None, None]
            scores = scores - slope * distance.clamp(min=0)
        if self.sink_bias is not None:
            scores = scores + torch.where(sinks, self.sink_bias, 0.0).to(scores.dtype)
        if self.window is not None:
            gone = distance >= self.window
            scores = scores.masked_fill(gone & ~sinks if self.keep_sinks else gone, -math.inf)
        return scores
