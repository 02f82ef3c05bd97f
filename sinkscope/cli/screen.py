"""A report for people: the verdict first, then the map, the heads, the tokens."""

import math

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkscope.cli.console import plain
from sinkscope.cli.heat import heat
from sinkscope.positions import RANKED_FROM
from sinkscope.report import Report
from sinkscope.tokens.showing import visible_text
from sinkscope.verdict import verdict

TOP = 8
"""Rows of the tables of strongest heads and most-attended tokens."""


def show(report: Report, console: Console) -> None:
    """Print everything that fits on a screen or two."""
    ascii_only = plain(console.file)
    _heading(report, console)
    for sentence in verdict(report):
        console.print(sentence)
    for note in report.metadata["text"].get("warnings", []):
        console.print(f"warning: {note}", style="yellow")
    _section(console, "Layers and heads")
    for line in heat(report, console.width, ascii_only=ascii_only):
        console.print(line, soft_wrap=True)
    _section(console, "Strongest sink heads")
    console.print(_heads(report))
    _section(console, "Most-attended tokens")
    _tokens(report, console, ascii_only=ascii_only)
    _section(console, "First-token mass by query position")
    console.print(_positions(report))


def _heading(report: Report, console: Console) -> None:
    model, text, row = report.metadata["model"], report.metadata["text"], report.summary.iloc[0]
    windows = int(row["windows"])
    name = visible_text(str(model["name"])).replace("␣", " ")
    console.print(name, style="bold")
    console.print(
        f"{model['architecture']}, {row['layers']} attention calls, {row['heads']} heads, {model['dtype']} on "
        f"{model['device']}; {windows} {'window' if windows == 1 else 'windows'} of {text['seq_len']} tokens"
    )
    console.print()


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold")


def _heads(report: Report) -> Table:
    table = _table("layer", "head", "type", "first mass", "± se", "entropy", "‖v0‖/‖v‖")
    for _, row in report.heads.sort_values("first_share", ascending=False).head(TOP).iterrows():
        kind = str(row["layer_type"]).removesuffix("_attention")
        table.add_row(
            str(row["layer"]),
            str(row["head"]),
            kind,
            *(_number(row[name]) for name in ("first_mass", "first_mass_se", "entropy", "value_norm_ratio")),
        )
    return table


def _tokens(report: Report, console: Console, *, ascii_only: bool) -> None:
    ranked = report.tokens[report.tokens["receivers"] >= RANKED_FROM].sort_values("received", ascending=False)
    if ranked.empty:
        console.print(f"  none is seen by {RANKED_FROM} later queries, so none is ranked")
        return
    seen: set[tuple[str, str]] = set()
    table = _table("token", "class", "window:position", "received", "by its top head")
    for _, row in ranked.iterrows():
        text = f"id {row['token_id']}" if pd.isna(row["token"]) else visible_text(row["token"], ascii_only=ascii_only)
        # The first tokens of all windows would fill the table, so each token is shown once for each class.
        if (text, row["class"]) in seen:
            continue
        seen.add((text, row["class"]))
        head = (
            ""
            if pd.isna(row["top_layer"])
            else f"{row['top_received']:.3f} ({row['top_layer']:.0f}.{row['top_head']:.0f})"
        )
        table.add_row(text, row["class"], f"{row['window']}:{row['position']}", _number(row["received"]), head)
        if table.row_count == TOP:
            break
    console.print(table)


def _positions(report: Report) -> Table:
    """The model's mean in a handful of bins, from the first queries to the last."""
    table = report.positions
    means = table.groupby(["query_from", "query_to"], sort=True)["first_mass"].mean().reset_index()
    chosen = means.iloc[:: max(1, math.ceil(len(means) / 8))]
    shown = _table(*(f"{row.query_from}–{row.query_to}" for row in chosen.itertuples()))
    shown.add_row(*(_number(row.first_mass) for row in chosen.itertuples()))
    return shown


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        text = column in {"type", "token", "class"}
        table.add_column(Text(column), justify="left" if text else "right", overflow="fold", no_wrap=not text)
    return table


def _number(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.3f}"
