"""Where bytes come from: files, pipes and memory, each read in parts and from the start as often as need be."""

import io
import sys
from functools import partial
from pathlib import Path

from sinkscope.errors import TextError
from sinkscope.text.documents.decoding import ReadAt


def bytes_of(content: bytes) -> ReadAt:
    """What is in memory already."""
    return lambda start, size: content[start : start + size]


def stdin() -> ReadAt:
    """Standard input; TextError where it is closed."""
    pipe = getattr(sys.stdin, "buffer", None)
    if pipe is None:
        raise TextError("cannot read stdin: it is closed: pipe some text into it")
    return _Pipe("stdin", pipe).read


def file(name: str, path: Path) -> ReadAt:
    """A file of any kind; TextError where it cannot be read, now or later."""
    try:
        once = path.exists() and not path.is_file()
        return _Pipe(name, path.open("rb"), ours=True).read if once else partial(_read, name, path)
    except (OSError, ValueError) as error:  # a path with a NUL in it is a ValueError
        raise _unreadable(name, error) from None


def _read(name: str, path: Path, start: int, size: int) -> bytes:
    # Opened anew for each part, so that no file stays open that is not read to its end.
    try:
        with path.open("rb") as opened:
            opened.seek(start)
            return opened.read(size)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None


class _Pipe:
    """What can be read once only, kept as far as it has been read."""

    def __init__(self, name: str, pipe: io.BufferedIOBase, *, ours: bool = False) -> None:
        self._name, self._pipe, self._ours = name, pipe, ours
        self._content = bytearray()
        self._ended = False

    def read(self, start: int, size: int) -> bytes:
        missing = start + size - len(self._content)
        if missing > 0 and not self._ended:
            self._content += self._next(missing)
        return bytes(self._content[start : start + size])

    def _next(self, size: int) -> bytes:
        try:
            content = self._pipe.read(size)
        except (OSError, ValueError) as error:  # a closed stream is a ValueError
            raise _unreadable(self._name, error) from None
        self._ended = len(content) < size
        if self._ended and self._ours:
            self._pipe.close()
        return content


def _unreadable(name: str, error: Exception) -> TextError:
    reason = getattr(error, "strerror", None) or str(error).removesuffix(".")
    return TextError(f"cannot read {name}: {reason}: give a readable UTF-8 file")
