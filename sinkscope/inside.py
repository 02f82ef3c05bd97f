"""The seam inside a layer: the softmax, or torch's fused attention, that a layer calls by itself.

Layers that do not ask transformers' attention interface are watched by a torch function mode. It is active while an
attention module of a probed model runs, in the thread that runs it, and sees the torch functions called meanwhile.
No function is replaced, so no other model or thread can be affected.
"""

import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
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
from sinkscope.probe import Handler, Probe, opened, served

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
        inside = _Inside(probe)
        watched = [
            module
            for name, module in model.named_modules()
            # Not an nn.Softmax itself, but the module that it is a part of, which knows the batch.
            if (any(module.children()) if modules is None else name in modules)
        ]
        with _wrapped(watched, inside):
            yield probe


@contextmanager
def _wrapped(modules: Iterable[nn.Module], inside: "_Inside") -> Iterator[None]:
    """Let every forward of the modules run under the mode; afterwards they have the forwards they had."""
    # Not hooks: torch leaves them out after a KeyboardInterrupt, and the mode would stay on.
    before = [(module, vars(module).get("forward")) for module in modules]
    try:
        for module, _ in before:
            module.forward = inside.runs(module, module.forward)
        yield
    finally:
        for module, own in before:
            if own is not None:
                module.forward = own
            else:
                vars(module).pop("forward", None)


class _Inside:
    """Which modules of a probed model are running, thread by thread, and what they weigh by."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.threads = threading.local()

    def runs(self, module: nn.Module, own: Callable[..., Any]) -> Callable[..., Any]:
        """The module's forward, known to be running while it runs."""

        @functools.wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            running = self.threads.__dict__.setdefault("running", [])
            running.append((module, _batch((*args, *kwargs.values()))))
            try:
                with nullcontext() if len(running) > 1 else _Mode(self):
                    return own(*args, **kwargs)
            finally:
                running.pop()

        return forward

    def softmax(self, own: Callable[[], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The weights that the handler makes of a layer's scores."""
        module, batch = self.threads.running[-1]
        scores = _scores(batch, args, kwargs)
        if scores is None:
            self.probe.unread.add(self.probe.names[id(module)])
            return own()
        dtype = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)), scores.dtype)
        real = self.probe.real(scores.shape[0], scores.shape[-1])
        # A mask may have been written before or after the scores were cast.
        masked = max(torch.finfo(each).min for each in (self.probe.model.dtype, scores.dtype))
        call = given(scores, dtype, masked, real)
        call = replace(call, first=self.probe.first(scores.shape[-1], None))
        site = self.probe.site(module, None)
        found = self.probe.handler(site, call, lambda: own().view(scores.shape).transpose(1, 2))
        # Layers call view() on their weights.
        return found.transpose(1, 2).contiguous().view(_first(args, kwargs).shape)

    def fused(self, own: Callable[[], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """What the handler makes of a call of torch's fused attention."""
        module, _ = self.threads.running[-1]
        call = _call(*args, **kwargs)
        if call is None:
            self.probe.unread.add(self.probe.names[id(module)])
            return own()
        call = replace(call, first=self.probe.first(call.key.shape[2], call.mask))
        site = self.probe.site(module, None)
        return self.probe.handler(site, call, lambda: own().transpose(1, 2)).transpose(1, 2)


class _Mode(TorchFunctionMode):
    """Hands the functions that weigh to the handler, and runs all others."""

    def __init__(self, inside: _Inside) -> None:
        super().__init__()
        self.inside = inside

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if function in SOFTMAX:
            return self.inside.softmax(lambda: function(*args, **named), args, named)
        if function is FUSED:
            return self.inside.fused(lambda: function(*args, **named), args, named)
        return function(*args, **named)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


def _batch(arguments: tuple[Any, ...]) -> int | None:
    """The batch of the hidden states, the first argument with three axes."""
    return next((each.shape[0] for each in arguments if isinstance(each, Tensor) and each.dim() == 3), None)


def _scores(
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


def _call(  # noqa: PLR0917 - the arguments of torch's function
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
