"""A call of which only the scores are known: what a layer with attention of its own hands to softmax."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.call import Call

NO_SCORE = -1e8
"""Below it nothing is a score: masks write -1e9 and less, and the steepest ALiBi reaches -1e5 on long texts."""

NO_SCORE_OF_PADDING = -5e3
"""The same for padding: old masks write as little as -1e4. A score above it is one, for all that padding should be."""


@dataclass(frozen=True, eq=False)
class Given(Call):
    """Scores that a layer has computed; its queries, keys and values stay inside it, and have a width of 0 here.

    The scores are the bias on products that are 0, so everything that is done with a call can be done with this one.
    Its output is the weights themselves, and the norms of its values are undefined.
    """

    cut: tuple[int, int] = (0, 0)
    """How many keys were left out at either end."""

    def between(self, start: int, stop: int) -> "Given":
        """The same call for the keys start…stop-1 only, where it has no others to see."""
        before, after = self.cut
        part = cast("Given", super().between(start, stop))
        return replace(part, cut=(before + start, after + self.key.shape[2] - stop))

    def output(self, weights: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query every_key"]:
        """The weights of all keys, also those left out, as a copy: it is the layer that applies them."""
        return pad(weights, self.cut)


def given(
    scores: Float[Tensor, "batch head query key"],
    dtype: torch.dtype,
    masked: float,
    real: Bool[Tensor, "#batch key"] | None = None,
) -> Given:
    """The call behind some scores, whose weights the layer expects in `dtype`.

    Hidden are keys after the query, and keys whose score says so: `masked` is the least that the layer's masks may
    write, but of padding, which is not `real`, less is believed.
    """
    batch, heads, queries, keys = scores.shape
    key = torch.arange(keys, device=scores.device)
    # In a step with a cache the last query is the last key.
    query = torch.arange(queries, device=scores.device)[:, None] + (keys - queries)
    floor = scores.new_tensor(max(masked / 2, NO_SCORE))
    if real is not None:
        floor = torch.where(real[:, None, None].to(scores.device), floor, NO_SCORE_OF_PADDING)
    return Given(
        query=scores.new_empty(batch, heads, queries, 0),
        key=scores.new_empty(batch, heads, keys, 0),
        value=scores.new_empty(batch, heads, keys, 0, dtype=dtype),
        scale=1.0,
        mask=(scores > floor) & (key <= query),
        bias=scores,
    )
