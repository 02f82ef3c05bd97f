"""A comparison layer by layer on the screen: a mean over layers hides that one has lost its sink."""

import pandas as pd
from rich.console import Console

from sinkscope.cli.columns import columns
from sinkscope.report import Report

MOST_LAYERS = 12
"""Rows of the table."""

LEFT = frozenset({"layer"})


def changed(report: Report) -> pd.DataFrame:
    """The attention calls of each normalizer but the baseline, with their share before and after over the same rows."""
    layers = report.layers
    if "first_share_delta" not in layers:
        return layers.iloc[:0]
    swapped: pd.DataFrame = layers[layers["normalizer"] != report.summary.iloc[0]["normalizer"]]
    return swapped


def show(report: Report, console: Console) -> None:
    """Print the layers that change most under any normalizer, in their order."""
    table = changed(report)
    calls = table.groupby(["layer", "call"], sort=False)["first_share_delta"]
    most = calls.apply(lambda each: each.abs().max()).sort_values(ascending=False, kind="stable")
    chosen = sorted(most.index[:MOST_LAYERS])
    names = table["normalizer"].unique().tolist()
    cells = {
        (row["layer"], row["call"], row["normalizer"]): _cell(row["first_share_before"], row["first_share"])
        for _, row in table.iterrows()
    }
    several = table["call"].max() > 0
    rows = [
        [f"{layer}:{call}" if several else str(layer), *(cells[layer, call, name] for name in names)]
        for layer, call in chosen
    ]
    columns(console, ["layer:call" if several else "layer", *names], rows, LEFT | {"layer:call"})
    if len(chosen) < len(most):
        console.print(f"the {len(chosen)} of {len(most)} layers that change most; all are in the table of layers")


def _cell(before: float, after: float) -> str:
    return " to ".join("–" if pd.isna(each) else f"{each:.3f}" for each in (before, after))
