"""Reports made by hand, and the command line as a function and as a process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from sinkscope.cli.app import main
from sinkscope.report import Report

SINKSCOPE = [sys.executable, "-m", "sinkscope"]
QUICK = ["--seq-len", "40", "--windows", "2"]
"""Options of `measure` that make a run with a tiny model quick."""


class Ended(NamedTuple):
    """How a run of the command line has ended."""

    status: int
    out: str
    err: str


def call(capfd, monkeypatch, *words) -> Ended:
    """Run the command line in this process, as a user would call it."""
    capfd.readouterr()
    # The program settles these two for itself: setting them here has them put back.
    monkeypatch.setenv("TERM", os.environ.get("TERM", "xterm"))
    monkeypatch.setenv("FORCE_COLOR", os.environ.get("FORCE_COLOR", ""))
    monkeypatch.setattr(sys, "argv", ["sinkscope", *map(str, words)])
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    found = capfd.readouterr()
    return Ended(status, found.out, found.err)


def process(*words, **environment) -> subprocess.CompletedProcess:
    """Run the command line in a fresh process, without a terminal; variables of None are unset."""
    settings = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None} | environment
    inherited = {name: value for name, value in os.environ.items() if name not in settings}
    variables = inherited | {name: value for name, value in settings.items() if value is not None}
    return subprocess.run([*SINKSCOPE, *map(str, words)], capture_output=True, check=False, env=variables)


def report_of(shares: list[list[float]], *, name: str = "model", windows: int = 2, **metadata) -> Report:
    """A report in which head h of layer l puts `shares[l][h]` of its attention on the first token."""
    rows = [
        {"normalizer": "softmax", "layer": layer, "call": 0, "head": head, "layer_type": "full_attention"}
        | {"window_length": np.nan, "windows": windows, "epsilon": 0.3}
        | _figures([share], 0.01 if windows > 1 else np.nan)
        for layer, row in enumerate(shares)
        for head, share in enumerate(row)
    ]
    heads = pd.DataFrame(rows)
    keys = ["normalizer", "layer", "call", "layer_type", "window_length"]
    layers = heads.groupby(keys, sort=False, dropna=False)["first_share"].mean().reset_index().assign(sees_all=True)
    flat = [share for row in shares for share in row]
    summary = {"normalizer": "softmax", "layers": len(shares), "heads": len(flat), "windows": windows}
    summary |= {"full_layers": len(shares), "limited_layers": 0, "layers_without_attention": 0}
    summary |= {"bos": False, "epsilon": 0.3} | _figures(flat, 0.01 if windows > 1 else np.nan)
    summary |= {"perplexity": 12.5, "perplexity_se": 0.5 if windows > 1 else np.nan, "nll": 2.526, "tokens_scored": 78}
    model = {"name": name, "architecture": "LlamaForCausalLM", "dtype": "float32", "device": "cpu", "notes": []}
    text = {"seq_len": 40, "bos": "auto", "bos_token": "<s>", "bos_added_by": None, "warnings": []}
    return Report(
        heads=heads,
        layers=layers,
        tokens=tokens_of(["The", " cat"][:windows]),
        positions=pd.DataFrame({"query_from": [1, 2, 4], "query_to": [1, 3, 7], "first_mass": [0.9, 0.5, np.nan]}),
        summary=pd.DataFrame([summary]),
        metadata={
            "model": model,
            "text": text,
            "attention": {"layers_without": [], "decoder_layers": len(shares)},
            "undefined": {},
        }
        | metadata,
    )


def tokens_of(texts: list[str | None]) -> pd.DataFrame:
    """One token a window, each the first of its own."""
    count = len(texts)
    columns = {"window": range(count), "position": [0] * count, "token_id": range(7, 7 + count)}
    columns |= {"token": pd.Series(texts, dtype=object), "class": ["first"] * count, "document": ["a.txt"] * count}
    columns |= {"received": [0.4] * count, "receivers": [39] * count, "top_received": [0.9] * count}
    return pd.DataFrame(columns | {"top_layer": [1.0] * count, "top_head": [0.0] * count})


def _figures(shares: list[float], error: float) -> dict[str, float]:
    defined = [share for share in shares if not np.isnan(share)]
    mean = float(np.mean(defined)) if defined else np.nan
    rate = float(np.mean([share > 0.3 for share in defined])) if defined else np.nan
    return {
        "first_mass": mean,
        "first_share": mean,
        "first_share_se": error,
        "first_lift": mean * 10,
        "sink_rate": rate,
        "sink_logit_mass": np.nan,
        "sink_logit_mass_se": np.nan,
        "entropy": 1.5,
        "value_norm_ratio": 0.1,
    }


def written(folder: Path, text: str = "Some text, with a comma.\n" * 20) -> Path:
    """A file of text."""
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    return path
