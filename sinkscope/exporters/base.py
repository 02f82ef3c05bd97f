"""The card of an exporter: a report in, one file out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sinkscope.report import Report


@dataclass(frozen=True)
class Exporter:
    """A file format, known by its suffix, which is also its name.

    `function(report, path, stem)` writes a whole file at the path, and need not care what was there: it is handed a
    temporary file that takes the place of the real one when it is done. `stem` is the name that the user gave
    without the suffix, for formats that hold one table of several, which are `tabular` (see `naming`). `needs` is a
    module that the format cannot do without.
    """

    name: str
    function: Callable[[Report, Path, str], None]
    summary: str
    needs: str | None = None
    tabular: bool = False
