"""Where a language model's attention goes when it has nowhere to go, measured per layer and head."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkscope.activations import ACTIVATIONS
    from sinkscope.errors import (
        ModelNotFoundError,
        NothingObservedError,
        OutputError,
        ProtocolError,
        ReportError,
        SinkscopeError,
        TextError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from sinkscope.hooks.patch import patched
    from sinkscope.metrics import METRICS
    from sinkscope.models import load
    from sinkscope.normalizers import NORMALIZERS, Modifier
    from sinkscope.protocols import PROTOCOLS
    from sinkscope.report import Report
    from sinkscope.study import compare, measure
    from sinkscope.text.reading import read
    from sinkscope.tokens import TOKEN_CLASSES

__version__ = "0.1.0"

__all__ = [
    "ACTIVATIONS",
    "METRICS",
    "NORMALIZERS",
    "PROTOCOLS",
    "TOKEN_CLASSES",
    "ModelNotFoundError",
    "Modifier",
    "NothingObservedError",
    "OutputError",
    "ProtocolError",
    "Report",
    "ReportError",
    "SinkscopeError",
    "TextError",
    "UnknownNameError",
    "UnsupportedModelError",
    "compare",
    "load",
    "measure",
    "patched",
    "read",
]

_HOMES = {
    "ACTIVATIONS": "sinkscope.activations",
    "METRICS": "sinkscope.metrics",
    "Modifier": "sinkscope.normalizers",
    "NORMALIZERS": "sinkscope.normalizers",
    "PROTOCOLS": "sinkscope.protocols",
    "TOKEN_CLASSES": "sinkscope.tokens",
    "Report": "sinkscope.report",
    "load": "sinkscope.models",
    "compare": "sinkscope.study",
    "measure": "sinkscope.study",
    "patched": "sinkscope.hooks.patch",
    "read": "sinkscope.text.reading",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: torch takes seconds, and `--help` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "sinkscope.errors")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
