"""The same model and text under several protocols, in one table for people."""

import pandas as pd
from rich.console import Console

from sinkscope.cli.columns import columns
from sinkscope.cli.screen import measured, number
from sinkscope.report import Report
from sinkscope.text.documents import shown

WORDS = frozenset({"normalizer", "figure", "BOS"})


def several(report: Report) -> bool:
    """Whether the report stands under more than one protocol, or was asked to."""
    return len(report.protocols["protocol"].unique()) > 1 or bool(report.metadata.get("not_followed"))


def show(report: Report, console: Console) -> None:
    """Print one row per figure of each protocol, what could not be followed, and where to read on."""
    console.print(shown(str(report.metadata["model"]["name"])), style="bold")
    console.print(f"{measured(report)}; the same text by each protocol's own definition\n")
    compared = len(report.protocols["normalizer"].unique()) > 1
    rows = [_cells(each, compared=compared) for _, each in report.protocols.iterrows()]
    header = ["normalizer"] * compared + ["figure", "value", "±", "ε", "tokens", "samples", "BOS"]
    columns(console, header, rows, WORDS)
    console.print()
    for name, reason in report.metadata.get("not_followed", {}).items():
        console.print(f"{name} was not followed: {reason}.")
    runs = report.metadata.get("runs", {"": report.metadata}).values()
    warnings = {each for run in runs for each in run["text"].get("warnings", [])}
    for warning in sorted(warnings):
        console.print(f"Warning: {warning}.")
    console.print("They answer different questions: see sinkscope list protocols.")


def _cells(row: pd.Series, *, compared: bool) -> list[str]:
    paper = row["paper_windows"]
    return [
        *([str(row["normalizer"])] if compared else []),
        str(row["figure"]),
        number(row["value"]),
        number(row["value_se"]),
        "–" if pd.isna(row["epsilon"]) else f"{row['epsilon']:g}",
        f"{row['seq_len']:,}",
        f"{row['windows']:,}" if pd.isna(paper) or paper == row["windows"] else f"{row['windows']:,} of {paper:,.0f}",
        "unknown" if pd.isna(row["bos"]) else "yes" if row["bos"] else "no",
    ]
