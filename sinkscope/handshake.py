"""Before a model is measured, it is shown that what would be measured is what the model computes."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Site, dense
from sinkscope.errors import NothingObservedError, UnsupportedModelError
from sinkscope.forward import logits
from sinkscope.predictions import can_be_chunked
from sinkscope.probe import probed, served

TOKENS = 17
"""A prime, so that nothing that is blocked or grouped can fit by chance."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest accepted difference, relative to the largest value: rounding in the model's own dtype."""


@dataclass
class Handshake:
    """What a short forward showed: the token-to-token calls, the others by name, and the identity swap's delta."""

    delta: float = 0.0
    sites: list[Site] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    """Whether the model's head alone makes its logits, so that they need not exist all at once."""


def handshake(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Handshake:
    """Run up to TOKENS of the user's own tokens natively, observed, and with softmax replaced by our own.

    Raises UnsupportedModelError, naming the class and the reason, unless token-to-token calls were seen, observation
    left the logits bit-equal, and the replaced logits agree within TOLERANCES.
    """
    ids = ids[:1, :TOKENS]
    keep = torch.ones_like(ids, dtype=torch.bool)
    found = Handshake()

    def see(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        reason = not_of_tokens(call, ids.shape[1])
        if reason is None:
            found.sites.append(site)
        else:
            found.left_out[site.name] = reason
        return own()

    def replace(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        return own() if not_of_tokens(call, ids.shape[1]) else dense.attend(call)

    with served(model):
        native = logits(model, ids, keep)
        try:
            with probed(model, see):
                observed = logits(model, ids, keep)
        except NothingObservedError:
            raise _unsupported(model, "none of its layers uses transformers' attention interface") from None
        if not found.sites:
            raise _unsupported(model, f"none of its attention is from token to token ({found.left_out})")
        with probed(model, replace):
            replaced = logits(model, ids, keep)
    if not torch.equal(native, observed):
        raise _unsupported(model, "its logits change from one forward to the next, or under observation")
    found.chunked = can_be_chunked(model, ids, native)
    found.delta = difference(replaced, native)
    if not found.delta <= TOLERANCES[native.dtype]:
        raise _unsupported(model, f"its layers do more than softmax attention (relative difference {found.delta:.1e})")
    return found


def not_of_tokens(call: Call, tokens: int) -> str | None:
    """Why a call is not attention from each token to the tokens, or None if it is."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    return None if queries == keys == tokens else f"{queries} queries on {keys} keys for {tokens} tokens"


def agreement(
    call: Call, output: Float[Tensor, "batch query head value_width"], keep: Bool[Tensor, "batch query"]
) -> float:
    """How far a layer's own output is from the weights we reduce, on a few of its queries, relative to the largest.

    The short handshake cannot reach windows, top-k selections or chunks longer than itself. This can, at the price of
    four queries a call.
    """
    length = call.length
    found = []
    for start in sorted({length // 2, max(0, length - 2)}):
        stop = min(start + 2, length)
        # The model's own weights give padding rows values of no meaning.
        rows = keep[:, start:stop, None, None].to(output.device)
        ours = dense.attend(call.rows(start, stop))
        found.append(difference(torch.where(rows, ours, 0), torch.where(rows, output[:, start:stop], 0)))
    return float(torch.tensor(found).max())  # unlike Python's max, it never loses a NaN


def difference(ours: Float[Tensor, "*shape"], theirs: Float[Tensor, "*shape"]) -> float:
    """max|ours - theirs| ÷ max|theirs|; NaN where either has one."""
    largest = theirs.float().abs().max()
    return float((ours.float() - theirs.float()).abs().max() / largest.clamp(min=1e-30))


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    name = f"{type(model).__name__} ({model.config.model_type})"
    return UnsupportedModelError(f"{name} cannot be measured: {reason}")
