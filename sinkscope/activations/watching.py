"""Looking at the outputs of decoder layers and of their attention while somebody else runs the model."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.activations.layers import Layer, Layers
from sinkscope.hooks.module_calls import intercepted


@dataclass(frozen=True)
class Place:
    """One output of a forward: of a decoder layer, or of the attention within one.

    `call` counts the calls of the module within the forward. `inside` is the place of the layer in which attention
    runs, None for the layers themselves and for attention that is in no layer.
    """

    module: str
    layer: int | None
    call: int
    attention: bool = False
    inside: "Place | None" = None


Take = Callable[[Place, Tensor | None], None]
"""What is done with an output as it goes by; None for one that is no tensor of three axes."""


@contextmanager
def watching(model: PreTrainedModel, layers: Layers, take: Take) -> Iterator[None]:
    """Hand every layer's and every attention's output to `take`, for as long as the block runs.

    An output is the module's own, in the model's dtype, not to be changed. Nothing is put on the model.
    """
    watch = _Watch(take)
    modules = dict(model.named_modules())
    with ExitStack() as stack:
        # The base model, because the head may be run apart from it.
        stack.enter_context(intercepted([model.base_model], watch.forward))
        for layer in layers.layers:
            stack.enter_context(intercepted([modules[layer.name]], partial(watch.layer, layer)))
        for name in layers.attention:
            stack.enter_context(intercepted([modules[name]], partial(watch.attention, name)))
        yield


class _Watch:
    """Where in a forward the model is."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.calls: Counter[str] = Counter()
        self.running: list[Place] = []

    def forward(self, _: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward of the base model: its calls are counted anew."""
        self.calls.clear()
        return call(*args, **kwargs)

    def layer(
        self, layer: Layer, _: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a decoder layer."""
        place = Place(layer.name, layer.number, self._call(layer.name))
        self.running.append(place)
        try:
            output = call(*args, **kwargs)
        finally:
            self.running.pop()
        self.take(place, _states(output))
        return output

    def attention(
        self, name: str, _: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a module that attends."""
        output = call(*args, **kwargs)
        inside = self.running[-1] if self.running else None
        layer = None if inside is None else inside.layer
        self.take(Place(name, layer, self._call(name), attention=True, inside=inside), _states(output))
        return output

    def _call(self, name: str) -> int:
        self.calls[name] += 1
        return self.calls[name] - 1


def _states(output: Any) -> Tensor | None:
    """The hidden states in what a module returns: the tensor, or the first of several things."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first if isinstance(first, Tensor) and first.dim() == 3 and torch.is_floating_point(first) else None
