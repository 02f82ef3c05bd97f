"""Tables of texts to their rows: JSON lines and Parquet, read row by row."""

import difflib
import importlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import TextError
from sinkscope.text.documents.decoding import ReadAt, lines
from sinkscope.text.documents.names import shown

_ROWS_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 22


def json_rows(name: str, read: ReadAt, column: str) -> Iterator[tuple[str, str]]:
    """The place and the text of each line that is not empty: a JSON string, or the column of an object.

    Raises TextError with the line of anything else.
    """
    for number, line in enumerate(lines(name, read), start=1):
        if not line.strip():
            continue
        place = f"{name} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(f"{place} is not JSON ({error}): put one JSON string or object on each line") from None
        yield place, text_of(place, row, column) if isinstance(row, dict) else _checked(place, row)


def parquet_rows(name: str, path: Path, column: str) -> Iterator[tuple[str, str]]:
    """The place and the text of each row.

    Raises TextError for a file that is not Parquet, and with the row of a value that is not text.
    """
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise TextError(f"reading {name} needs pyarrow: pip install pyarrow") from None
    number = 0
    try:
        columns = parquet.read_schema(path).names
        if column not in columns:
            raise no_column(name, column, columns)
        for batch in parquet_batches(path, [column]):
            for value in batch.column(0):
                number += 1
                place = f"{name} row {number}"
                yield place, _checked(f"{place}: {shown(column)}", _unwrapped(place, value))
    except (OSError, pyarrow.ArrowException) as error:
        reason = shown(str(error)).removesuffix(".")
        raise TextError(f"cannot read {name} as Parquet: {reason}: give a whole Parquet file") from None


def parquet_batches(file: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    """The rows of a Parquet file, a few at a time, read by the thread that asks for them and by no other.

    pyarrow's dataset scanner reads ahead in threads of its own. One that is left half read when the process ends, and
    waits for its file just then, makes the process abort (apache/arrow#45214).
    """
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BYTES_AT_ONCE) as table:
        yield from table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns, use_threads=False)


def text_of(place: str, row: Mapping[str, Any], column: str) -> str:
    """The text in a column of a row; TextError where there is no such column, or no text in it."""
    if column not in row:
        raise no_column(place, column, row)
    return _checked(f"{place}: {shown(column)}", row[column])


def _unwrapped(place: str, value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        raise TextError(f"{place} is not valid UTF-8: write the table anew with text in it") from None


def no_column(place: str, column: str, columns: Collection[str], remedy: str = "name one with --column") -> TextError:
    """The refusal of a column that is not there, with those that are, the likeliest first."""
    if not columns:
        return TextError(f"{place} has no column {shown(column)!r} and no other: give rows with a text")
    alike = {name: difflib.SequenceMatcher(a=name.lower(), b=column.lower()).ratio() for name in columns}
    nearest = sorted(columns, key=lambda name: -alike[name])
    there = ", ".join(map(shown, nearest))
    return TextError(f"{place} has no column {shown(column)!r}: {remedy}; there are {there}")


def _checked(place: str, value: Any) -> str:
    """The value, if it is text that can be tokenised."""
    if value is None:
        raise TextError(f"{place} is null: give it a text, or leave the row out")
    if not isinstance(value, str):
        raise TextError(f"{place} is of type {type(value).__name__}: give text")
    return value
