"""The options of measure() and compare(): each is checked before a text is read or a model runs."""

import difflib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from sinkscope.arguments.values import flag, fraction, function, got, listed, whole, word, words
from sinkscope.attention.paths import Path
from sinkscope.metrics import Metric
from sinkscope.metrics.choosing import chosen
from sinkscope.progress import silent
from sinkscope.protocols import Protocol
from sinkscope.protocols import chosen as followed
from sinkscope.tokens import TOKEN_CLASSES

MASSES = "masses"
"""Stands in `only` for what is measured in any case, as on the command line."""

BOS = ("auto", "always", "never")
SYNTHETIC = ("random", "repeat")


def checked_options(
    options: Mapping[str, Any], known: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The options with bare names in lists of their own; raises TypeError, ValueError or UnknownNameError.

    `known` are the names of all options and arguments, for those that are misspelt; `elsewhere` names the function
    that takes an option which this one does not.
    """
    for name in options:
        if name in (elsewhere or {}):
            raise TypeError(f"there is no option named {name!r} here: sinkscope.{(elsewhere or {})[name]} has it")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise TypeError(f"there is no option named {name!r}: {guess}there are {', '.join(sorted(known))}")
    checked = {name: CHECKS[name](value) if name in CHECKS else value for name, value in options.items()}
    chosen(checked.get("only"), also=checked.get("also"))
    return checked


def checked_cut(
    *, seq_len: Any, windows: Any, bos: Any, synthetic: Any, chat: Any, protocol: Any
) -> tuple[int | None, int | str | None]:
    """The length and the number of windows; the others are checked alone. Raises what `checked_options` raises.

    Whether windows of that length can be had is for those who cut them.
    """
    if bos is not None:
        word("bos", bos, BOS)
    if synthetic is not None:
        word("synthetic", synthetic, SYNTHETIC)
    flag("chat", chat)
    _checked_protocol(protocol)
    length = None if seq_len is None else whole("seq_len", seq_len)
    if windows is None or (isinstance(windows, str) and windows == "all"):
        return length, windows
    if isinstance(windows, str):
        raise TypeError(f"expected windows to be a number or 'all', got {windows!r}")
    return length, whole("windows", windows)


def _checked_protocol(protocol: Any) -> None:
    if protocol is None or isinstance(protocol, str | Protocol):
        followed(protocol)
        return
    names = listed("protocol", protocol, "names or cards")
    if wrong := [each for each in names if not isinstance(each, str | Protocol)]:
        raise TypeError(f"expected protocol to be a protocol's name or card, got {got(wrong[0])}")
    followed(names)


def _only(value: Any) -> tuple[str, ...]:
    return tuple(name for name in words("only", value) if name != MASSES)


def _classes(value: Any) -> tuple[str, ...]:
    found = words("classes", value)
    for name in found:
        TOKEN_CLASSES[name]
    return found


def _metrics(value: Any) -> tuple[Metric, ...]:
    found = [value] if isinstance(value, Metric) else value
    if isinstance(found, str) or not all(isinstance(each, Metric) for each in listed("metrics", found, "cards")):
        raise TypeError(f"expected metrics to be cards (sinkscope.metrics.Metric), got {got(value)}: names go in also")
    return tuple(found)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _number(name: str, least: int) -> Callable[[Any], int]:
    return lambda value: whole(name, value, least)


CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "batch_size": _optional(_number("batch_size", 1)),
    "attention": lambda value: word("attention", value, [each.value for each in Path]),
    "only": _optional(_only),
    "also": _optional(partial(words, "also")),
    "classes": _optional(_classes),
    "metrics": _metrics,
    "queries": _optional(_number("queries", 1)),
    "seed": _number("seed", 0),
    "initial": _optional(_number("initial", 1)),
    "epsilon": _optional(partial(fraction, "epsilon")),
    "bootstrap": _optional(_number("bootstrap", 1)),
    "gradients": partial(flag, "gradients"),
    "command": _optional(partial(words, "command")),
    "progress": lambda value: silent if value is None else function("progress", value, "(stage, done, total)"),
}
"""The check of each option: it gives the value that is meant."""
