"""What is measured on, as the command line names it: files, prompts and datasets."""

from typing import Any


def documents(asked: Any) -> Any:
    """The texts of a Request; their beginnings are read here."""
    from sinkscope.text.reading import read

    return read(
        asked.texts,
        prompts=asked.prompts,
        dataset=asked.datasets,
        column=asked.column,
        dataset_revision=asked.dataset_revision,
        token=asked.loading["token"],
    )
