"""Normalizers that are not in the catalog: a function given as an object, or named as module:function."""

import importlib
from collections.abc import Callable

from torch import Tensor

from sinkscope.errors import SinkscopeError, UnknownNameError
from sinkscope.normalizers.base import Normalizer


def adopted(function: Callable[..., Tensor], name: str) -> Normalizer:
    """The card of a bare function f(scores) -> weights, of which nothing is known."""
    summary = (function.__doc__ or "").strip().partition("\n")[0] or "a function from outside the catalog"
    return Normalizer(
        name=name, function=function, summary=summary, formula=name, source="given by the user", published=False
    )


def imported(spec: str) -> Normalizer:
    """The card of `module:function`, or the card of that name in the module; looks nowhere but on the Python path.

    Raises UnknownNameError where there is no such module or function, SinkscopeError where it cannot serve.
    """
    place, _, name = spec.partition(":")
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise UnknownNameError(
            f"{spec!r} is neither in the catalog nor a function: {error}; put its folder on PYTHONPATH"
        ) from error
    except Exception as error:  # somebody else's module can fail in any way
        raise SinkscopeError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if isinstance(found, Normalizer):
        return found
    if found is None:
        raise UnknownNameError(f"the module {place} has no {name!r}: name a function of scores in it")
    if not callable(found):
        raise SinkscopeError(f"{spec} is of type {type(found).__name__}: it must be a function of scores")
    return adopted(found, spec)
