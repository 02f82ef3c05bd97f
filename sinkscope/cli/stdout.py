"""stdout belongs to the results: what anything else prints goes to stderr, and a stdout that is closed stays closed."""

import ctypes
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STANDARD = (0, 1, 2)
"""The numbers of stdin, stdout and stderr."""


class Closed(io.TextIOBase):
    """In the place of a stdout that was closed when the program began: whatever is written to it fails."""

    encoding = "utf-8"

    def write(self, _text: str) -> int:
        """Fail as the system would."""
        raise OSError(errno.EBADF, "stdout is closed")


def is_closed() -> bool:
    """Whether stdout was closed when the program began."""
    return isinstance(sys.stdout, Closed)


def occupy() -> None:
    """Take the numbers of standard streams that are closed, and give Python streams in their place.

    A closed number would go to the next file that is opened, and what a library prints would land in that file.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = Closed()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def give_up() -> None:
    """Drop what cannot be written: Python would try once more when it ends, and complain once more."""
    if not is_closed():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reserved() -> Iterator[None]:
    """Send to stderr what anything prints to stdout while the block runs, native code included."""
    ours = sys.stdout
    ours.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        # What is still in a buffer was printed in the block, and has to leave before stdout is itself again.
        for stream in (ours, sys.__stdout__):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()  # type: ignore[union-attr] # None where stdout was closed
        _flush_native()
        os.dup2(kept, 1)
        os.close(kept)
        sys.stdout = ours


def _flush_native() -> None:
    """Empty the buffers of C's own streams."""
    with suppress(OSError, AttributeError, TypeError):  # no C library to be had by that name
        ctypes.CDLL(None).fflush(None)
