"""Whether a difference is rounding: looked at layer by layer, and by the size of the scores, once one is too large."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Site, dense
from sinkscope.hooks.forward import logits
from sinkscope.hooks.outside import Seam, not_of_tokens
from sinkscope.hooks.tolerances import difference, largest_score, tolerance


def is_rounding(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], seam: Seam, dtype: torch.dtype, delta: float
) -> bool:
    """Whether only rounding tells logits apart by `delta`: each layer's output is the one we give.

    In half precision a router of experts near a tie makes a large difference of the last bit of its input. Elsewhere
    large scores explain as much of a difference as their own rounding makes.
    """
    near, largest = [], [0.0]

    def compare(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        output = own()
        if not_of_tokens(call, ids.shape[1]) is None:
            largest.append(largest_score(call))
            near.append(difference(dense.attend(call), output) <= tolerance(dtype, largest[-1]))
        return output

    with seam(model, compare):
        logits(model, ids)
    half = dtype in (torch.float16, torch.bfloat16)
    return all(near) and (half or delta <= tolerance(dtype, max(largest)))


def widened(model: PreTrainedModel, ids: Int[Tensor, "batch position"], seam: Seam, dtype: torch.dtype) -> float:
    """The tolerance for a text by the size of the scores that its layers see, which takes a forward."""
    largest = [0.0]

    def see(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not_of_tokens(call, ids.shape[1]) is None:
            largest.append(largest_score(call))
        return own()

    with seam(model, see):
        logits(model, ids)
    return tolerance(dtype, max(largest))
