"""read(): what can be named as a text, on the command line and in Python alike, becomes documents."""

from collections.abc import Iterable
from pathlib import Path

from sinkscope.text.documents import Document, Rows, read_documents

Names = str | Path | Iterable[str | Path]
"""One name, or several."""


def read(
    files: Names = (),
    *,
    prompts: str | Iterable[str] = (),
    dataset: str | Iterable[str] = (),
    column: str | None = None,
    dataset_revision: str | None = None,
    token: str | None = None,
) -> list[Document | Rows]:
    """Documents for the `text` of `measure` and `compare`; with no argument, the built-in sample.

    `files` are files, directories and patterns, `-` standing for stdin; a row of a .jsonl or .parquet file is a
    document of its own, with its text in `column`. `dataset` is NAME[#CONFIG][:SPLIT[:COLUMN]] on the Hub, read row by
    row at `dataset_revision` with `token`. A prompt need not fill a window. The beginnings of texts are read here,
    everything else when it is needed. Raises TextError for what cannot be read or is no text.
    """
    named = [dataset] if isinstance(dataset, str) else list(dataset)
    paths = [files] if isinstance(files, str | Path) else list(files)
    typed = [prompts] if isinstance(prompts, str) else list(prompts)
    return read_documents(paths, typed, column, [_rows(each, column, dataset_revision, token) for each in named])


def _rows(given: str, column: str | None, revision: str | None, token: str | None) -> Rows:
    # Only where there are any: it takes torch to ask the Hub, and reading files does not.
    from sinkscope.text.hub_datasets import dataset_rows  # noqa: PLC0415

    return dataset_rows(given, column=column, revision=revision, token=token)
