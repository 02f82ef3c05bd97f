"""What a model predicts at each position, and how good that is: the logits exist a few positions at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.hooks.forward import hidden_states, logits
from sinkscope.hooks.tolerances import difference
from sinkscope.statistics.accumulate import Sums

LOGITS_AT_ONCE = 1 << 24
"""Logits that exist at a time: 64 MiB of fp32. All of a window's can be gigabytes; of far fewer, the head's own weights
would be read too often."""

BLOCK = 1 << 20
"""Logits that are passed over at a time on the CPU: 4 MiB of fp32, so that the passes stay near the cache."""

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
        # A single position predicts nothing, and still has a sum of nothing.
        return (slice(start, min(start + step, positions - 1)) for start in range(0, max(1, positions - 1), step))


def predict(
    model: PreTrainedModel,
    ids: Int[Tensor, "batch position"],
    *,
    chunked: bool,
) -> Predictions:
    """Run the model; `chunked` where `can_be_chunked` said so for it."""
    if chunked:
        return Predictions(hidden_states(model, ids), model.get_output_embeddings())
    return Predictions(logits(model, ids))


def can_be_chunked(model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor) -> bool:
    """Whether the head alone makes the model's own logits, `native`, of its hidden states: many models do more."""
    head = model.get_output_embeddings()
    # A cap is next to invisible where logits are small, so it has to be asked for.
    capped = getattr(model.config.get_text_config(), "final_logit_softcapping", None) is not None
    if not isinstance(head, nn.Linear) or model.base_model is model or capped:
        return False
    states = hidden_states(model, ids)
    if states.dim() != 3 or states.shape[-1] != head.in_features:
        return False
    ours = Predictions(states, head).logits(slice(None))
    return ours.shape == native.shape and difference(ours, native) <= EXACT[native.dtype]


@dataclass(frozen=True, eq=False)
class Standing:
    """How good predictions are, and how they stand beside a baseline's: sums and counts over the scored positions.

    `loss` is the negative log-likelihood and `divergence` KL(baseline ‖ found), both in nats; `agreement` counts how
    often both put the same token first. Each is [batch, 1], in fp64, and NaN where a logit is no number.
    """

    loss: Sums
    divergence: Sums
    agreement: Sums


def losses(found: Predictions, ids: Int[Tensor, "batch position"]) -> Sums:
    """Sum of the negative log-likelihoods in nats and number of scored tokens, each [batch, 1], in fp64.

    A window's first token is context only; every other is scored exactly once.
    """
    (loss,) = _each_row((found,), ids, lambda some, targets: (_loss(some, targets),))
    return _over_scored(loss)


def standing(baseline: Predictions, found: Predictions, ids: Int[Tensor, "batch position"]) -> Standing:
    """What `losses` says of `found`, and its divergence from a baseline, with one pass of each head."""
    return Standing(*(_over_scored(each) for each in _each_row((baseline, found), ids, _beside)))


def _each_row(
    sides: tuple[Predictions, ...], ids: Int[Tensor, "batch position"], figures: Callable[..., tuple[Tensor, ...]]
) -> list[Float[Tensor, "batch predicted"]]:
    """Figures of the logits at every predicting position: `figures` gets some rows of each side, and their targets."""
    parts = []
    for positions in sides[0].chunks():
        logits = [each.logits(positions) for each in sides]
        targets = ids[:, 1:][:, positions].to(logits[0].device)
        rows = [each.flatten(0, 1) for each in (*logits, targets)]
        # Elsewhere than on the CPU, one large pass is the cheapest.
        step = max(1, BLOCK // logits[0].shape[-1]) if targets.device.type == "cpu" else max(1, targets.numel())
        blocks = zip(*(torch.split(each, step) for each in rows), strict=True)
        columns = zip(*(figures(*block) for block in blocks), strict=True)
        parts.append([torch.cat(column).view(targets.shape) for column in columns])
    return [torch.cat(part, dim=1) for part in zip(*parts, strict=True)]


def _loss(some: Float[Tensor, "row token"], targets: Int[Tensor, "row"]) -> Float[Tensor, "row"]:
    return nn.functional.cross_entropy(some, targets, reduction="none")


def _beside(
    before: Float[Tensor, "row token"], after: Float[Tensor, "row token"], targets: Int[Tensor, "row"]
) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"], Float[Tensor, "row"]]:
    """Loss of the second, KL from the first to the second, and 1 where both have the same largest; row by row."""
    agree = (before.argmax(-1) == after.argmax(-1)).float()
    before, after = before.log_softmax(-1), after.log_softmax(-1)
    undefined = before.amax(-1).isnan() | after.amax(-1).isnan()
    loss = -after.gather(-1, targets[:, None])[:, 0]
    weights = before.exp()
    kl = torch.linalg.vecdot(weights, before.sub_(after))
    # A token that the baseline rules out adds nothing, but 0 · ∞ is no number.
    ruled_out = kl.isnan() & ~undefined
    if bool(ruled_out.any()):
        kl[ruled_out] = before[ruled_out].masked_fill(weights[ruled_out] == 0, 0).mul_(weights[ruled_out]).sum(-1)
    return loss, kl, agree.masked_fill(undefined, torch.nan)


def _over_scored(values: Float[Tensor, "batch predicted"]) -> Sums:
    exact = values.cpu().double()
    return exact.sum(dim=1, keepdim=True), exact.new_full((len(exact), 1), values.shape[1])
