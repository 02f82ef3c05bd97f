"""Which modules of a model are its decoder layers, found by where its attention is seen rather than by their names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from torch import nn

from sinkscope.attention import Site


@dataclass(frozen=True)
class Layer:
    """A decoder layer, with attention in it or without: its module's qualified name, and its number in the model."""

    name: str
    number: int


@dataclass(frozen=True)
class Layers:
    """The modules of a model whose outputs are hidden states, and why others are not known."""

    layers: tuple[Layer, ...] = ()
    attention: tuple[str, ...] = ()
    """The modules that attend from token to token."""
    undefined: dict[str, str] = field(default_factory=dict)


def decoder_layers(model: nn.Module, sites: Iterable[Site]) -> Layers:
    """The elements of those module lists that hold the attention of these sites.

    All elements of such a list are layers, since the layers of a hybrid may do without attention. A layer has the
    number of its attention; one without it is counted from the others of its list. Attention that is in no list of
    modules leaves a reason in `undefined`.
    """
    modules = dict(model.named_modules())
    numbers = {site.name: site.layer for site in sites}
    lists: dict[str, dict[int, int]] = {}
    undefined = {}
    for name, number in numbers.items():
        stack = _list_around(modules, name)
        if stack is None:
            undefined[name] = "it is in no list of modules, so its decoder layer cannot be told"
            continue
        element = int(name.removeprefix(f"{stack}.").split(".")[0])
        # Attention that layers share may have the number -1.
        lists.setdefault(stack, {}).setdefault(element, number if number >= 0 else element)
    names = {id(module): name for name, module in modules.items()}
    found: dict[str, Layer] = {}
    for stack, known in lists.items():
        offsets = {number - index for index, number in known.items()}
        offset = offsets.pop() if len(offsets) == 1 else 0
        for index, module in enumerate(cast("nn.ModuleList", modules[stack])):
            name = names[id(module)]
            found.setdefault(name, Layer(name, known.get(index, index + offset)))
    return Layers(tuple(found.values()), tuple(numbers), undefined)


def _list_around(modules: Mapping[str, nn.Module], name: str) -> str | None:
    """The outermost module list that a module is in."""
    parts = name.split(".")
    prefixes = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((prefix for prefix in prefixes if isinstance(modules[prefix], nn.ModuleList)), None)
