"""An open probe: what it knows of its model's running forward, and which of several probes a call belongs to."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.attention import Call, Site
from sinkscope.attention.call import visible_in

Handler = Callable[[Site, Call, Callable[[], Tensor]], Tensor]
"""Called as handler(site, call, own): own() runs the model's own function and returns its output.

Call and output are laid out as transformers has them, the output as [batch, query, head, value width]; whatever the
handler returns becomes the layer's output.
"""


@dataclass
class _Pass:
    """One forward of a probed model: its calls so far, and its padding."""

    calls: Counter[str] = field(default_factory=Counter)
    mask: Tensor | None = None
    """The two-dimensional padding mask, where there is one."""


@dataclass(eq=False)
class Probe:
    """An open probe: the modules of one model, and what has passed so far."""

    model: PreTrainedModel
    handler: Handler
    names: dict[nn.Module, str]
    seen: int = 0
    unread: set[str] = field(default_factory=set)
    """Modules that weighed by something that is not attention of queries to keys."""
    latest: _Pass = field(default_factory=_Pass)
    threads: threading.local = field(default_factory=threading.local)

    @property
    def current(self) -> _Pass:
        """This thread's forward; in a thread that only repeats a part of one, as backward does, the latest."""
        return cast("_Pass", getattr(self.threads, "current", self.latest))

    def forward(self, _: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward of the base model: count its calls anew, and note its padding."""
        mask = kwargs.get("attention_mask")
        mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.threads.current = self.latest = _Pass(mask=mask)
        return call(*args, **kwargs)

    def first(self, keys: int, mask: Tensor | None) -> Int[Tensor, "batch"]:
        """Where the first real token stands among a call's keys, which are the last of all tokens so far.

        Without a mask over tokens it is the first key that any query of the call's own mask sees.
        """
        padding = self.current.mask
        if padding is None:
            return (
                torch.zeros(1, dtype=torch.int64)
                if mask is None
                else visible_in(mask[..., :keys]).any(dim=(1, 2)).long().argmax(-1)
            )
        return (padding.cumsum(-1) == 0).sum(-1) - max(0, padding.shape[-1] - keys)

    def real(self, batch: int, keys: int) -> Bool[Tensor, "#batch key"] | None:
        """Which of a call's keys, the last of all tokens so far, are not padding; None where nothing tells."""
        padding = self.current.mask
        if padding is None or padding.shape[0] not in (1, batch) or padding.shape[1] < keys:
            return None
        return padding[:, padding.shape[1] - keys :].bool()

    def site(self, module: nn.Module, window: int | None) -> Site:
        """Where this call of the module stands within the current forward; ValueError if others share it."""
        if module not in _known:
            with _lock:
                _known.add(module)
        if any(module in other.names for other in _opened if other is not self):
            raise _shared(self, module)
        name, calls = self.names[module], self.current.calls
        number = _layer_number(module, name)
        site = Site(name, number, calls[name], _layer_type(module, number), window)
        calls[name] += 1
        self.seen += 1
        return site


_lock = threading.RLock()
# Replaced whole, never changed in place: forwards in other threads read it.
_opened: tuple[Probe, ...] = ()
# Modules of which attention was ever seen.
_known: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def serving(module: nn.Module) -> Probe | None:
    """The probe that the module belongs to."""
    return next((probe for probe in _opened if module in probe.names), None)


@contextmanager
def alone(probe: Probe) -> Iterator[None]:
    """Keep what attends in the model to this probe; models may share what does not, such as an activation."""
    global _opened  # noqa: PLW0603 - a module can be run by anyone in the process
    with _lock:
        for other in _opened:
            if _overlap(probe, other) or _overlap(other, probe):
                raise ValueError("expected a model without an open probe, got one that is being probed already")
            if shared := next((each for each in probe.names if each in other.names and each in _known), None):
                raise _shared(probe, shared)
        _opened = (*_opened, probe)
    try:
        yield
    finally:
        with _lock:
            _opened = tuple(other for other in _opened if other is not probe)


def _overlap(one: Probe, other: Probe) -> bool:
    """Whether one's model, or the base that runs for it, is a part of the other's."""
    return one.model in other.names or one.model.base_model in other.names


def _shared(probe: Probe, module: nn.Module) -> ValueError:
    return ValueError(
        f"expected a model without an open probe, got one whose {probe.names[module]} is being probed already as part "
        "of another model: close that probe first, or give each model attention of its own"
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
