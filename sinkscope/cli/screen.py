"""A report for people: the verdict first, then the map, the heads, the tokens."""

import math

import pandas as pd
from rich.console import Console

from sinkscope.cli.columns import columns
from sinkscope.cli.console import plain
from sinkscope.cli.heat import heat
from sinkscope.metrics.positions import RANKED_FROM
from sinkscope.report import Report
from sinkscope.report.uncertainty import uncertainty
from sinkscope.report.verdict import verdict
from sinkscope.text.documents import shown
from sinkscope.text.lengths import windows_in_words
from sinkscope.tokens.showing import visible_token

TOP = 8
"""Rows of the tables of strongest heads and most-attended tokens."""

WORDS = frozenset({"type", "token", "class", "where", "queries"})
"""Columns of text."""


def show(report: Report, console: Console) -> None:
    """Print what fits on a screen or two, of the first normalizer where there are several."""
    report = report.first()
    ascii_only = plain(console.file)
    heading(report, console)
    for sentence in verdict(report, ascii_only=ascii_only):
        console.print(sentence)
    section(console, "First token's share of attention, by layer and head")
    for line in heat(report, console.width, ascii_only=ascii_only):
        console.print(line)
    section(console, "Heads with the largest share on the first token")
    _heads(report, console)
    section(console, "Most-attended tokens")
    _tokens(report, console, ascii_only=ascii_only)
    section(console, "Mass on the first token, by how far behind it the query is")
    _positions(report, console)


def heading(report: Report, console: Console) -> None:
    """Print what was measured, in two lines."""
    text, windows = report.metadata["text"], int(report.summary.iloc[0]["windows"])
    console.print(shown(str(report.metadata["model"]["name"])), style="bold")
    console.print(f"{measured(report)}; {windows_in_words(text, windows)}")
    sample = report.metadata.get("queries", {})
    if sample.get("sampled"):
        console.print(
            f"Figures are of {sample['number']:,} of the {sample['of']:,} queries of each window (--seed "
            f"{sample['seed']}); ± holds the error that this brings, and *_sampling_se is that error alone."
        )
    console.print()


def measured(report: Report) -> str:
    """The model by its class, its size and where it ran."""
    model, row = report.metadata["model"], report.summary.iloc[0]
    size = f"{row['layers']} attention calls, {row['heads']} heads"
    return f"{model['architecture']}, {size}, {model['dtype']} on {model['device']}"


def section(console: Console, title: str) -> None:
    """Print a title, set off from what came before."""
    console.print()
    console.print(title, style="bold")


def _heads(report: Report, console: Console) -> None:
    ranked = report.heads.dropna(subset=["first_share"]).sort_values("first_share", ascending=False, kind="stable")
    figures = ("first_mass", "entropy", "value_norm_ratio")
    rows = [
        [
            str(row["layer"]),
            str(row["head"]),
            number(row["first_share"]),
            number(uncertainty(row, "first_share")),
            *(number(row.get(name, math.nan)) for name in figures),
            _kind(row["layer_type"]),
        ]
        for _, row in ranked.head(TOP).iterrows()
    ]
    header = ["layer", "head", "share", "se", "mass", "entropy", "|v0|/|v|", "type"]
    columns(console, header, rows, WORDS)


def _tokens(report: Report, console: Console, *, ascii_only: bool) -> None:
    if report.tokens["received"].isna().all() and "received" in report.metadata.get("not_measured", {}):
        console.print("  not measured: --only leaves received mass out")
        return
    ranked = report.tokens[report.tokens["receivers"] >= RANKED_FROM].sort_values("received", ascending=False)
    if ranked.empty:
        console.print(f"  none is seen by {RANKED_FROM} later queries, so none is ranked")
        return
    # The first tokens of all windows would fill the table, so each token is shown once for each class.
    ranked = ranked.drop_duplicates(["token_id", "class"]).head(TOP)
    rows = [
        [
            f"id {row['token_id']}" if pd.isna(row["token"]) else visible_token(row["token"], ascii_only=ascii_only),
            number(row["received"]),
            row["class"],
            f"{row['window']}:{row['position']}",
            number(row["top_received"]),
            "" if pd.isna(row["top_layer"]) else f"{row['top_layer']:.0f}.{row['top_head']:.0f}",
        ]
        for _, row in ranked.iterrows()
    ]
    header = ["token", "received", "class", "window:position", "at most", "by head"]
    columns(console, header, rows, WORDS)


def _positions(report: Report, console: Console) -> None:
    """The model's mean in a handful of bins, from the first queries to the last."""
    bins = report.positions.groupby(["query_from", "query_to"])
    means = bins["first_mass"].mean().reset_index()
    # Counted from the end, where most queries are.
    chosen = means.iloc[:: -max(1, math.ceil(len(means) / TOP))].iloc[::-1]
    rows = [
        [f"{start:.0f}" if start == stop else f"{start:.0f} to {stop:.0f}", number(mass)]
        for start, stop, mass in chosen.to_numpy().tolist()
    ]
    columns(console, ["queries", "mass"], rows, WORDS)


def _kind(layer_type: object) -> str:
    return str(layer_type).removesuffix("_attention")


def number(value: float) -> str:
    """Three digits, or a dash for what is undefined."""
    return "–" if pd.isna(value) else f"{value:.3f}"
