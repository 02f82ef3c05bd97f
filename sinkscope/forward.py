"""One forward of a model over a batch of windows, and the loss of its predictions."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.accumulate import Sums

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


def losses(
    found: Float[Tensor, "batch position token"],
    ids: Int[Tensor, "batch position"],
    keep: Bool[Tensor, "batch position"],
) -> Sums:
    """Sum of the negative log-likelihoods in nats and number of scored tokens, each [batch, 1], in fp64.

    A window's first real token is context only; every other is scored exactly once.
    """
    ids, keep = ids.to(found.device), keep.to(found.device)
    scored = keep[:, 1:] & keep[:, :-1]
    batch, positions, tokens = found.shape
    step = max(1, LOGITS_AT_ONCE // (batch * tokens))
    parts = []
    for start in range(0, positions - 1, step):
        rows = slice(start, min(start + step, positions - 1))
        targets = ids[:, 1:][:, rows]
        part = torch.nn.functional.cross_entropy(
            found[:, rows].float().flatten(0, 1), targets.flatten(), reduction="none"
        )
        parts.append(part.view_as(targets))
    nll = torch.where(scored, torch.cat(parts, dim=1), 0).cpu().double()
    return nll.sum(dim=1, keepdim=True), scored.sum(dim=1, keepdim=True).cpu().double()


def _input_device(model: PreTrainedModel) -> torch.device:
    device: torch.device = model.get_input_embeddings().weight.device
    # Weights offloaded by accelerate live on "meta"; its hooks fetch ids from anywhere, but not from there.
    return torch.device("cpu") if device.type == "meta" else device
