"""Which table of a report a file holds: the one that it is named after, and never another one by a slip."""

import dataclasses

from sinkscope.errors import OutputError
from sinkscope.report import Report

USUAL = "heads"
"""The table in a file that is named after none."""

FILLED_BY = {
    "lse": "only a comparison with softmax1, softmax_n or sink_logit fills it",
    "sweep": "only `sinkscope patch --sweep layers` fills it",
    "activations": "the figures of hidden states were not measured; leave --only out, or give --only activations",
    "massive": "the figures of hidden states were not measured; leave --only out, or give --only activations",
}
"""When a table that not every run fills has rows."""


def table_names() -> list[str]:
    """The names of all tables, in the order of the report."""
    return [each.name for each in dataclasses.fields(Report) if each.name != "metadata"]


def table_named(stem: str) -> str:
    """The table that a file of this stem holds: its own name's, whatever the case, or `heads`.

    Raises OutputError for a stem that is one slip away from a table's name.
    """
    names = table_names()
    wanted = stem.lower()
    if wanted in names:
        return wanted
    near = next((name for name in names if one_slip(wanted, name)), None)
    if near is not None:
        raise OutputError(f"no table is named {stem!r}: write {near}.csv, or choose a name less like it for `{USUAL}`")
    return USUAL


def refuse_empty(name: str) -> None:
    """Raise OutputError that says why a table has no rows."""
    reason = FILLED_BY.get(name, "this run has no rows for it")
    raise OutputError(f"the table {name} is empty: {reason}")


def one_slip(one: str, other: str) -> bool:
    """Whether one letter too many, too few or wrong, or two that changed places, tell the words apart."""
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    start = min(len(one), len(other)) if same is None else same
    left, right = one[start:], other[start:]
    swapped = len(left) > 1 and left[:2] == right[1::-1] and left[2:] == right[2:]
    return one != other and (left[1:] == right[1:] or left[1:] == right or left == right[1:] or swapped)
