"""One forward of a model over windows of one length: the ids alone, and nothing left behind."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.hooks.model_state import restored


@torch.no_grad()
def logits(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position token"]:
    """The model's logits in one prefill without a cache or dropout, in the model's dtype and on its output's device.

    The windows are of one length, so the model gets its token ids and nothing else: no mask, and no positions. What
    the forward changes on the model is put back.
    """
    with restored(model):
        return prefill(model, ids)


@torch.no_grad()
def prefill(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position token"]:
    """The same, with what the forward changes on the model left to the caller."""
    with evaluating(model):
        found: Tensor = model(input_ids=ids.to(_input_device(model)), use_cache=False).logits
    return found


@torch.no_grad()
def hidden_states(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position width"]:
    """What the model's head would be given by the same prefill."""
    with evaluating(model), restored(model):
        found: Tensor = model.base_model(input_ids=ids.to(_input_device(model)), use_cache=False)[0]
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


def embedding(model: PreTrainedModel) -> Tensor:
    """The matrix, [token width], in which token ids are looked up; of several codebooks, the first."""
    module = model.get_input_embeddings()
    weight: Tensor = module.weight if hasattr(module, "weight") else module[0].weight
    return weight


def _input_device(model: PreTrainedModel) -> torch.device:
    device = embedding(model).device
    # Weights offloaded by accelerate live on "meta"; its hooks fetch ids from anywhere, but not from there.
    return torch.device("cpu") if device.type == "meta" else device
