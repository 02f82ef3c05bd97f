"""Which metrics a run measures: all of them, or those that masses alone give and a few others."""

import difflib
from collections.abc import Collection, Iterable, Sequence

from sinkscope.errors import UnknownNameError
from sinkscope.metrics import METRICS, Metric, dormancy

RECEIVED = "received"
"""The mass that each token receives: a table of its own, and no metric of heads, but chosen by name like one."""

HIDDEN = "activations"
"""The figures of hidden states: likewise."""

GROUPS = {"dormancy": dormancy.SCORES}
"""Metrics that one name stands for."""


def chosen(
    only: Collection[str] | None, extra: Sequence[Metric] = (), also: Collection[str] | None = None
) -> tuple[Metric, ...]:
    """The standard metrics, of those that need more than masses only the ones named, and `extra` behind them.

    `also` names optional metrics to be measured beside these. The name of a group stands for all of it. Raises
    UnknownNameError for a name that is no metric's, ValueError for two metrics of one name.
    """
    named = _named([*(only or ()), *(also or ())])
    found = [
        metric
        for metric in METRICS.values()
        if metric.name in named or (not metric.optional and (only is None or not metric.needs))
    ]
    found += [metric for metric in extra if metric not in found]
    if len({metric.name for metric in found}) < len(found):
        raise ValueError(f"expected extra metrics with names of their own, got {[each.name for each in extra]}")
    return tuple(found)


def asks_for_received(only: Collection[str] | None) -> bool:
    """Whether the mass that each token receives is wanted."""
    return only is None or RECEIVED in only


def asks_for_hidden(only: Collection[str] | None) -> bool:
    """Whether hidden states are to be watched."""
    return only is None or HIDDEN in only


def _named(names: Iterable[str]) -> set[str]:
    """The metrics that go by these names, those of groups one by one."""
    cards = [_known(name) for name in names if name not in {RECEIVED, HIDDEN}]
    return {card.name for each in cards for card in each}


def _known(name: str) -> tuple[Metric, ...]:
    if name in GROUPS:
        return GROUPS[name]
    near = difflib.get_close_matches(name, GROUPS, n=1, cutoff=0.7)
    if near and name not in METRICS:
        raise UnknownNameError(
            f"there is no metric named {name!r}: did you mean {near[0]!r}, which stands for several?"
        )
    return (METRICS[name],)
