"""What the words behind options have to be, beyond what typer checks by itself."""

from collections.abc import Callable

import typer


def count_or(word: str) -> Callable[[str | None], str | None]:
    """A check for a whole number from 1, or the word that may stand in its place."""

    def checked(value: str | None) -> str | None:
        if value is None or value == word or (value.isascii() and value.isdigit() and int(value) > 0):
            return value
        raise typer.BadParameter(f"{value!r} is neither a whole number from 1 nor {word!r}")

    return checked


def names(value: str | None) -> str | None:
    """A check for names between commas."""
    if value is not None and not all(name.strip() for name in value.split(",")):
        raise typer.BadParameter(f"{value!r} is not a list of names: write entropy,frobenius")
    return value
