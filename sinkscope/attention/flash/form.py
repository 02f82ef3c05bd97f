"""A call as a form of softmax: what scales its scores, and what beside its keys takes a share of each row."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.band import Band, band
from sinkscope.attention.call import Call
from sinkscope.attention.swap import Swap


@dataclass(frozen=True, eq=False)
class SoftmaxForm:
    """A call whose weights are exp(scale·z) / (Σ exp(scale·z) + exp(silent)), its mask a band."""

    call: Call
    band: Band
    keys: Float[Tensor, "batch 1 query"]
    """How many keys a query sees."""
    scale: Float[Tensor, "#batch #head #query"] | float = 1.0
    silent: Float[Tensor, "#batch #head #query"] | None = None
    """The log of all that a row's denominator holds beside its keys; None where that is nothing."""
    logit: Float[Tensor, "#batch #head #query"] | None = None
    """The part of it that is the layer's learned sink, scaled."""

    @property
    def query(self) -> Float[Tensor, "batch head query width"]:
        """The queries in fp32, scaled so that their products with keys are what softmax gets."""
        scale = self.scale if isinstance(self.scale, float) else self.scale[..., None]
        return self.call.query.float() * (self.call.scale * scale)

    def gate(self, lse: Float[Tensor, "batch head query"]) -> Float[Tensor, "batch head query"]:
        """What a row of weights adds up to: 0 where it sees nothing."""
        if self.silent is None:
            return (self.keys > 0).to(lse.dtype).expand_as(lse)
        return torch.sigmoid(lse - self.silent).masked_fill(self.keys == 0, 0)

    def sink_mass(self, lse: Float[Tensor, "batch head query"]) -> Float[Tensor, "batch head query"] | None:
        """The weight of the learned sink, where the layer has one."""
        if self.silent is None or self.logit is None:
            return None
        return (self.logit - torch.logaddexp(lse, self.silent)).exp().masked_fill(self.keys == 0, 0)


def softmax_form(call: Call, swap: Swap) -> SoftmaxForm | str:
    """The call under a swap as this path takes it; else, in words, why it cannot."""
    form = swap.normalizer.form
    if form is None or swap.normalizer.degenerate is not None:
        return f"{swap.normalizer.name} is not softmax with another scale, constant or sink"
    found = _reason(call, swap) or band(call)
    if isinstance(found, str):
        return found
    low, high = found.reach(call.query.device)
    keys = (high - low).float()[:, None]
    scale, level = form(keys.clamp(min=1)[..., None], **swap.normalizer.settings)
    scale = scale[..., 0] if isinstance(scale, Tensor) else scale
    silent = None if level == -math.inf else keys.new_full((1, 1, 1), level)
    if swap.heads is not None:
        heads = [head in swap.heads for head in range(call.query.shape[1])]
        chosen = torch.tensor(heads, device=keys.device)[None, :, None]
        if isinstance(scale, Tensor) or scale != 1:
            scale = torch.where(chosen, scale, 1.0)
        silent = None if silent is None else torch.where(chosen, silent, -torch.inf)
    if call.sink is None:
        return SoftmaxForm(call, found, keys, scale, silent)
    logit = call.sink.float() * scale
    return SoftmaxForm(call, found, keys, scale, logit if silent is None else torch.logaddexp(silent, logit), logit)


def _reason(call: Call, swap: Swap) -> str | None:
    tensors = (call.query, call.key, call.value, call.sink)
    wanted = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors)
    reasons = {
        "scores are modified": swap.modifier is not None,
        "scores are soft-capped": call.softcap is not None,
        "scores have a position bias": call.bias is not None,
        "there is dropout": call.dropout > 0,
        "the model is in double precision": call.query.dtype == torch.float64,
        "gradients are wanted": wanted,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
