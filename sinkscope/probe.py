"""The one file that touches transformers' attention: it stands between a model's layers and the function they call.

Every dispatching layer asks `AttentionInterface.get_interface` on each forward which function to run. While a probe
is open that method is wrapped, and the function it returns looks up whether the calling module belongs to a probed
model. No configuration is changed, so no other model, thread or saved file can be affected.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from sinkscope.attention import Call, Site
from sinkscope.attention.call import visible_in
from sinkscope.errors import NothingObservedError, UnsupportedModelError

SERVED = ("eager", "sdpa")
"""The implementations whose masks and arguments are understood."""


Handler = Callable[[Site, Call, Callable[[], Tensor]], Tensor]
"""Called as handler(site, call, own): own() runs the model's own function and returns its output.

Call and output are laid out as transformers has them, the output as [batch, query, head, value width]; whatever the
handler returns becomes the layer's output.
"""


Attend = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: (module, query, key, value, mask, **arguments) to (output, weights)."""


@dataclass(eq=False)
class Probe:
    """An open probe: the attention modules of one model, and what has passed so far."""

    model: PreTrainedModel
    handler: Handler
    names: dict[int, str]
    calls: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    unread: set[str] = field(default_factory=set)
    """Modules that weighed by something that is not attention of queries to keys."""
    mask: Tensor | None = None
    """The two-dimensional padding mask of the current forward, where there is one."""

    def begin(self, arguments: dict[str, Any]) -> None:
        """A new forward begins: count its calls anew, and note its padding."""
        self.calls.clear()
        mask = arguments.get("attention_mask")
        self.mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def first(self, keys: int, mask: Tensor | None) -> Int[Tensor, "batch"]:
        """Where the first real token stands among a call's keys, which are the last of all tokens so far.

        Without a mask over tokens it is the first key that any query of the call's own mask sees.
        """
        if self.mask is None:
            return (
                torch.zeros(1, dtype=torch.int64)
                if mask is None
                else visible_in(mask[..., :keys]).any(dim=(1, 2)).long().argmax(-1)
            )
        return (self.mask.cumsum(-1) == 0).sum(-1) - max(0, self.mask.shape[-1] - keys)

    def real(self, batch: int, keys: int) -> Bool[Tensor, "#batch key"] | None:
        """Which of a call's keys, the last of all tokens so far, are not padding; None where nothing tells."""
        if self.mask is None or self.mask.shape[0] not in (1, batch) or self.mask.shape[1] < keys:
            return None
        return self.mask[:, self.mask.shape[1] - keys :].bool()

    def site(self, module: nn.Module, window: int | None) -> Site:
        """Where this call of the module stands within the current forward."""
        name = self.names[id(module)]
        number = _layer_number(module, name)
        site = Site(name, number, self.calls[name], _layer_type(module, number), window)
        self.calls[name] += 1
        self.seen += 1
        return site


_lock = threading.RLock()
# Replaced whole, never changed in place: forwards in other threads read them.
_claimed: frozenset[int] = frozenset()  # the modules of all models that are being probed, by id
_open: tuple[Probe, ...] = ()  # the probes that look at the interface
_original: Callable[..., Attend] | None = None


@contextmanager
def probed(model: PreTrainedModel, handler: Handler) -> Iterator[Probe]:
    """Route every attention call of the model through the handler, for as long as the block runs.

    A model on another implementation than `sdpa` or `eager` is switched to one of them meanwhile. Everything is put
    back on the way out, also after an exception. Raises what `opened` raises.
    """
    with opened(model, handler) as probe, _listed(probe), served(model):
        yield probe


@contextmanager
def opened(model: PreTrainedModel, handler: Handler) -> Iterator[Probe]:
    """Open a probe that does not look anywhere yet: what all of them share, wherever they look.

    Raises UnsupportedModelError for a compiled model, NothingObservedError if the block ends without a single call,
    ValueError for a second probe on the same model.
    """
    refuse_compiled(model)
    probe = Probe(model, handler, {id(module): name for name, module in model.named_modules()})
    with _alone(probe), ExitStack() as stack:
        # The base model, because the head may be run apart from it, and because masks reach it by keyword.
        hook = model.base_model.register_forward_pre_hook(
            lambda _, __, arguments: probe.begin(arguments), with_kwargs=True
        )
        stack.callback(hook.remove)
        yield probe
    if not probe.seen:
        raise NothingObservedError(
            f"no attention call of {type(model).__name__} was seen: nothing ran, or its attention is of no kind that "
            "can be seen"
        )


@contextmanager
def _alone(probe: Probe) -> Iterator[None]:
    """Keep the model's modules to this probe."""
    global _claimed  # noqa: PLW0603 - a module can be run by anyone in the process
    modules = frozenset(probe.names)
    with _lock:
        if modules & _claimed:
            raise ValueError("expected a model without an open probe, got one that is being probed already")
        _claimed |= modules
    try:
        yield
    finally:
        with _lock:
            _claimed -= modules


