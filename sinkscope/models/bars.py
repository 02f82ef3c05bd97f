"""Turns the progress bars and the talk of the libraries that load models into calls of our own progress."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tqdm.auto  # type: ignore[import-untyped]
from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging as transformers_logging

from sinkscope.progress import Progress


def bar(progress: Progress) -> type[Any]:
    """A class like tqdm that shows nothing and tells `progress` instead."""

    class Told(tqdm.auto.tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **(keywords | {"file": io.StringIO(), "disable": False}))

        def __iter__(self) -> Iterator[Any]:
            for item in self.iterable or ():
                yield item
                self.update(1)

        def update(self, n: Any = 1) -> object:
            shown: object = super().update(n)
            stage = (self.desc or "loading").strip(" .:")
            total = None if self.total is None else max(int(self.total), int(self.n))
            progress(stage[:1].lower() + stage[1:], int(self.n), total)
            return shown

        def display(self, *args: Any, **keywords: Any) -> bool:  # noqa: ARG002 - tqdm's own signature
            return True

    return Told


@contextmanager
def heard(progress: Progress) -> Iterator[None]:
    """While open, transformers is quiet and its bars tell `progress`; everything is put back afterwards."""
    told = bar(progress)
    verbosity = transformers_logging.get_verbosity(), hub_logging.get_verbosity()
    hook = transformers_logging.set_tqdm_hook(lambda _, args, keywords: told(*args, **keywords))
    transformers_logging.set_verbosity(logging.CRITICAL)
    hub_logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_tqdm_hook(hook)
        transformers_logging.set_verbosity(verbosity[0])
        hub_logging.set_verbosity(verbosity[1])
