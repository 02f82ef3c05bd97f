"""One table of a report as CSV."""

from pathlib import Path

from sinkscope.report import Report
from sinkscope.tokens.showing import visible_text

FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""


def csv(report: Report, path: Path, stem: str) -> None:
    """The table that the file is named after (layers.csv, tokens.csv, …), else `heads`.

    Numbers have a decimal point in every locale, undefined is an empty cell. Token text is shown as on the screen,
    on one line, and behind an apostrophe where a spreadsheet would calculate it.
    """
    tables = report.tables()
    table = tables.get(stem, tables["heads"]).copy()
    for column in ("token", "document"):
        if column in table:
            table[column] = [None if text is None else _guarded(visible_text(text)) for text in table[column]]
    table.to_csv(path, index=False, encoding="utf-8", lineterminator="\n")


def _guarded(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
