"""What cog runs to fill the pages in this folder: tables from the catalogs, and the help of every command."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from typer.main import get_command

from sinkscope import METRICS, NORMALIZERS, TOKEN_CLASSES
from sinkscope.activations import ACTIVATIONS
from sinkscope.cli.app import app
from sinkscope.exporters import EXPORTERS
from sinkscope.metrics import Metric
from sinkscope.normalizers import Normalizer
from sinkscope.protocols import PROTOCOLS, Protocol

STEADY = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
"""The same page from every terminal."""

WILFUL = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH")
"""What would make typer colour or widen a page all the same."""


def metrics() -> str:
    """Every metric by the name of its column."""
    rows = ([f"`{_column(card)}`", card.unit, _bounds(card), card.summary] for card in METRICS.values())
    return _table(["column", "unit", "range", "definition"], rows)


def activations() -> str:
    """Every figure of hidden states by the name of its column."""
    rows = ([f"`{each.name}`", each.unit, each.summary, each.source] for each in ACTIVATIONS.values())
    return _table(["column", "unit", "definition", "source"], rows)


def protocols() -> str:
    """Every protocol by what it takes and gives."""
    rows = (
        [f"`{card.name}`", f"{card.seq_len:,}", f"{card.windows:,}", _epsilon(card), card.summary, card.source]
        for card in PROTOCOLS.values()
    )
    return _table(["protocol", "tokens", "samples", "ε", "what it is known for", "source"], rows)


def _epsilon(card: Protocol) -> str:
    return "–" if card.epsilon is None else f"{card.epsilon:g}"


def conventions() -> str:
    """What each protocol states, its columns first."""
    parts = []
    for card in PROTOCOLS.values():
        columns = ", ".join(f"`{figure}`" for figure in card.figures)
        parts += [f"### {card.name}\n", f"Columns: {columns}\n", *(f"* {each}" for each in card.conventions), ""]
    return "\n".join(parts)


def token_classes() -> str:
    """Every class of tokens, in the order in which they take their positions."""
    rows = (
        [f"`{card.name}`", "overlay" if card.overlay else "part", "yes" if card.needs_text else "no", card.summary]
        for card in TOKEN_CLASSES.values()
    )
    return _table(["class", "kind", "needs a tokenizer", "which tokens"], rows)


def normalizers() -> str:
    """Every normalizer by its formula and source."""
    rows = ([f"`{card.name}`", _parameters(card), f"`{card.formula}`", card.source] for card in NORMALIZERS.values())
    return _table(["normalizer", "parameters", "formula", "source"], rows)


def truths() -> str:
    """What the card of every normalizer claims, and the tests hold it to."""
    rows = (
        [
            f"`{card.name}`",
            card.row_sum or "unknown",
            *map(_answer, (card.may_be_negative, card.shift_invariant, card.exact_zeros)),
        ]
        for card in NORMALIZERS.values()
    )
    return _table(["normalizer", "a row adds up to", "negative weights", "shift-invariant", "exact zeros"], rows)


def formats() -> str:
    """Every format by its suffix."""
    return _table(["suffix", "what the file holds"], ([f"`{card.name}`", card.summary] for card in EXPORTERS.values()))


def help_pages() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    return "\n".join(
        f"## `{' '.join(['sinkscope', *words])}`\n\n{_help(words)}" for words in _commands(get_command(app))
    )


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups included."""
    yield words
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*words, name))


def _help(words: Sequence[str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in WILFUL} | STEADY
    line = [sys.executable, "-m", "sinkscope", *words, "--help"]
    shown = subprocess.run(line, env=environment, capture_output=True, check=True, encoding="utf-8").stdout
    lines = [line.rstrip() for line in shown.replace("python -m sinkscope", "sinkscope").splitlines()]
    return "```text\n" + "\n".join(lines).strip("\n") + "\n```\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _column(card: Metric) -> str:
    return f"{{class}}_{card.name}" if card.per_class else card.name


def _bounds(card: Metric) -> str:
    low = "(−∞" if card.low is None else f"[{card.low:g}"
    high = "∞)" if card.high is None else f"{card.high:g}]"
    return f"{low}, {high}"


def _parameters(card: Normalizer) -> str:
    return ", ".join(f"`{each.name}` = {each.default:g}" for each in card.parameters) or "none"


def _answer(truth: bool | None) -> str:
    return "unknown" if truth is None else "yes" if truth else "no"
