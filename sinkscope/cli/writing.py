"""A report to the files that were asked for, and to stdout."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sinkscope.cli import stdout
from sinkscope.cli.console import results, say
from sinkscope.errors import OutputError


def write(report: Any, outputs: Iterable[Path]) -> dict[Path, str]:
    """Write every file that can be written; the others with the reason."""
    from sinkscope import exporters

    failures = {}
    for path in outputs:
        try:
            exporters.export(report, path)
        except OutputError as error:
            failures[path] = str(error)
    return failures


def tell(report: Any, outputs: Iterable[Path], failures: dict[Path, str]) -> None:
    """Say on stderr what the model's loader has to say, and which files were written."""
    from sinkscope import exporters

    for note in report.metadata["model"].get("notes", []):
        say(f"note: {note}")
    for path in outputs:
        if path not in failures:
            say(f"wrote {exporters.contents(path)}")


def put_out(report: Any, show: Callable[[Any, Any], None], *, json: bool) -> None:
    """Put the report on stdout: as one JSON document, or as `show(report, console)` prints it for people."""
    if not json:
        show(report, results())
        return
    # Always UTF-8, as JSON has to be, whatever the terminal's encoding is.
    document = report.to_json().encode("utf-8")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Typer ends without a word here. Whoever reads a screen has seen enough, but half a document is of no use.
        stdout.give_up()
        raise OutputError("cannot write the results: their reader has closed the pipe") from None
