"""A report to a file, by suffix: the list of formats.

To add a format, write a function from a report to a file and list its card here.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

from sinkscope.catalog import Catalog
from sinkscope.errors import OutputError
from sinkscope.exporters.base import Exporter
from sinkscope.files import check_writable, replacing
from sinkscope.report import Report

__all__ = ["EXPORTERS", "Exporter", "check", "export"]


def _later(module: str, name: str) -> Callable[[Report, Path, str], None]:
    """A function of this package that is imported when it is first called: matplotlib takes a second."""

    def call(report: Report, path: Path, stem: str) -> None:
        getattr(importlib.import_module(f"sinkscope.exporters.{module}"), name)(report, path, stem)

    return call


def _json(report: Report, path: Path, stem: str) -> None:  # noqa: ARG001 - every exporter is called alike
    path.write_text(report.to_json(), encoding="utf-8")


EXPORTERS: Catalog[Exporter] = Catalog(
    "format",
    [
        Exporter(".json", _json, "the complete run, reloadable: every table and the metadata"),
        Exporter(".csv", _later("table", "csv"), "one table: heads, or what the file is named after (layers.csv, …)"),
        Exporter(
            ".png",
            _later("figure", "heatmap"),
            "heat map of layers and heads, 200 dpi; a comparison has one for each normalizer",
            needs="matplotlib",
        ),
        Exporter(".svg", _later("figure", "heatmap"), "the same as vector graphics", needs="matplotlib"),
        Exporter(".pdf", _later("figure", "heatmap"), "the same for a paper", needs="matplotlib"),
    ],
)


def check(path: Path) -> None:
    """Raise OutputError if no report could be written to the path: to be asked before a model is loaded."""
    check_writable(path)
    _exporter(path)


def export(report: Report, path: Path) -> None:
    """Write the report to the path in the format of its suffix, atomically; raises OutputError."""
    exporter = _exporter(path)
    with replacing(path) as temporary:
        exporter.function(report, temporary, path.stem)


def _exporter(path: Path) -> Exporter:
    suffix = path.suffix.lower()
    if suffix not in EXPORTERS:
        what = f"the suffix {suffix!r} names no format" if suffix else "it has no suffix to name a format"
        raise OutputError(f"cannot write {path}: {what}; there are {', '.join(EXPORTERS)}")
    exporter = EXPORTERS[suffix]
    if exporter.needs is not None and importlib.util.find_spec(exporter.needs) is None:
        raise OutputError(f"cannot write {path}: {suffix} needs {exporter.needs}, which is not installed")
    return exporter
