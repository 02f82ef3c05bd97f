"""What a model is without us: its logits as it was handed over, under its own attention, from earlier tokens only."""

import traceback

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call
from sinkscope.attention.swap import PLAIN
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.finite import fault
from sinkscope.hooks.forward import embedding, logits, prefill
from sinkscope.hooks.model_state import restored
from sinkscope.hooks.probe import SERVED, implementation, served
from sinkscope.hooks.tolerances import TOLERANCES, difference

NOT_CAUSAL = "are not causal: a token attends to later ones (a decoder of this kind may want is_decoder=True)"
"""What is wrong with weights on later keys: half of them would be called sinks, and the loss no perplexity."""

FAULTS = (ArithmeticError, AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
"""What a model's own code raises where it is wrong; running out of memory is none of these."""


def native_logits(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position token"]:
    """The logits without us; UnsupportedModelError, naming the module, where the model's own code fails."""
    modules = set(model.modules())
    try:
        with restored(model):
            native = prefill(model, ids)
            exchanged = modules != set(model.modules())
    except FAULTS as error:
        names = {id(module): name for name, module in model.named_modules() if name}
        frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        where = [names[id(each)] for each in frames if id(each) in names]
        place = where[-1] if where else "its forward"
        failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise unsupported(model, f"its own code fails in {place} ({failure})") from error
    if exchanged:
        raise unsupported(model, "its forward exchanges some of its modules for others")
    if reason := fault(model, ids, native):
        raise unsupported(model, reason)
    return native


def switched(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> tuple[tuple[str, str], float] | None:
    """The implementation of the model as handed over and the one that is observed, and how far their logits differ.

    None where they are the same. Raises UnsupportedModelError where they give other logits: what would be measured is
    then not what the caller's model computes.
    """
    own = implementation(model)
    with served(model):
        other = implementation(model)
        if own == other:
            return None
        observed = logits(model, ids)
    native = native_logits(model, ids)
    delta = difference(observed, native)
    if not delta <= TOLERANCES[native.dtype]:
        raise unsupported(
            model,
            f"its attention implementation {own!r} gives other logits than {other!r}, under which it would be observed "
            f"(relative difference {delta:.1e}): choose one of {' and '.join(SERVED)} with set_attn_implementation",
        )
    return (own, other), delta


def changed_by_neighbours(model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor) -> bool:
    """Whether neighbours in a batch change a window; UnsupportedModelError where a later token changes it.

    In half precision the latter is left to the weights: a router of experts near a tie turns rounding into a
    difference.
    """
    other = ids.clone()
    other[:, -1] = ids[:, 0] if bool(ids[0, -1] != ids[0, 0]) else (ids[:, -1] + 1) % embedding(model).shape[0]
    together = logits(model, torch.cat([ids, other, ids.flip(-1)]))
    alone = not difference(together[:1], native) <= TOLERANCES[native.dtype]
    if native.dtype not in (torch.float32, torch.float64) or ids.shape[1] < 2:
        return alone
    changed = logits(model, other) if alone else together[1:2]
    if not difference(changed[:, :-1], native[:, :-1]) <= TOLERANCES[native.dtype]:
        raise unsupported(model, "its logits at a token depend on later tokens")
    return alone


def sees_later(call: Call) -> bool:
    """Whether a call from token to token puts any weight on a later key."""
    return bool(PLAIN.weigh(call).weights.triu(1).any())


def unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    """The refusal of a model, with its class and its type."""
    name = f"{type(model).__name__} ({model.config.model_type})"
    return UnsupportedModelError(f"{name} cannot be measured: {reason}")
