"""One forward of a model over a batch of windows, and the loss of its predictions."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.accumulate import Sums
from sinkscope.errors import TextError

LOGITS_AT_ONCE = 1 << 24
"""Logits that are turned to fp32 at a time for the loss: 64 MiB."""


@torch.no_grad()
def logits(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch position token"]:
    """The model's logits in one prefill without a cache or dropout, in the model's dtype and on its output's device.

    A batch without padding gets no mask, so that the model may take its fastest path. With padding, positions count
    real tokens only, wherever the padding is.
    """
    device = _input_device(model)
    arguments: dict[str, object] = {"use_cache": False}
    if not bool(keep.all()):
        arguments["attention_mask"] = keep.long().to(device)
        if "position_ids" in inspect.signature(model.forward).parameters:
            arguments["position_ids"] = (keep.long().cumsum(-1) - 1).clamp(min=0).to(device)
    with evaluating(model):
        found: Tensor = model(input_ids=ids.to(device), **arguments).logits
    return found


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout; afterwards exactly the modules that were training are training again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check_fit(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> None:
    """Raise TextError for ids or lengths that the model has no embedding for; on CUDA they would end the process."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if int(ids.max()) >= vocabulary:
        raise TextError(
            f"token id {int(ids.max())} is not in the vocabulary of {type(model).__name__}, which has {vocabulary}: "
            "the tokenizer is another model's"
        )
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    learned = any(
        isinstance(module, torch.nn.Embedding) and ("pos" in name.rpartition(".")[2] or name.endswith("wpe"))
        for name, module in model.named_modules()
    )
    if learned and isinstance(longest, int) and ids.shape[1] > longest:
        raise TextError(
            f"windows of {ids.shape[1]} tokens are longer than the {longest} positions of {type(model).__name__}: "
            f"use --seq-len {longest} or less"
        )


def losses(
    found: Float[Tensor, "batch position token"],
    ids: Int[Tensor, "batch position"],
    keep: Bool[Tensor, "batch position"],
) -> Sums:
    """Sum of the negative log-likelihoods in nats and number of scored tokens, each [batch, 1], in fp64.

    A window's first real token is context only; every other is scored exactly once.
    """
    targets = ids[:, 1:].to(found.device)
    parts = []
    for rows in _chunks(found):
        some = torch.nn.functional.cross_entropy(
            found[:, rows].float().flatten(0, 1), targets[:, rows].flatten(), reduction="none"
        )
        parts.append(some.view(ids.shape[0], -1))
    return _over_scored(torch.cat(parts, dim=1), keep)


@torch.no_grad()
def divergences(
    baseline: Float[Tensor, "batch position token"],
    found: Float[Tensor, "batch position token"],
    keep: Bool[Tensor, "batch position"],
) -> tuple[Sums, Sums]:
    """KL(baseline ‖ found) in nats and how often both put the same token first, over the scored positions."""
    kl, same = [], []
    for rows in _chunks(found):
        before, after = baseline[:, rows].float().log_softmax(-1), found[:, rows].float().log_softmax(-1)
        kl.append((before.exp() * (before - after)).sum(-1))
        same.append((before.argmax(-1) == after.argmax(-1)).float())
    return _over_scored(torch.cat(kl, dim=1), keep), _over_scored(torch.cat(same, dim=1), keep)


def _chunks(found: Float[Tensor, "batch position token"]) -> Iterator[slice]:
    """The positions that predict a next one, a few at a time."""
    batch, positions, tokens = found.shape
    step = max(1, LOGITS_AT_ONCE // (batch * tokens))
    return (slice(start, min(start + step, positions - 1)) for start in range(0, positions - 1, step))


def _over_scored(values: Float[Tensor, "batch predicted"], keep: Bool[Tensor, "batch position"]) -> Sums:
    scored = keep[:, 1:] & keep[:, :-1]
    total = torch.where(scored, values.cpu().double(), 0).sum(dim=1, keepdim=True)
    return total, scored.sum(dim=1, keepdim=True).double()


def _input_device(model: PreTrainedModel) -> torch.device:
    device: torch.device = model.get_input_embeddings().weight.device
    # Weights offloaded by accelerate live on "meta"; its hooks fetch ids from anywhere, but not from there.
    return torch.device("cpu") if device.type == "meta" else device
