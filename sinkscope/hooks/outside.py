"""Attention that goes past the seam: what weighs tokens by tokens, and was not handed to the probe.

A model may ask transformers' attention interface in some layers, and call torch's attention by itself in others. Where
only one of them was looked at, layers with attention would be listed as layers without.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import Call
from sinkscope.hooks.forward import logits
from sinkscope.hooks.inside import FUSED, SOFTMAX, Running, Substitute, running_under
from sinkscope.hooks.probing import Handler, Probe

Seam = Callable[[PreTrainedModel, Handler], AbstractContextManager[Probe]]
"""Where a model's attention calls can be seen and replaced: `probed`, or `probed_inside` for some modules."""

WHOLE = frozenset(
    getattr(where, name)
    for where, name in (
        (nn.functional, "multi_head_attention_forward"),
        (torch, "_native_multi_head_attention"),
        (torch, "_transformer_encoder_layer_fwd"),
    )
    if hasattr(where, name)
)
"""What is attention as a whole, and shows nothing of what it weighs by."""

LIKE_SOFTMAX: frozenset[Callable[..., Any]] = SOFTMAX | {
    nn.functional.softmin,
    nn.functional.log_softmax,
    torch.log_softmax,
    Tensor.log_softmax,
}


class Outside:
    """The modules that weigh tokens by tokens, while a model runs over so many of them."""

    def __init__(self, model: PreTrainedModel, tokens: int) -> None:
        self.model = model
        self.tokens = tokens
        self.found: dict[str, None] = {}
        self.names = {module: name for name, module in model.named_modules()}
        self.threads = threading.local()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at all that runs in the block."""
        functions: dict[Callable[..., Any], Substitute] = dict.fromkeys(LIKE_SOFTMAX, self._softmax)
        functions |= dict.fromkeys((FUSED, *WHOLE), self._whole)
        with running_under(functions, self.model):
            yield

    def aside(self, own: Callable[[], Tensor]) -> Tensor:
        """Run what a probe was handed, and look away meanwhile."""
        self.threads.aside = True
        try:
            return own()
        finally:
            self.threads.aside = False

    def missing(self, ids: Int[Tensor, "batch position"], seam: Seam) -> str | None:
        """Why the model cannot be measured, if a module attends past the seam in a text of another length as well.

        A table of the text's own length may be anything: the choice among as many experts as there are tokens, say.
        """
        if not self.found:
            return None
        other = ids[:, :-1] if ids.shape[1] > 2 else ids.repeat(1, 3)
        again = Outside(self.model, other.shape[1])
        with seam(self.model, lambda _, __, own: again.aside(own)), again.watched():
            logits(self.model, other)
        name = next((name for name in self.found if name in again.found), None)
        if name is None:
            return None
        return f"{name} attends from token to token where that cannot be seen, while other layers do where it can"

    def _softmax(self, running: Running, own: Callable[[], Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        scores = args[0] if args else named.get("input")
        axis = named.get("dim", args[1] if len(args) > 1 else None)
        square = (self.tokens, self.tokens)
        if isinstance(scores, Tensor) and axis in (-1, scores.dim() - 1) and scores.shape[-2:] == square:
            self._note(running)
        return own()

    def _whole(self, running: Running, own: Callable[[], Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Attention of what has an axis of the tokens to keys that are as many."""
        given = [each for each in (*args, *named.values()) if isinstance(each, Tensor)][:2]
        if all(self.tokens in each.shape[:-1] for each in given):
            self._note(running)
        return own()

    def _note(self, running: Running) -> None:
        if not getattr(self.threads, "aside", False):
            self.found[self.names[running[0]]] = None


def not_of_tokens(call: Call, tokens: int) -> str | None:
    """Why a call is not attention from each token to the tokens, or None if it is."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    return None if queries == keys == tokens else f"{queries} queries on {keys} keys for {tokens} tokens"
