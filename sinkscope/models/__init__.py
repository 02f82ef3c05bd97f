"""Finding, converting, caching and loading models; a new place to load from starts as a kind in finding.py."""

import importlib
from typing import TYPE_CHECKING

from sinkscope.models.finding import Source, find

if TYPE_CHECKING:
    from sinkscope.models.loading import Loaded, load

__all__ = ["Loaded", "Source", "find", "load"]


def __getattr__(name: str) -> object:
    # Loading needs torch and transformers, which `sinkscope --help` must not pay for.
    if name in {"Loaded", "load"}:
        return getattr(importlib.import_module("sinkscope.models.loading"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
