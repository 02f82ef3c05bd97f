"""Files, directories, tables, stdin and prompts to documents: what is measured is the text that was meant, or nothing.

To add a kind of file, write its rows in `rows.py` and list its suffix in `_document_or_rows`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from sinkscope.errors import TextError
from sinkscope.text.documents.decoding import Excerpt, ReadAt, Reading, excerpt
from sinkscope.text.documents.finding import found
from sinkscope.text.documents.names import shown
from sinkscope.text.documents.rows import json_rows, parquet_rows
from sinkscope.text.documents.sources import bytes_of, file, stdin

__all__ = ["Document", "Excerpt", "Reading", "Rows", "notes", "read_documents", "shown"]

COLUMN = "text"
"""The column of a table that holds the text, by default."""


@dataclass(frozen=True)
class Document:
    """A text, or a way to read its bytes, and the name it goes by.

    A prompt need not fill a window. One of `many`, found in a directory, a pattern or a table, need not give a window.
    """

    name: str
    text: str | ReadAt
    prompt: bool = False
    many: bool = False

    def beginning(self, characters: int | None = None) -> Excerpt:
        """The first characters (None: all); TextError for what is no text. A string is always given whole."""
        if isinstance(self.text, str):
            return _of_string(self.name, self.text)
        return excerpt(self.name, self.text, characters)


@dataclass(frozen=True)
class Rows:
    """Many texts in one place, read one by one, and from the first again each time that it is walked through.

    facts: for the report, what the name does not say of them.
    """

    name: str
    read: Callable[[], Iterator[Document]]
    facts: Mapping[str, object] | None = None

    def __iter__(self) -> Iterator[Document]:
        """Each row as a document; raises TextError where there is none, and for a row that has no text."""
        return self.read()


def read_documents(
    paths: Sequence[str | Path],
    prompts: Sequence[str] = (),
    column: str | None = None,
    others: Sequence[Rows] = (),
) -> list[Document | Rows]:
    """What the paths stand for, `-` for stdin, then the other rows, then the prompts; without any, the built-in sample.

    A path is a file, a directory or a pattern (see `finding`). A row of a .jsonl or .parquet file is a document, its
    text in `column`; every other file is one as a whole. Byte order marks are dropped, and line endings become LF.
    The beginnings of files that are named are read here, everything else when it is needed. Raises TextError for what
    cannot be read, is no text or holds nothing but white space.
    """
    if not paths and not others and not prompts:
        sample = resources.files("sinkscope").joinpath("data/sample.txt").read_bytes()
        return [Document("built-in sample", bytes_of(sample))]
    texts = [*(text for path in paths for text in _texts(str(path), column or COLUMN)), *others]
    if column is not None and not any(isinstance(text, Rows) for text in texts):
        raise TextError("--column is for .jsonl and .parquet files and datasets, and there is none: leave it out")
    # Arguments that were not UTF-8 arrive with surrogates in them: decoding refuses them as it does in a file.
    typed = [
        Document(f"prompt {number}", bytes_of(prompt.encode("utf-8", "surrogatepass")), prompt=True)
        for number, prompt in enumerate(prompts, 1)
    ]
    for text in [*texts, *typed]:
        _check(text)
    return [*texts, *typed]


def notes(paths: Iterable[str | Path]) -> list[str]:
    """How many files each directory and pattern stands for, a line each."""
    counts = {str(path): found(str(path)) for path in paths}
    return [f"{shown(path)}: {len(files)} file{'s' * (len(files) != 1)}" for path, files in counts.items() if files]


def _texts(given: str, column: str) -> list[Document | Rows]:
    if given == "-":
        return [Document("stdin", stdin())]
    files = found(given)
    if files is None:
        return [_document_or_rows(Path(given), column, many=False)]
    return [_document_or_rows(file, column, many=True) for file in files]


def _document_or_rows(path: Path, column: str, *, many: bool) -> Document | Rows:
    name = shown(str(path))
    if path.suffix.lower() in {".jsonl", ".parquet"}:
        return Rows(name, partial(_rows, name, path, column))
    return Document(name, file(name, path), many=many)


def _rows(name: str, path: Path, column: str) -> Iterator[Document]:
    table = path.suffix.lower() == ".parquet"
    rows = parquet_rows(name, path, column) if table else json_rows(name, file(name, path), column)
    place = None
    for place, text in rows:
        yield Document(place, text, many=True)
    if place is None:
        raise TextError(f"{name} has no rows: give a table with some text")


def _check(text: Document | Rows) -> None:
    """Read the beginning of what is named, and of tables, so that mistakes are told before a model is loaded."""
    if isinstance(text, Rows):
        next(iter(text))
    elif not text.many:
        length = 1
        while not (begun := text.beginning(length).text).strip():
            if len(begun) < length:
                raise TextError(f"{text.name} is empty or only white space: give some text")
            length *= 64


def _of_string(name: str, text: str) -> Excerpt:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"{name} has a lone surrogate at character {error.start}: give valid Unicode text") from None
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    digest = hashlib.sha256(content).hexdigest()
    return Excerpt(plain, Reading(len(content), digest, True, "utf-8", plain != text))
