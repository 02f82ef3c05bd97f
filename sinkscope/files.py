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
    if path.is_dir():
        raise OutputError(f"{path} is a directory: give the name of a file")
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} is not a regular file, and cannot be replaced")
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: there is no directory {folder}")
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name[:32]}.")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    Path(name).unlink()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block succeeds, and vanishes when it does not.

    It keeps the suffix, which some writers go by. Raises OutputError where the system refuses.
    """
    check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
