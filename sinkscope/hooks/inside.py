"""The seam inside a layer: the softmax, or torch's fused attention, that a layer calls by itself.

Layers that do not ask transformers' attention interface are watched by a torch function mode. It is active while an
attention module of a probed model runs, in the thread that runs it, and sees the torch functions called meanwhile.
No function is replaced, and nothing is put on a module, so no other model, thread, copy or file can be affected.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from sinkscope.attention import Call
from sinkscope.attention.given import given
from sinkscope.hooks.module_calls import intercepted
from sinkscope.hooks.probe import opened, served
from sinkscope.hooks.probing import Handler, Probe

SOFTMAX = frozenset({nn.functional.softmax, torch.softmax, torch.special.softmax, Tensor.softmax})
FUSED = nn.functional.scaled_dot_product_attention


@contextmanager
def probed_inside(model: PreTrainedModel, handler: Handler, modules: Collection[str] | None = None) -> Iterator[Probe]:
    """Route what the named modules weigh by through the handler, for as long as the block runs; None for all modules.

    Each call of softmax over the last of four axes [batch, head, query, key], or of three [batch·head, query, key],
    becomes a `Given`: its output, laid out as any layer's, is the weights. Each call of torch's fused attention becomes
    an ordinary `Call`. Everything is put back on the way out, also after an exception. Raises what `opened` raises.
    """
    with opened(model, handler) as probe, served(model):
        seam = _Seam(probe)
        with running_under(dict.fromkeys(SOFTMAX, seam.softmax) | {FUSED: seam.fused}, model, modules):
            yield probe


Running = tuple[nn.Module, int | None]
"""A module that runs, and the size of the batch that it was given, where that can be read."""

Substitute = Callable[[Running, Callable[[], Tensor], tuple[Any, ...], dict[str, Any]], Tensor]
"""Called as substitute(running, own, args, kwargs) in place of a torch function; own() calls it as the module does."""

Substitutes = Mapping[Callable[..., Any], Substitute]
"""What takes the place of which torch functions."""


@contextmanager
def running_under(substitutes: Substitutes, model: nn.Module, modules: Collection[str] | None = None) -> Iterator[None]:
    """Let every call of the named modules run under the mode; None for all modules that have parts."""
    watched = [
        module
        for name, module in model.named_modules()
        # Not an nn.Softmax itself, but the module that it is a part of, which knows the batch.
        if (any(module.children()) if modules is None else name in modules)
    ]
    with intercepted(watched, _Inside(substitutes).runs):
        yield


class _Inside:
    """Which modules are running, thread by thread, and the mode that is on meanwhile."""

    def __init__(self, substitutes: Substitutes) -> None:
        self.substitutes = substitutes
        self.threads = threading.local()

    def runs(self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call, known to be running while it runs."""
        running = self.threads.__dict__.setdefault("running", [])
        running.append((module, _batch((*args, *kwargs.values()))))
        try:
            with nullcontext() if len(running) > 1 else _Mode(self):
                return call(*args, **kwargs)
        finally:
            running.pop()


class _Mode(TorchFunctionMode):
    """Hands the functions that weigh over, and runs all others."""

    def __init__(self, inside: _Inside) -> None:
        super().__init__()
        self.inside = inside

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        substitute = self.inside.substitutes.get(function)
        if substitute is None:
            return function(*args, **named)
        return substitute(self.inside.threads.running[-1], lambda: function(*args, **named), args, named)


class _Seam:
    """Makes calls for the handler of what a probed model's modules weigh by."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def softmax(
        self, running: Running, own: Callable[[], Tensor], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Tensor:
        """The weights that the handler makes of a layer's scores."""
        module, batch = running
        scores = scores_of(batch, args, named)
        if scores is None:
            self.probe.unread.add(self.probe.names[module])
            return own()
        dtype = next((each for each in (*args, *named.values()) if isinstance(each, torch.dtype)), scores.dtype)
        real = self.probe.real(scores.shape[0], scores.shape[-1])
        # A mask may have been written before or after the scores were cast.
        masked = max(torch.finfo(each).min for each in (self.probe.model.dtype, scores.dtype))
        call = given(scores, dtype, masked, real)
        call = replace(call, first=self.probe.first(scores.shape[-1], None))
        site = self.probe.site(module, None)
        found = self.probe.handler(site, call, lambda: own().view(scores.shape).transpose(1, 2))
        # Layers call view() on their weights.
        return found.transpose(1, 2).contiguous().view(_first(args, named).shape)

    def fused(
        self, running: Running, own: Callable[[], Tensor], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Tensor:
        """What the handler makes of a call of torch's fused attention."""
        module, _ = running
        call = call_of(*args, **named)
        if call is None:
            self.probe.unread.add(self.probe.names[module])
            return own()
        call = replace(call, first=self.probe.first(call.key.shape[2], call.mask))
        site = self.probe.site(module, None)
        return self.probe.handler(site, call, lambda: own().transpose(1, 2)).transpose(1, 2)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


def _batch(arguments: tuple[Any, ...]) -> int | None:
    """The batch of the hidden states, the first argument with three axes."""
    return next((each.shape[0] for each in arguments if isinstance(each, Tensor) and each.dim() == 3), None)


def scores_of(
    batch: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Float[Tensor, "batch head query key"] | None:
    """What softmax was given as scores of tokens for tokens; None where it cannot be that."""
    scores = _first(args, kwargs)
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(scores, Tensor) or axis not in (-1, scores.dim() - 1):
        return None
    if scores.dim() == 3 and batch and scores.shape[0] % batch == 0:
        scores = scores.view(batch, -1, *scores.shape[1:])
    return scores if scores.dim() == 4 else None


def call_of(  # noqa: PLR0917 - the arguments of torch's function
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call | None:
    """The arguments of torch's fused attention as a call; None where they have no axis of heads."""
    del enable_gqa  # a call shares keys wherever there are fewer of them
    if query.dim() != 4 or (attn_mask is not None and attn_mask.dim() not in (2, 4)):
        return None
    return Call(
        query=query,
        key=key,
        value=value,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        mask=attn_mask[None, None] if attn_mask is not None and attn_mask.dim() == 2 else attn_mask,
        causal=is_causal,
        dropout=dropout_p,
    )
