"""Which metrics a run measures: all of them, or those that masses alone give and a few others."""

from collections.abc import Collection, Sequence

from sinkscope.metrics import METRICS, Metric

RECEIVED = "received"
"""The mass that each token receives: a table of its own, and no metric of heads, but chosen by name like one."""


def chosen(only: Collection[str] | None, extra: Sequence[Metric] = ()) -> tuple[Metric, ...]:
    """The standard metrics, of those that need more than masses only the ones named, and `extra` behind them.

    Raises UnknownNameError for a name that is no metric's, ValueError for two metrics of one name.
    """
    named = [METRICS[name].name for name in only or () if name != RECEIVED]
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
