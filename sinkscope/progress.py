"""How long work tells of itself, without knowing whether anybody is watching."""

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total): a short name of what is going on, and how far it is.

A total of None is unknown. The same stage is reported again and again with a growing `done`.
"""


def silent(stage: str, done: int, total: int | None) -> None:
    """Progress that is shown nowhere."""
