"""Whatever a forward may change on a model beside its output: recorded before it, and put back after it.

Some models change themselves while they run: rotary embeddings that follow the longest text so far replace their
frequencies, caches are made on first use, block-sparse attention exchanges modules. A measurement must neither leave
such a change behind nor let one window's change reach the next window.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import eq, is_
from typing import Any

import torch
from torch import Tensor, nn

NOT_RECORDED = frozenset({"_parameters"})
"""Attributes of a module that a forward never replaces, but that offloading exchanges for good reasons."""


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Buffers, submodules, attributes, hooks and configurations are afterwards what they were, whatever happened."""
    owners = [*model.modules(), *_configurations(model)]
    before = [_Recorded.of(owner) for owner in owners]
    try:
        yield
    finally:
        for each in before:
            each.restore()


def _configurations(model: nn.Module) -> list[object]:
    found = (getattr(module, "config", None) for module in model.modules())
    return [*{id(config): config for config in found if hasattr(config, "__dict__")}.values()]


@dataclass(frozen=True, eq=False)
class _Recorded:
    """The attributes of one module or configuration, and what its containers and buffers held."""

    attributes: dict[str, Any]
    """The owner's own `__dict__`."""
    values: dict[str, Any]
    containers: list[tuple[Any, Any]]
    """Each dict, list or set among the values, and a copy of it; of an empty one None, since most are."""
    tensors: list[tuple[Tensor, Tensor]]
    """Each tensor that a forward could write to, and a copy of it."""

    @classmethod
    def of(cls, owner: object) -> "_Recorded":
        attributes = vars(owner)
        values = {name: value for name, value in attributes.items() if name not in NOT_RECORDED}
        containers, held = [], [*values.get("_buffers", {}).values()]
        for value in values.values():
            if isinstance(value, dict | list | set):
                containers.append((value, value.copy() if value else None))
            elif isinstance(value, Tensor):
                held.append(value)
        tensors = [(each, each.clone()) for each in held if each is not None and not each.is_meta]
        return cls(attributes, values, containers, tensors)

    def restore(self) -> None:
        if len(self.attributes) > len(self.values):
            for name in self.attributes.keys() - self.values.keys() - NOT_RECORDED:
                del self.attributes[name]
        for name, value in self.values.items():
            if self.attributes.get(name, self) is not value:
                self.attributes[name] = value
        for container, copy in self.containers:
            if container if copy is None else not _same(container, copy):
                container.clear()
                if copy is not None:
                    container.extend(copy) if isinstance(container, list) else container.update(copy)
        for tensor, copy in self.tensors:
            # Written to only where it has changed: another thread may be reading it.
            if not torch.equal(tensor, copy):
                tensor.detach().copy_(copy)


def _same(container: Any, copy: Any) -> bool:
    """Whether two dicts, lists or sets hold the very same objects, in the same order."""
    if isinstance(container, set):
        return bool(container == copy)
    if len(container) != len(copy):
        return False
    if isinstance(container, dict):
        return all(map(eq, container, copy)) and all(map(is_, container.values(), copy.values()))
    return all(map(is_, container, copy))
