"""Why a cell of a table is null: reasons that are looked for where something is null, and given only there.

A key of `metadata["undefined"]` names columns, `*` standing for any part of a name and `table.` for one table only. A
figure's name stands for its errors and changes too. ` under NAME` and ` of NAME` say for which normalizer or module.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd

Cells = Callable[[pd.DataFrame, str], "pd.Series[bool]"]
"""Of a table and a column: the rows of which a reason speaks."""

ENDS = re.compile(r"_(sampling_se|se|low|high|delta|before)$")
"""What is behind a figure's name in the columns of its errors and changes."""


@dataclass(frozen=True)
class Reason:
    """Why the columns of a key are null in some rows; without `where` in all of them."""

    key: str
    why: str
    where: Cells | None = None


def stands_for(key: str, table: str, column: str) -> bool:
    """Whether a key of `metadata["undefined"]` speaks of a column."""
    return any(_matches(pattern, table, column) for pattern in _columns(key))


def reasons(tables: dict[str, pd.DataFrame], known: Iterable[Reason]) -> dict[str, str]:
    """Of the known reasons those that explain a null of the tables, each null by the first that does."""
    known = tuple(known)
    found: dict[str, str] = {}
    for name, table in tables.items():
        for column in table.columns[table.isna().any()]:
            left = table[column].isna()
            for reason in known:
                if not stands_for(reason.key, name, column):
                    continue
                explained = left if reason.where is None else left & reason.where(table, column)
                if explained.any():
                    found[reason.key] = reason.why
                    left = left & ~explained
                if not left.any():
                    break
    return found


def base(column: str) -> str:
    """The figure that a column of errors or changes is of."""
    while (shorter := ENDS.sub("", column)) != column:
        column = shorter
    return column


def _columns(key: str) -> list[str]:
    return re.split(r" (?:under|of) ", key, maxsplit=1)[0].split(", ")


def _matches(pattern: str, table: str, column: str) -> bool:
    only, _, name = pattern.rpartition(".")
    if only and only != table:
        return False
    return fnmatchcase(column, name) or fnmatchcase(base(column), name)
