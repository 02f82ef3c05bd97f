"""`sinkscope list`: what there is of each family of variants, from its catalog."""

import math
from enum import StrEnum
from typing import Annotated, Any

import typer

from sinkscope.catalog import Catalog
from sinkscope.cli.columns import columns, entries
from sinkscope.cli.console import results

PROFILE = {
    "Weights: the sum of a row, visible keys that weigh exactly 0, the largest Frobenius norm over the root of n": {
        "row_sum_min": "least sum",
        "row_sum_mean": "mean sum",
        "row_sum_max": "most sum",
        "zeros": "zeros %",
        "frobenius": "norm",
    },
    "Gradient: the largest |dw/dz|, as a multiple of softmax's, the same in the median row; entries "
    "of the Jacobian that are not 0, and that exceed 1/1000 of the largest of their row": {
        "sensitivity": "largest",
        "sensitivity_ratio": "÷softmax",
        "sensitivity_typical": "typical",
        "gradient_density": "dense %",
        "gradient_density_noticeable": ">.001 %",
    },
    "Range: the largest |score| with finite weights, found and declared; CPU time as a multiple of "
    "that of softmax, and of plain torch.softmax": {
        "finite_fp16": "fp16",
        "declared_fp16": "declared",
        "finite_bf16": "bf16",
        "declared_bf16": "declared",
        "time": "time",
        "time_plain": "÷torch",
    },
}
"""The tables of a profile by what they say: the fields that each shows, and how they are headed."""

SHARES = frozenset({"zeros", "gradient_density", "gradient_density_noticeable"})
"""The fields that are shown in percent."""


class Family(StrEnum):
    """The families that have a catalog."""

    normalizers = "normalizers"
    metrics = "metrics"
    activations = "activations"
    tokens = "tokens"
    protocols = "protocols"
    formats = "formats"


def show(
    family: Annotated[Family, typer.Argument(help="Which catalog.", show_default=False)],
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Measure each normalizer: its sums, zeros, gradient, finite range and time."),
    ] = False,
) -> None:
    """List normalizers, metrics, figures of hidden states, token classes, protocols or formats."""
    if profile:
        if family is not Family.normalizers:
            raise typer.BadParameter("--profile is for normalizers: write sinkscope list normalizers --profile")
        _profile()
        return
    catalog, entry = _catalog(family)
    entries(results(), [entry(card) for card in catalog.values()])


def _profile() -> None:
    from sinkscope.cli.bars import watched
    from sinkscope.normalizers.profile import profiles

    with watched(quiet=False) as progress:
        rows = profiles(progress=progress).to_dict("records")
    console = results()
    for title, figures in PROFILE.items():
        console.print(title, style="bold")
        cells = [[row["normalizer"], *(_figure(name, row[name]) for name in figures)] for row in rows]
        columns(console, ["normalizer", *figures.values()], cells, frozenset({"normalizer"}))
        console.print()


def _figure(name: str, value: float) -> str:
    """Three digits, shares in percent; `all` for a range without an end."""
    if math.isnan(value):
        return "–"
    if name.startswith(("finite", "declared")):
        return "all" if math.isinf(value) else f"{value:.3g}"
    return f"{100 * value:.3g}" if name in SHARES else f"{value:.3g}"


def _catalog(family: Family) -> tuple[Catalog[Any], Any]:
    """The family's cards, and the function from one of them to its name and its sentence."""
    # A catalog is imported when it is asked for: most of them need torch.
    if family is Family.normalizers:
        from sinkscope.normalizers import NORMALIZERS

        return NORMALIZERS, _normalizer
    if family is Family.metrics:
        from sinkscope.metrics import METRICS

        return METRICS, _metric
    if family is Family.activations:
        from sinkscope.activations import ACTIVATIONS

        return ACTIVATIONS, _activation
    if family is Family.tokens:
        from sinkscope.tokens import TOKEN_CLASSES

        return TOKEN_CLASSES, _plain
    if family is Family.protocols:
        from sinkscope.protocols import PROTOCOLS

        return PROTOCOLS, _protocol
    from sinkscope.exporters import EXPORTERS

    return EXPORTERS, _plain


def _plain(card: Any) -> tuple[str, str]:
    return card.name, card.summary


def _metric(card: Any) -> tuple[str, str]:
    """The name as in the tables, where metrics of classes have one column a class."""
    name = f"CLASS_{card.name}" if card.per_class else card.name
    return name, f"{card.summary} [{card.unit}]"


def _activation(card: Any) -> tuple[str, str]:
    return card.name, f"{card.summary} [{card.unit}]  [{card.source}]"


def _protocol(card: Any) -> tuple[str, str]:
    samples = f"{card.windows:,} samples" if card.published else f"{card.windows} windows"
    epsilon = "no ε" if card.epsilon is None else f"ε {card.epsilon:g}"
    return card.name, f"{card.summary}; {samples} of {card.seq_len:,} tokens, {epsilon}  [{card.source}]"


def _normalizer(card: Any) -> tuple[str, str]:
    """The name as in --normalizer, with its parameters at their defaults; its formula and where it is from."""
    parameters = ",".join(f"{each.name}={each.default:g}" for each in card.parameters)
    return f"{card.name}:{parameters}" if parameters else card.name, f"{card.formula}  [{card.source}]"
