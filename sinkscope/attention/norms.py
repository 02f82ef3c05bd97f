"""The reductions that no weight is needed for: norms of values and of head outputs."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.call import Call


def norms(
    call: Call, needs: frozenset[str], output: Float[Tensor, "batch query head value_width"] | None
) -> dict[str, Tensor]:
    """`value_norm` of each key for each query head and `output_norm` of each query, as far as they are needed.

    Neither where the layer keeps its values to itself: then they have a width of 0.
    """
    found: dict[str, Tensor] = {}
    if call.value.shape[-1] == 0:
        return found
    if "value_norm" in needs:
        each = torch.linalg.vector_norm(call.value.float(), dim=-1)
        found["value_norm"] = each.repeat_interleave(call.repeats, dim=1)
    if "output_norm" in needs and output is not None:
        found["output_norm"] = torch.linalg.vector_norm(output.float(), dim=-1).transpose(1, 2)
    return found
