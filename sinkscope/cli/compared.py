"""A comparison for people: one table, plain softmax first, then what it says."""

import math
from collections.abc import Callable

import pandas as pd
from rich.console import Console

from sinkscope.cli import by_layer
from sinkscope.cli.columns import columns
from sinkscope.cli.console import plain
from sinkscope.cli.screen import heading, section
from sinkscope.report import Report
from sinkscope.report.opening import first_token
from sinkscope.report.readings import notes, readings

Column = tuple[str, Callable[[pd.Series], str]]

WORDS = frozenset({"normalizer"})
LAYERS_SHOWN = 12

ROUNDING = 1e-6
"""Changes below this are rounding of figures in single precision, and are shown as 0."""


def show(report: Report, console: Console) -> None:
    """Print the loss, the sinks, the change, the readings, and the sweep where there is one."""
    heading(report, console)
    console.print(first_token(report.first(), ascii_only=plain(console.file)))
    for warning in report.metadata["text"].get("warnings", []):
        console.print(f"Warning: {warning}.")
    told = report.metadata["comparison"]
    console.print(
        "Check passed: sinkscope's softmax reproduces the model's output (relative difference "
        f"{told['identity_delta']:.0e}, KL {abs(told['identity_kl']):.0e} nats). All figures take the same path."
    )
    rows = [row for _, row in report.summary.iterrows()]
    if report.metadata["protocol"]["samples_of_the_paper"] is not None:
        section(console, f"By {report.metadata['protocol']['name']}")
        _protocol(report, console)
    section(console, "Loss")
    _table(console, rows, LOSS)
    section(console, "Attention: share, then raw mass")
    _table(console, rows, SINKS)
    section(console, "Change against softmax, ± its paired standard error over windows")
    _table(console, rows[1:], CHANGES)
    if not by_layer.changed(report).empty:
        section(console, "First token's share by layer, before and after")
        by_layer.show(report, console)
    section(console, "In words")
    for note in notes(report):
        console.print(note)
    for name, sentence in readings(report).items():
        console.print(f"{name}: {sentence}")
    if not report.sweep.empty:
        section(console, "One layer at a time: perplexity")
        _sweep(report, console)
    if not report.lse.empty:
        section(console, "Log-sum-exp of the baseline's rows: softmax1 keeps sigmoid(lse), sink_logit sigmoid(lse - s)")
        _levels(report, console)


def _protocol(report: Report, console: Console) -> None:
    """The protocol's own figures, a column each."""
    figures = list(report.protocols["figure"].unique())
    shown = [(name, _figure(name)) for name in figures]
    _table(console, [row for _, row in report.summary.iterrows()], shown)


def _table(console: Console, rows: list[pd.Series], shown: list[Column]) -> None:
    cells = [[str(row["normalizer"]), *(cell(row) for _, cell in shown)] for row in rows]
    columns(console, ["normalizer", *(name for name, _ in shown)], cells, WORDS)


def _figure(name: str, digits: int = 3) -> Callable[[pd.Series], str]:
    return lambda row: _number(row.get(name, math.nan), digits)


def _change(name: str, digits: int = 3) -> Callable[[pd.Series], str]:
    def cell(row: pd.Series) -> str:
        change, error = row.get(f"{name}_delta", math.nan), row.get(f"{name}_delta_se", math.nan)
        if pd.isna(change):
            return "–"
        change, error = (0.0 if abs(each) < ROUNDING else each for each in (change, error))
        tail = "" if pd.isna(error) else f"±{_number(error, digits)}"
        return f"{'+' if change >= 0 else ''}{_number(change, digits)}{tail}"

    return cell


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1e}" if 0 < abs(value) < 0.5 * 10**-digits or abs(value) >= 1e5 else f"{value:,.{digits}f}"


LOSS: list[Column] = [
    ("perplexity", _figure("perplexity", 2)),
    ("KL", _figure("kl_to_baseline")),
    ("top-1", _figure("top1_agreement")),
    ("row mass", _figure("row_mass")),
    ("entropy", _figure("entropy")),
    ("zeros", _figure("exact_zeros")),
]
SINKS: list[Column] = [
    ("first", _figure("first_share")),
    ("initial", _figure("initial_share")),
    ("punct.", _figure("punctuation_share")),
    ("rate", _figure("sink_rate")),
    ("first raw", _figure("first_mass")),
    ("rate raw", _figure("sink_rate_raw")),
    ("initial raw", _figure("initial_mass")),
    ("punct. raw", _figure("punctuation_mass")),
]
CHANGES: list[Column] = [
    ("nll", _change("nll")),
    ("first share", _change("first_share")),
    ("first mass", _change("first_mass")),
    ("row mass", _change("row_mass")),
    ("entropy", _change("entropy")),
]


def _sweep(report: Report, console: Console) -> None:
    """One row a layer, one column a normalizer; those that hurt most, where there are many layers."""
    table = report.sweep.set_index(["layer", "normalizer"])["perplexity"]
    # Where the loss is no longer a number, nothing is worse.
    worst = report.sweep.fillna({"nll_delta": math.inf}).groupby("layer")["nll_delta"].max()
    worst = worst.sort_values(ascending=False)
    chosen = sorted(worst.index[:LAYERS_SHOWN])
    names = report.sweep["normalizer"].unique().tolist()
    rows = [[str(layer), *(_number(table[layer, name], 2) for name in names)] for layer in chosen]
    columns(console, ["layer", *names], rows, WORDS)
    if len(chosen) < len(worst):
        console.print(
            f"the {len(chosen)} of {len(worst)} layers where the loss rises most; the others are in the sweep table"
        )


def _levels(report: Report, console: Console) -> None:
    """The share of all rows in each level, over all heads, and how many heads live there."""
    table = report.lse[report.lse["normalizer"] == report.summary.iloc[0]["normalizer"]]
    means = table.groupby(["lse_from", "lse_to"])["share"].agg(["mean", "max"]).reset_index()
    rows = [
        [f"{row['lse_from']:g} to {row['lse_to']:g}", _number(row["mean"], 3), _number(row["max"], 3)]
        for _, row in means.iterrows()
        if row["max"] > 0
    ]
    columns(console, ["lse", "share of rows", "in the head with most"], rows, frozenset({"lse"}))
