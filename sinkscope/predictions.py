"""What a model predicts at each position, and how good that is: the logits exist a few positions at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.accumulate import Sums
from sinkscope.forward import hidden_states, logits

LOGITS_AT_ONCE = 1 << 24
"""Logits that exist at a time: 64 MiB of fp32. All of a window's can be gigabytes."""

EXACT = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""How close logits from the head alone must be to the model's own: what another order of additions does."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """The logits of a batch, or the hidden states and the head that they are made by when they are looked at."""

    states: Float[Tensor, "batch position width"]
    head: nn.Module | None = None

    @torch.no_grad()
    def logits(self, rows: slice) -> Float[Tensor, "batch some token"]:
        """The logits at some positions, in fp32."""
        states = self.states[:, rows]
        found: Tensor = states if self.head is None else self.head(states)
        return found.float()

    def chunks(self) -> Iterator[slice]:
        """The positions that predict a next one, a few at a time."""
        batch, positions, width = self.states.shape
        weight = getattr(self.head, "weight", None)
        tokens = width if weight is None else weight.shape[0]
        step = max(1, LOGITS_AT_ONCE // (batch * tokens))
        return (slice(start, min(start + step, positions - 1)) for start in range(0, positions - 1, step))


def predict(
    model: PreTrainedModel,
    ids: Int[Tensor, "batch position"],
    keep: Bool[Tensor, "batch position"],
    *,
    chunked: bool,
) -> Predictions:
    """Run the model; `chunked` where `can_be_chunked` said so for it."""
    if chunked:
        return Predictions(hidden_states(model, ids, keep), model.get_output_embeddings())
    return Predictions(logits(model, ids, keep))


def can_be_chunked(model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor) -> bool:
    """Whether the head alone makes the model's own logits, `native`, of its hidden states: many models do more."""
    head = model.get_output_embeddings()
    # A cap is next to invisible where logits are small, so it has to be asked for.
    capped = getattr(model.config.get_text_config(), "final_logit_softcapping", None) is not None
    if not isinstance(head, nn.Linear) or model.base_model is model or capped:
        return False
    states = hidden_states(model, ids, torch.ones_like(ids, dtype=torch.bool))
    if states.dim() != 3 or states.shape[-1] != head.in_features:
        return False
    ours = Predictions(states, head).logits(slice(None))
    largest = native.float().abs().max()
    return ours.shape == native.shape and bool((ours - native.float()).abs().max() <= EXACT[native.dtype] * largest)


def losses(found: Predictions, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]) -> Sums:
    """Sum of the negative log-likelihoods in nats and number of scored tokens, each [batch, 1], in fp64.

    A window's first real token is context only; every other is scored exactly once.
    """
    parts = []
    for rows in found.chunks():
        some = found.logits(rows)
        targets = ids[:, 1:][:, rows].to(some.device)
        part = nn.functional.cross_entropy(some.flatten(0, 1), targets.flatten(), reduction="none")
        parts.append(part.view(targets.shape))
    return _over_scored(torch.cat(parts, dim=1), keep)


def divergences(baseline: Predictions, found: Predictions, keep: Bool[Tensor, "batch position"]) -> tuple[Sums, Sums]:
    """KL(baseline ‖ found) in nats and how often both put the same token first, over the scored positions."""
    kl, same = [], []
    for rows in baseline.chunks():
        before, after = baseline.logits(rows).log_softmax(-1), found.logits(rows).log_softmax(-1)
        kl.append((before.exp() * (before - after)).sum(-1))
        agree = (before.argmax(-1) == after.argmax(-1)).float()
        same.append(torch.where(after.isnan().any(-1), torch.nan, agree))
    return _over_scored(torch.cat(kl, dim=1), keep), _over_scored(torch.cat(same, dim=1), keep)


def _over_scored(values: Float[Tensor, "batch predicted"], keep: Bool[Tensor, "batch position"]) -> Sums:
    scored = keep[:, 1:] & keep[:, :-1]
    total = torch.where(scored, values.cpu().double(), 0).sum(dim=1, keepdim=True)
    return total, scored.sum(dim=1, keepdim=True).double()
