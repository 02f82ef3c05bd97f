"""Everything sinkscope raises on purpose, so that callers can tell a refusal from a bug.

    SinkscopeError
    ├── UnknownNameError        not in a catalog; says the nearest name and all of them
    ├── UnsupportedModelError   attention cannot be seen; says which class and what to do
    ├── NothingObservedError    a run ended with no attention call
    ├── ModelNotFoundError      no such model, gated, offline, or not a transformers repository
    ├── TextError               empty, undecodable or too short
    ├── ProtocolError           an option that contradicts the protocol that was named
    ├── OutputError             a path that cannot be written, found before the model loads
    └── ReportError             a file that is not a sinkscope report

Messages are one line and say what to do. Misuse by a programmer is a ValueError or a TypeError.
"""


class SinkscopeError(Exception):
    """The root: whatever sinkscope refuses to do, with the remedy in its message."""


class UnknownNameError(SinkscopeError, KeyError):
    """A name that is in no catalog."""

    # KeyError shows the repr of its argument, which would put quotes around the advice.
    __str__ = Exception.__str__


class UnsupportedModelError(SinkscopeError):
    """A model whose attention cannot be seen, or not trusted."""


class NothingObservedError(SinkscopeError):
    """A probe that was closed without having seen a single attention call."""


class ModelNotFoundError(SinkscopeError):
    """A model that is missing, gated, out of reach, broken, or not in the transformers format."""


class TextError(SinkscopeError):
    """A text that is empty, undecodable or too short."""


class ProtocolError(SinkscopeError):
    """An option that contradicts the protocol that was named."""


class OutputError(SinkscopeError):
    """An output path that cannot be written."""


class ReportError(SinkscopeError):
    """A file that is not a report of this program."""
