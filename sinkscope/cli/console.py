"""The two streams: stdout carries results, stderr talk; neither interprets what a token or a path says."""

import codecs
import os
import sys
from typing import Any

from rich.console import Console

from sinkscope.cli.stdout import occupy
from sinkscope.text.documents import shown

Stream = Any
"""Whatever stands in for sys.stdout: a terminal, a pipe, a buffer; there is no class that they share."""

NARROWEST = 30
"""Columns that are used even where COLUMNS claims fewer."""

USUAL = 80
"""Columns where there is no terminal to ask."""

ASCII = {
    "“": '"',
    "”": '"',
    "…": "...",
    "±": "+/-",
    "×": "x",
    "–": "-",
    "≤": "<=",
    "‖": "|",
    "␣": "\\s",
    "÷": "/",
}
"""What stands in for our own signs where a stream cannot show them; any other character becomes an escape."""


def settle() -> None:
    """Make the environment say one thing to rich and to Typer's help alike, and give closed streams somewhere to go.

    Without this NO_COLOR beside FORCE_COLOR still sends bold, and FORCE_COLOR=0 turns colours on.
    """
    occupy()
    for stream in (sys.stdout, sys.stderr):
        _forgiving(stream)
    if _refused():
        os.environ.pop("FORCE_COLOR", None)
        os.environ["TERM"] = "dumb"
    if not _columns():
        os.environ.pop("COLUMNS", None)


def results() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def talk() -> Console:
    """Where progress, notes and errors go."""
    return _console(sys.stderr)


def say(message: str) -> None:
    """Put one line on stderr, whatever the message holds."""
    talk().print(shown(message), soft_wrap=True)


def plain(stream: Stream) -> bool:
    """Whether the stream can show ASCII only, or not even blocks."""
    try:
        "█·“␣±".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _console(stream: Stream) -> Console:
    coloured = not _refused() and (bool(os.environ.get("FORCE_COLOR")) or stream.isatty())
    _forgiving(stream)
    return Console(
        file=stream,
        force_terminal=coloured or None,
        color_system="auto" if coloured else None,
        no_color=not coloured,
        markup=False,
        emoji=False,
        highlight=False,
        width=_width(stream),
    )


def _refused() -> bool:
    """Whether colour is out of the question: by NO_COLOR, by FORCE_COLOR=0, or because the terminal has none."""
    forced = os.environ.get("FORCE_COLOR", "").lower()
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or forced in {"0", "false", "no"}


def _width(stream: Stream) -> int:
    """COLUMNS where it is a sensible number; else whatever the terminal says, or 80 in a pipe."""
    try:
        return max(NARROWEST, _columns() or os.get_terminal_size(stream.fileno()).columns or USUAL)
    except (AttributeError, ValueError, OSError):  # no file behind it, or no terminal
        return USUAL


def _columns() -> int:
    """The environment's COLUMNS, 0 where it is no number."""
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isascii() and told.isdigit() else 0


def _forgiving(stream: Stream) -> None:
    """What the stream cannot encode is spelled out rather than fatal: tokens hold every script there is."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_spelled_out.__name__)


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(ASCII.get(each) or each.encode("ascii", "backslashreplace").decode() for each in lost), error.end


codecs.register_error(_spelled_out.__name__, _spelled_out)
