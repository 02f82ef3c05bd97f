"""One table of a report as CSV."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.exporters.naming import table_named
from sinkscope.report import Report
from sinkscope.text.documents import shown
from sinkscope.tokens.showing import visible_token

FORMULA = re.compile("'*[=+@＝＋＠－-]")
"""What a spreadsheet takes for the beginning of a formula, apostrophes in front included."""


def csv(report: Report, path: Path, stem: str) -> None:
    r"""The table that the file is named after (layers.csv, tokens.csv, …), else `heads`.

    Numbers have a decimal point in every locale, undefined is an empty cell. `token` is for people: as on the screen,
    on one line. `token_json` beside it is the exact text as a JSON string, or null. Text that a spreadsheet would
    calculate gets one apostrophe in front, and so does text that looks as if it had got one: where a cell matches
    `'+[=+@-]`, taking one apostrophe away gives the text.
    """
    table = report.tables()[table_named(stem)].copy()
    for name in [each for each in table if not pd.api.types.is_numeric_dtype(table[each])]:
        table[name] = [_guarded(_shown(str(name), cell)) for cell in table[name]]
    if "token" in table:
        texts = [None if pd.isna(text) else text for text in report.tables()[table_named(stem)]["token"]]
        table.insert(list(table).index("token") + 1, "token_json", [json.dumps(text) for text in texts])
    table.to_csv(path, index=False, encoding="utf-8", lineterminator="\n")


def _shown(column: str, cell: Any) -> str | None:
    """The cell as text without a sign that does not print; tokens with their white space visible."""
    if pd.isna(cell):
        return None
    return visible_token(cell) if column == "token" else shown(str(cell))


def _guarded(text: str | None) -> str | None:
    return f"'{text}" if text is not None and FORMULA.match(text) else text
