"""The heat map of a report: where each head's attention goes, layer by layer."""

import math
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report import Report
from sinkscope.tokens.showing import visible_text

INK = "#222222"


def heatmap(report: Report, path: Path, stem: str) -> None:  # noqa: ARG001 - every exporter is called alike
    """The first token's share of each head's attention as a map of layers and heads, with the means by layer."""
    shares = _grid(report)
    layers, heads = shares.shape
    height = min(max(3.2, 0.16 * layers + 1.6), 16)
    width = min(max(5.6, 0.22 * heads + 3.4), 14)
    figure = Figure(figsize=(width, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[max(1.6, width - 3.2), 1.5])
    image = left.imshow(shares, vmin=0, vmax=1, cmap="magma_r", aspect="auto", interpolation="nearest", origin="lower")
    left.set(xlabel="head", ylabel="layer")
    _whole_ticks(left, heads, layers)
    _profile(right, report, layers)
    bar = figure.colorbar(image, ax=left, location="left", pad=0.02, aspect=30)
    bar.set_label("share of attention on the first token")
    figure.suptitle(_title(report), fontsize=9, color=INK, parse_math=False)
    with warnings.catch_warnings():
        # A model's name may hold characters that the font has not; they become boxes, and nothing else is lost.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, format=path.suffix.removeprefix("."), dpi=160, metadata=_undated(path))


def _grid(report: Report) -> Float[np.ndarray, "layer head"]:
    """First-token shares by layer and head; NaN, left blank, where a layer has no such head."""
    table = report.heads
    rows = table[["layer", "call"]].drop_duplicates().reset_index(drop=True)
    grid = np.full((len(rows), int(table["head"].max()) + 1), math.nan)
    index = {(layer, call): row for row, (layer, call) in enumerate(rows.itertuples(index=False))}
    for layer, call, head, share in table[["layer", "call", "head", "first_share"]].itertuples(index=False):
        grid[index[layer, call], head] = share
    return grid


def _profile(axes: Axes, report: Report, layers: int) -> None:
    shares = report.layers["first_share"].to_numpy()
    axes.barh(range(layers), shares, color="#b5367a", height=0.8)
    axes.set(xlim=(0, 1), xlabel="mean over heads")
    axes.tick_params(left=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _whole_ticks(axes: Axes, heads: int, layers: int) -> None:
    axes.set_xticks(range(0, heads, max(1, math.ceil(heads / 16))))
    axes.set_yticks(range(0, layers, max(1, math.ceil(layers / 16))))


def _title(report: Report) -> str:
    row, model = report.summary.iloc[0], report.metadata["model"]
    windows = int(row["windows"])
    return (
        f"{visible_text(str(model['name'])).replace('␣', ' ')}\n"
        f"{row['sink_rate']:.1%} of heads above {row['epsilon']:g} · "
        f"{windows} {'window' if windows == 1 else 'windows'} · {row['normalizer']}"
    )


def _undated(path: Path) -> dict[str, None]:
    """The same run gives the same file."""
    return {"Date": None} if path.suffix == ".svg" else {"CreationDate": None} if path.suffix == ".pdf" else {}