@contextmanager
def _listed(probe: Probe) -> Iterator[None]:
    """Wrap the interface with the first probe, and unwrap it with the last."""
    global _original, _open  # noqa: PLW0603 - the wrapped method is process-wide, and so is what it replaces
    with _lock:
        if not _open:
            _original = AttentionInterface.get_interface
            AttentionInterface.get_interface = _get_interface
        _open = (*_open, probe)
    try:
        yield
    finally:
        with _lock:
            _open = tuple(other for other in _open if other is not probe)
            if not _open:
                AttentionInterface.get_interface = _original
                _original = None


def _get_interface(interface: AttentionInterface, attn_implementation: str, default: Attend) -> Attend:
    """Stand in for AttentionInterface.get_interface: what it returns, but through the handler of the module's probe."""
    original = _original
    if original is None:  # The last probe closed between the look-up of this method and the call.
        return cast("Attend", AttentionInterface.get_interface(interface, attn_implementation, default))
    own = original(interface, attn_implementation, default)

    def routed(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
    ) -> tuple[Tensor, Tensor | None]:
        mask = attention_mask  # the name by which some layers pass it
        probe = next((each for each in _open if id(module) in each.names), None)
        if probe is None:
            return own(module, query, key, value, mask, **arguments)
        fused = attn_implementation == "sdpa" and mask is None
        causal = fused and query.shape[2] > 1 and _is_causal(module, arguments)
        call = _call((query, key, value), mask, arguments, causal=causal, first=probe.first(key.shape[2], mask))
        weights = None

        def run() -> Tensor:
            nonlocal weights
            output, weights = own(module, query, key, value, mask, **arguments)
            return output

        site = probe.site(module, arguments.get("sliding_window"))
        return probe.handler(site, call, run), weights

    return routed


def _call(
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    arguments: dict[str, Any],
    *,
    causal: bool,
    first: Int[Tensor, "batch"],
) -> Call:
    """Read the arguments of an attention function as its own implementation does."""
    query, key, value = tensors
    scale, sink = arguments.get("scaling"), arguments.get("s_aux")
    if sink is not None:
        sink = sink.reshape(1, -1, 1)
    elif (sink := arguments.get("sinks")) is not None:
        sink = sink.reshape(*sink.shape[:3])
    return Call(
        query=query,
        key=key,
        value=value,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        # A mask may be longer than the keys where a static cache has empty slots.
        mask=None if mask is None else mask[..., : key.shape[2]],
        causal=causal,
        softcap=arguments.get("softcap"),
        bias=arguments.get("position_bias"),
        sink=sink,
        first=first,
        dropout=arguments.get("dropout") or 0.0,
    )


def _is_causal(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """The rule of transformers' sdpa for a call without a mask; eager functions read no mask as no restriction."""
    told = arguments.get("is_causal")
    return bool(getattr(module, "is_causal", True) if told is None else told)


def implementation(model: PreTrainedModel) -> str:
    """The attention implementation of the model, or of that part of it which has one that cannot be observed."""
    names = [each._attn_implementation for each in _configurations(model)]  # noqa: SLF001 - there is no public name
    return str(next((name for name in names if name not in SERVED), names[0]))


def _configurations(model: PreTrainedModel) -> list[Any]:
    """The configurations of the model and of the models in it."""
    found = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    return [*{id(config): config for config in found}.values()]


@contextmanager
def served(model: PreTrainedModel) -> Iterator[None]:
    """On an implementation that can be observed; afterwards every configuration names its own again."""
    if implementation(model) in SERVED:
        yield
        return
    configs = {id(config): config for config in _configurations(model)}
    before = {key: config._attn_implementation for key, config in configs.items()}  # noqa: SLF001
    try:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")  # noqa: SLF001
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]  # noqa: SLF001


def refuse_compiled(model: nn.Module) -> None:
    """Raise UnsupportedModelError for a model of which any part is compiled."""
    compiled = isinstance(model, torch._dynamo.OptimizedModule) or any(  # noqa: SLF001 - no public class
        isinstance(module, torch._dynamo.OptimizedModule)  # noqa: SLF001
        or module._compiled_call_impl is not None  # noqa: SLF001
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    )
    if compiled:
        raise UnsupportedModelError(
            f"{type(model).__name__} is compiled, and a compiled forward may never ask for its attention function "
            "again: pass the model as it was before torch.compile"
        )


def _layer_number(module: nn.Module, name: str) -> int:
    """The layer's own number: what the module says, else the first number in its qualified name."""
    own = getattr(module, "layer_idx", None)
    if isinstance(own, int):
        return own
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def _layer_type(module: nn.Module, number: int) -> str | None:
    types = getattr(getattr(module, "config", None), "layer_types", None)
    return types[number] if types is not None and number < len(types) else None


if not inspect.isfunction(getattr(AttentionInterface, "get_interface", None)):
    raise ImportError(
        "this version of transformers has no AttentionInterface.get_interface: sinkscope needs 5.17 or newer"
    )
