"""The reductions that no weight is needed for: norms of values and of head outputs, as they are and projected."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.call import Call


def norms(
    call: Call, needs: frozenset[str], output: Float[Tensor, "batch query head value_width"] | None
) -> dict[str, Tensor]:
    """What is needed of each key's value, for each query head, and of each query's output, by the record's names.

    Nothing where the layer keeps its values to itself: then they have a width of 0. Nothing projected where the call
    does not know its output projection.
    """
    if call.value.shape[-1] == 0:
        return {}
    found: dict[str, Tensor] = {}
    if needs & {"value_norm", "value_drain"}:
        found |= _of_values(call, needs)
    if needs & {"output_norm", "output_largest", "projected_norm"} and output is not None:
        found |= _of_outputs(call, needs, output.float().transpose(1, 2))
    return found


def _of_values(call: Call, needs: frozenset[str]) -> dict[str, Tensor]:
    found, value = {}, call.value.float()
    if "value_norm" in needs:
        each = torch.linalg.vector_norm(value, dim=-1)
        found["value_norm"] = each.repeat_interleave(call.repeats, dim=1)
    if "value_drain" in needs and call.gram is not None:
        found["value_drain"] = _projected(value.repeat_interleave(call.repeats, dim=1), call.gram)
    return found


def _of_outputs(
    call: Call, needs: frozenset[str], output: Float[Tensor, "batch head query value_width"]
) -> dict[str, Tensor]:
    found = {}
    if "output_norm" in needs:
        found["output_norm"] = torch.linalg.vector_norm(output, dim=-1)
    if "output_largest" in needs:
        found["output_largest"] = output.abs().amax(dim=-1)
    if "projected_norm" in needs and call.gram is not None:
        found["projected_norm"] = _projected(output, call.gram)
    return found


def _projected(
    vectors: Float[Tensor, "batch head row value_width"], gram: Float[Tensor, "head value_width value_width"]
) -> Float[Tensor, "batch head row"]:
    """‖W_O·x‖ of each vector x of a head."""
    # Rounding may leave less than 0 of a vector that the projection takes to 0.
    return ((vectors @ gram) * vectors).sum(dim=-1).clamp(min=0).sqrt()
