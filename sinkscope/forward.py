"""One forward of a model over a batch of windows, and what cannot go into it."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.errors import TextError


@torch.no_grad()
def logits(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch position token"]:
    """The model's logits in one prefill without a cache or dropout, in the model's dtype and on its output's device.

    A batch without padding gets no mask, so that the model may take its fastest path. With padding, positions count
    real tokens only, wherever the padding is.
    """
    with evaluating(model):
        found: Tensor = model(**_arguments(model, ids, keep)).logits
    return found


@torch.no_grad()
def hidden_states(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch position width"]:
    """What the model's head would be given by the same prefill."""
    with evaluating(model):
        found: Tensor = model.base_model(**_arguments(model, ids, keep))[0]
    return found


def _arguments(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]
) -> dict[str, Any]:
    device = _input_device(model)
    arguments: dict[str, Any] = {"input_ids": ids.to(device), "use_cache": False}
    if not bool(keep.all()):
        arguments["attention_mask"] = keep.long().to(device)
        if "position_ids" in inspect.signature(model.forward).parameters:
            arguments["position_ids"] = (keep.long().cumsum(-1) - 1).clamp(min=0).to(device)
    return arguments


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


def embedding(model: PreTrainedModel) -> Tensor:
    """The matrix, [token width], in which token ids are looked up; of several codebooks, the first."""
    module = model.get_input_embeddings()
    weight: Tensor = module.weight if hasattr(module, "weight") else module[0].weight
    return weight


def check_fit(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> None:
    """Raise TextError for ids or lengths that the model has no embedding for; on CUDA they would end the process."""
    vocabulary = embedding(model).shape[0]
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


def _input_device(model: PreTrainedModel) -> torch.device:
    device = embedding(model).device
    # Weights offloaded by accelerate live on "meta"; its hooks fetch ids from anywhere, but not from there.
    return torch.device("cpu") if device.type == "meta" else device
