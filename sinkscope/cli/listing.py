"""`sinkscope list`: what there is of each family of variants, from its catalog."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sinkscope.cli.console import results

if TYPE_CHECKING:
    from sinkscope.catalog import Catalog


class Family(StrEnum):
    """The families that have a catalog."""

    normalizers = "normalizers"
    metrics = "metrics"
    tokens = "tokens"
    formats = "formats"


def show(family: Annotated[Family, typer.Argument(help="Which catalog.", show_default=False)]) -> None:
    """List normalizers, metrics, token classes or output formats, each in a sentence."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    names, columns = _columns(family)
    for name in names:
        table.add_column(name, overflow="fold")
    for card in _catalog(family).values():
        table.add_row(*(column(card) for column in columns))
    results().print(table)


def _catalog(family: Family) -> "Catalog[Any]":
    # A catalog is imported when it is asked for: most of them need torch.
    if family is Family.normalizers:
        from sinkscope.normalizers import NORMALIZERS

        return NORMALIZERS
    if family is Family.metrics:
        from sinkscope.metrics import METRICS

        return METRICS
    if family is Family.tokens:
        from sinkscope.tokens import TOKEN_CLASSES

        return TOKEN_CLASSES
    from sinkscope.exporters import EXPORTERS

    return EXPORTERS


def _columns(family: Family) -> tuple[list[str], list[Any]]:
    name, summary = (lambda card: card.name), (lambda card: card.summary)
    if family is Family.metrics:
        return ["column", "unit", "what it is"], [_metric_name, lambda card: card.unit, summary]
    if family is Family.tokens:
        return ["class", "kind", "what it is"], [name, lambda card: "overlay" if card.overlay else "part", summary]
    if family is Family.normalizers:
        return ["normalizer", "formula", "source"], [_spelled, lambda card: card.formula, _source]
    return ["suffix", "what it holds"], [name, summary]


def _metric_name(card: Any) -> str:
    return f"{{class}}_{card.name}" if card.per_class else str(card.name)


def _spelled(card: Any) -> str:
    parameters = ",".join(f"{each.name}={each.default:g}" for each in card.parameters)
    return f"{card.name}:{parameters}" if parameters else str(card.name)


def _source(card: Any) -> str:
    return str(card.source) if card.published else f"ad hoc, unpublished: {card.source}"
