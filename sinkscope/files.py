"""Files that are either as they were or complete, never in between."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sinkscope.errors import OutputError


def check_writable(path: Path) -> None:
    """Raise OutputError if a file cannot be put at the path: found out before the work, not after it.

    Nothing is left behind, and an existing file is not touched.
    """
    with _refusing(path):
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a directory; give the name of a file")
        if path.exists() and not path.is_file():
            raise OutputError(f"cannot write {path}: it is not a regular file; give the name of one")
        if path.exists() and not os.access(path, os.W_OK):
            raise OutputError(f"cannot write {path}: it is read-only; give another name")
        if not path.resolve().parent.is_dir():
            raise OutputError(f"cannot write {path}: there is no directory {path.resolve().parent}; create it first")
        _temporary(path).unlink()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block succeeds, and vanishes when it does not.

    It keeps the suffix, which some writers go by. A link stays a link, and the file it leads to is replaced.
    Raises OutputError where the system refuses.
    """
    check_writable(path)
    with _refusing(path):
        temporary = _temporary(path)
        try:
            yield temporary
            temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
            temporary.replace(path.resolve())
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _temporary(path: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
