"""What takes softmax's place, and where: normalizers, a modifier, layers, heads."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from sinkscope.arguments.values import got, listed, whole
from sinkscope.normalizers import Modifier, Normalizer, resolve

EXAMPLE = "[(3, 2), (5, None)]"


def normalizers(given: Any) -> tuple[Any, ...]:
    """Normalizers, or one alone; each as in `checked_normalizer`."""
    if isinstance(given, str | Normalizer) or callable(given):
        given = (given,)
    found = tuple(listed("normalizers", given, "names, cards or functions of scores"))
    for each in found:
        checked_normalizer(each)
    return found


def checked_normalizer(given: Any) -> None:
    """TypeError for what is no name, no card and no function that takes scores alone; raises what `resolve` raises."""
    if isinstance(given, str | Normalizer):
        resolve(given)
        return
    if not callable(given):
        raise TypeError(f"expected a normalizer's name, card or function of scores, got {got(given)}")
    _try(given)


def _try(function: Callable[..., Any]) -> None:
    """TypeError for a function that cannot be called with scores alone; what it gives is looked at when it is used."""
    scores = torch.zeros(1, 1, 2, 2).masked_fill(torch.ones(2, 2, dtype=torch.bool).triu(1), -torch.inf)
    try:
        function(scores)
    except TypeError as error:
        name, why = getattr(function, "__name__", type(function).__name__), str(error).partition("\n")[0]
        raise TypeError(f"expected a function of scores[..., key] alone, got {name}, which fails: {why}") from error


def checked_modifier(given: Any) -> None:
    """TypeError for what is no Modifier."""
    if given is not None and not isinstance(given, Modifier):
        example = "sinkscope.normalizers.Modifier(window=64)"
        raise TypeError(f"expected a modifier such as {example}, got {got(given)}")


def checked_layers(given: Any) -> tuple[int, ...] | None:
    """Numbers of layers, or one alone; TypeError for other things, ValueError for none and for numbers below 0."""
    if given is None:
        return None
    if isinstance(given, str | bytes):
        raise TypeError(f"expected layers as numbers such as range(4, 12), got {got(given)}")
    alone = not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0
    found = tuple(whole("a layer's number", each, 0) for each in ([given] if alone else given))
    return _some("layers", found)


def checked_heads(given: Any) -> tuple[tuple[int, int | None], ...] | None:
    """Pairs of a layer's and a head's number, None for all its heads; TypeError and ValueError for other things."""
    if given is None:
        return None
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
        raise TypeError(f"expected heads as (layer, head) pairs such as {EXAMPLE}, got {got(given)}")
    found = []
    for pair in given:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"expected heads as (layer, head) pairs such as {EXAMPLE}, got {got(pair)}")
        layer, head = pair
        number = None if head is None else whole("a head's number", head, 0)
        found.append((whole("a layer's number", layer, 0), number))
    return _some("heads", tuple(found))


def _some(name: str, found: tuple[Any, ...]) -> tuple[Any, ...]:
    if not found:
        raise ValueError(f"expected {name} to choose from, got none: leave {name} out for all of them")
    return found
