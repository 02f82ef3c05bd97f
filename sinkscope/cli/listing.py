"""`sinkscope list`: what there is of each family of variants, from its catalog."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from sinkscope.catalog import Catalog
from sinkscope.cli.columns import entries
from sinkscope.cli.console import results


class Family(StrEnum):
    """The families that have a catalog."""

    normalizers = "normalizers"
    metrics = "metrics"
    tokens = "tokens"
    formats = "formats"


def show(family: Annotated[Family, typer.Argument(help="Which catalog.", show_default=False)]) -> None:
    """List normalizers, metrics, token classes or output formats, each in a sentence."""
    catalog, entry = _catalog(family)
    entries(results(), [entry(card) for card in catalog.values()])


def _catalog(family: Family) -> tuple[Catalog[Any], Any]:
    """The family's cards, and the function from one of them to its name and its sentence."""
    # A catalog is imported when it is asked for: most of them need torch.
    if family is Family.normalizers:
        from sinkscope.normalizers import NORMALIZERS

        return NORMALIZERS, _normalizer
    if family is Family.metrics:
        from sinkscope.metrics import METRICS

        return METRICS, _metric
    if family is Family.tokens:
        from sinkscope.tokens import TOKEN_CLASSES

        return TOKEN_CLASSES, _plain
    from sinkscope.exporters import EXPORTERS

    return EXPORTERS, _plain


def _plain(card: Any) -> tuple[str, str]:
    return card.name, card.summary


def _metric(card: Any) -> tuple[str, str]:
    """The name as in the tables, where metrics of classes have one column a class."""
    name = f"CLASS_{card.name}" if card.per_class else card.name
    return name, f"{card.summary} [{card.unit}]"


def _normalizer(card: Any) -> tuple[str, str]:
    """The name as in --normalizer, with its parameters at their defaults; its formula and where it is from."""
    parameters = ",".join(f"{each.name}={each.default:g}" for each in card.parameters)
    return f"{card.name}:{parameters}" if parameters else card.name, f"{card.formula}  [{card.source}]"
