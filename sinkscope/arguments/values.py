"""Single values: whole numbers, numbers, switches, names and functions."""

import operator
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any


def got(value: object) -> str:
    """A value as a message shows it: short, on one line, with its type where the value would be long."""
    text = repr(value)
    return text if len(text) <= 40 and text.isprintable() and "\n" not in text else f"a {type(value).__name__}"


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, from `least` where one is given; TypeError for what is none, ValueError for one below."""
    if isinstance(value, bool):
        raise TypeError(f"expected {name} to be a whole number, got {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"expected {name} to be a whole number, got {got(value)}") from None
    if least is not None and number < least:
        raise ValueError(f"expected {name} >= {least}, got {number}")
    return number


def fraction(name: str, value: Any) -> float:
    """A number from 0 to 1; TypeError for no number, ValueError for another one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"expected {name} to be a number from 0 to 1, got {got(value)}")
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"expected {name} from 0 to 1, got {value}")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False; TypeError for anything else, since most of it would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"expected {name} to be True or False, got {got(value)}")
    return value


def word(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of a few words; ValueError for anything else."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"expected {name} to be {', '.join(words[:-1])} or {words[-1]}, got {got(value)}")
    return str(value)


def words(name: str, value: Any) -> tuple[str, ...]:
    """Names, or one name alone; TypeError for anything else."""
    if isinstance(value, str):
        return (value,)
    found = listed(name, value, "names")
    if wrong := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"expected {name} to hold names, got {got(wrong[0])}")
    return tuple(found)


def listed(name: str, value: Any, what: str) -> list[Any]:
    """The items of a list or the like; TypeError for what has none, and for text and mappings."""
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        raise TypeError(f"expected {name} to be a list of {what}, got {got(value)}")
    return list(value)


def function(name: str, value: Any, of: str) -> Callable[..., Any]:
    """Something to call; TypeError for anything else."""
    if not callable(value):
        raise TypeError(f"expected {name} to be a function of {of}, got {got(value)}")
    return value  # type: ignore[no-any-return] # callable() says nothing of what it returns
