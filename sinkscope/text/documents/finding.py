"""What people give as a text to the files that they mean: a file, a directory of them, a pattern."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from sinkscope.errors import TextError
from sinkscope.text.documents.names import shown

SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")
"""What is taken from a directory; a file that is named can have any suffix."""


def found(given: str) -> list[Path] | None:
    """The files of a directory or of a pattern, sorted; None where `given` names a single file itself.

    A directory is searched to its depth, without hidden names. A pattern such as `texts/**/*.md` stands for files of
    any suffix, unless there is something of exactly that name. Raises TextError where nothing is found.
    """
    path = Path(given)
    try:
        if path.is_dir():
            return _in_directory(path)
        if not glob.has_magic(given) or path.exists():
            return None
    except (OSError, ValueError):  # a name too long, or one with a NUL in it: no file, as opening it will tell
        return None
    pattern = str(path.expanduser())
    matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 - a Path takes no absolute pattern
    files = sorted({match for match in matches if match.is_file()})
    if not files:
        raise TextError(f"no file is like {shown(given)}: give a pattern of files that exist")
    return files


def _in_directory(directory: Path) -> list[Path]:
    files = sorted(_visible_files(directory), key=lambda path: path.relative_to(directory).parts)
    if not files:
        kinds = ", ".join(SUFFIXES)
        raise TextError(f"{shown(str(directory))} holds none of {kinds}: name the files, or give a pattern")
    return files


def _visible_files(directory: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file():
                yield path


def _unreadable(error: OSError) -> None:
    raise TextError(f"cannot read {shown(str(error.filename))}: {error.strerror}: give a readable directory")
