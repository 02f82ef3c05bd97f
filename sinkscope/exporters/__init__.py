"""A report to a file, by suffix: the list of formats.

To add a format, write a function from a report to a file and list its card here.
"""

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sinkscope.catalog import Catalog
from sinkscope.errors import OutputError
from sinkscope.exporters import naming
from sinkscope.exporters.base import Exporter
from sinkscope.files import check_writable, replacing
from sinkscope.report import Report

__all__ = ["EXPORTERS", "Exporter", "check", "contents", "export"]


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
        Exporter(
            ".csv",
            _later("table", "csv"),
            "one table: heads, or what the file is named after (layers.csv, …)",
            tabular=True,
        ),
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


def check(path: str | Path, absent: Collection[str] = ()) -> None:
    """Raise OutputError if no report could be written to the path: to be asked before a model is loaded.

    absent: the names of tables that the run will not fill.
    """
    path = Path(path)
    check_writable(path)
    name = _table(path)
    if name in absent:
        with _about(path):
            naming.refuse_empty(str(name))


def export(report: Report, path: str | Path) -> None:
    """Write the report to the path in the format of its suffix, atomically; raises OutputError."""
    path = Path(path)
    exporter, name = _exporter(path), _table(path)
    if name is not None and report.tables()[name].empty:
        with _about(path):
            naming.refuse_empty(name)
    with replacing(path) as temporary:
        exporter.function(report, temporary, path.stem)


def contents(path: Path) -> str:
    """The path, with the table that is in the file where its name does not say so."""
    name = _table(path)
    return str(path) if name in {None, path.stem.lower()} else f"{path} (the table `{name}`)"


def _table(path: Path) -> str | None:
    """The name of the table that the path would hold; None for a format that holds no single one."""
    exporter = _exporter(path)
    with _about(path):
        return naming.table_named(path.stem) if exporter.tabular else None


@contextmanager
def _about(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError as error:
        raise OutputError(f"cannot write {path}: {error}") from None


def _exporter(path: Path) -> Exporter:
    suffix = path.suffix.lower()
    if suffix not in EXPORTERS:
        what = f"the suffix {suffix!r} names no format" if suffix else "it has no suffix to name a format"
        raise OutputError(f"cannot write {path}: {what}; there are {', '.join(EXPORTERS)}")
    exporter = EXPORTERS[suffix]
    if exporter.needs is not None and importlib.util.find_spec(exporter.needs) is None:
        raise OutputError(f"cannot write {path}: {suffix} needs {exporter.needs}, which is not installed")
    return exporter
