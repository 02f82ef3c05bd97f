"""The two streams: stdout carries results, stderr talk; neither interprets what a token or a path says."""

import os
import sys
from typing import TextIO

from rich.console import Console


def results() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def talk() -> Console:
    """Where progress, notes and errors go."""
    return _console(sys.stderr)


def plain(stream: TextIO) -> bool:
    """Whether the stream can show ASCII only."""
    try:
        "█·“␣±".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def escaped(message: str) -> str:
    """A message on one line, without a character that a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in message)


def _console(stream: TextIO) -> Console:
    # What a stream cannot encode is escaped rather than fatal: tokens hold every script there is.
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    coloured = _coloured(stream)
    return Console(
        file=stream,
        force_terminal=coloured or None,
        color_system="auto" if coloured else None,
        no_color=not coloured,
        markup=False,
        emoji=False,
        highlight=False,
        width=_width(),
        safe_box=True,
    )


def _coloured(stream: TextIO) -> bool:
    """NO_COLOR wins, FORCE_COLOR comes next (0 and false mean no), then whether anybody is looking."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    forced = os.environ.get("FORCE_COLOR", "").lower()
    if forced:
        return forced not in {"0", "false", "no"}
    return stream.isatty()


def _width() -> int | None:
    """COLUMNS where it is a sensible number; else whatever the terminal says, or 80 in a pipe."""
    told = os.environ.get("COLUMNS", "")
    return max(30, int(told)) if told.isdigit() and int(told) > 0 else None
