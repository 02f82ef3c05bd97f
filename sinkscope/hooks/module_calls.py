"""Calls of a model's modules, met at their classes: nothing of ours is on a module, so its copies and files have none.

While a block runs, the classes of the modules that it names have a `__call__` of ours, which looks up whether this very
module was named. Instances cannot hold it: accelerate writes a `forward` of its own on them, a deep copy would take
ours along with the original's weights, pickle refuses it, and torch leaves hooks out after a KeyboardInterrupt.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

Around = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called as around(module, call, args, kwargs) in place of module(*args, **kwargs), which is call(*args, **kwargs)."""


@dataclass
class _Kind:
    """A class whose `__call__` is ours."""

    own: Callable[..., Any] | None
    """The `__call__` in the class's own body; None where it inherits one."""
    openings: int = 0


_lock = threading.RLock()
_kinds: dict[type[nn.Module], _Kind] = {}
# Replaced whole, never changed in place: forwards in other threads read it.
_arounds: Mapping[nn.Module, tuple[Around, ...]] = {}


@contextmanager
def intercepted(modules: Iterable[nn.Module], around: Around) -> Iterator[None]:
    """Let every call of the modules go through `around`, in any thread, for as long as the block runs.

    Of several, the one that was opened last is outermost. Classes are as they were afterwards, also after an exception.
    """
    chosen = list(dict.fromkeys(modules))
    kinds = {type(module) for module in chosen}
    _open(chosen, kinds, around)
    try:
        yield
    finally:
        _close(chosen, kinds, around)


def _open(modules: list[nn.Module], kinds: set[type[nn.Module]], around: Around) -> None:
    global _arounds  # noqa: PLW0603 - classes are process-wide, and so is what is known of their modules
    with _lock:
        _arounds = {**_arounds, **{module: (*_arounds.get(module, ()), around) for module in modules}}
        for kind in kinds:
            if kind not in _kinds:
                _kinds[kind] = _Kind(vars(kind).get("__call__"))
                kind.__call__ = _call_of(kind, _kinds[kind].own)  # type: ignore[method-assign] # put back by _restore
            _kinds[kind].openings += 1


def _close(modules: list[nn.Module], kinds: set[type[nn.Module]], around: Around) -> None:
    global _arounds  # noqa: PLW0603 - see _open
    with _lock:
        left = dict(_arounds)
        for module in modules:
            others = tuple(each for each in left.pop(module) if each is not around)
            if others:
                left[module] = others
        _arounds = left
        for kind in kinds:
            _kinds[kind].openings -= 1
            if not _kinds[kind].openings:
                _restore(kind, _kinds.pop(kind).own)


def _restore(kind: type[nn.Module], own: Callable[..., Any] | None) -> None:
    if own is None:
        del kind.__call__
    else:
        kind.__call__ = own  # type: ignore[method-assign] # it is what was there


def _call_of(kind: type[nn.Module], own: Callable[..., Any] | None) -> Callable[..., Any]:
    """The `__call__` of a class while any of its modules is met."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - tracebacks show the name
        inherited = super(kind, self).__call__ if own is None else partial(own, self)  # type: ignore[misc] # torch's
        call: Callable[..., Any] = inherited
        arounds = _arounds.get(self, ())
        # A class and one that it inherits from may both have a __call__ of ours: that of the outermost serves.
        if arounds and next((each for each in type(self).__mro__ if each in _kinds), None) is kind:
            for around in arounds:
                call = _through(around, self, call)
        return call(*args, **kwargs)

    return __call__


def _through(around: Around, module: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(module, call, args, kwargs)
