"""The heat map of a report: where each head's attention goes, layer by layer."""

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sinkscope.report import Report
from sinkscope.text.documents import shown
from sinkscope.text.lengths import windows_in_words

INK = "#222222"
BARS = "#8a8a8a"
MISSING = "#e4e4e4"
"""Behind the map: what shows where a layer has no such head, or a head no such figure."""

COLUMNS = 4
"""Maps in a row of a comparison."""

SETTINGS = {
    "font.size": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # letters that journals and editors accept, not outlines
    "svg.hashsalt": "sinkscope",  # the same run gives the same file
}


def heatmap(report: Report, path: Path, stem: str) -> None:  # noqa: ARG001 - every exporter is called alike
    """The first token's share of each head's attention as a map of layers and heads, with the means by layer.

    A comparison has one map for each normalizer instead, plain softmax first. Grey is what does not exist or is not
    defined; the line is the threshold of the sink rate. Of several protocols it is the first one's.
    """
    if "protocol" in report.summary:
        report = report.by(report.summary["protocol"].iloc[0])
    # A user's own settings, LaTeX among them, are not part of the run.
    with mpl.rc_context(mpl.rcParamsDefault | SETTINGS), _quiet():
        figure = _drawn(report) if len(report.summary) == 1 else _compared(report)
        figure.savefig(path, format=path.suffix.removeprefix(".").lower(), dpi=200, metadata=_undated(path))


def _drawn(report: Report) -> Figure:
    shares, labels = _grid(report), _labels(report)
    layers, heads = shares.shape
    map_width = min(max(2.4, 0.2 * heads), 9.0)
    size = (map_width + 2.9, min(max(2.8, 0.15 * layers + 1.3), 14.0))
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[map_width, 1.3])
    image = _map(left, shares)
    left.set(xlabel="head", ylabel="layer")
    _ticks(left, heads, labels, size[1])
    epsilon = float(report.summary["epsilon"].iloc[0])
    _profile(right, report.layers["first_share"], epsilon)
    _bar(figure, image, epsilon, ax=right, pad=0.06, aspect=10 * size[1])
    figure.suptitle(_title(report, size[0]), fontsize=8, color=INK, parse_math=False)
    return figure


def _compared(report: Report) -> Figure:
    """Maps side by side, COLUMNS in a row, all with the same colours."""
    names = report.summary["normalizer"].to_list()
    maps = {name: report.under(name) for name in names}
    layers, heads = _grid(maps[names[0]]).shape
    across = min(COLUMNS, len(names))
    down = math.ceil(len(names) / across)
    each = (min(max(1.5, 0.16 * heads), 4.0), min(max(1.6, 0.1 * layers), 8.0))
    size = (across * each[0] + 1.4, down * (each[1] + 0.5) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for axes, (name, part) in zip(panels.flat, maps.items(), strict=False):
        image = _map(axes, _grid(part))
        axes.set_title(
            _narrow(f"{name}  {part.summary['sink_rate'].iloc[0]:.0%}", each[0]), fontsize=7, parse_math=False
        )
        _ticks(axes, heads, _labels(part), each[1] + 1.2)
    figure.supxlabel("head", fontsize=8, color=INK)
    figure.supylabel("layer", fontsize=8, color=INK)
    epsilon = float(report.summary["epsilon"].iloc[0])
    _bar(figure, image, epsilon, ax=panels, pad=0.02, aspect=10 * size[1])
    title = f"{shown(str(report.metadata['model']['name']))}: heads above {epsilon:g} in percent"
    windows = windows_in_words(report.metadata["text"], int(report.summary["windows"].iloc[0]))
    lines = [_narrow(line, size[0]) for line in (title, windows)]
    figure.suptitle("\n".join(lines), fontsize=8, color=INK, parse_math=False)
    return figure


def _map(axes: Axes, shares: Float[np.ndarray, "layer head"]) -> Any:
    """Draw one map, layer 0 at the bottom; the image that a colour bar is made for."""
    axes.set_facecolor(MISSING)
    return axes.imshow(shares, vmin=0, vmax=1, cmap="magma_r", aspect="auto", interpolation="nearest", origin="lower")


def _bar(figure: Figure, image: Any, epsilon: float, **place: Any) -> None:
    """The colours' meaning, with the threshold marked."""
    bar = figure.colorbar(image, label="share of attention on the first token", **place)
    bar.ax.axhline(epsilon, color=INK, linewidth=0.8)
    bar.outline.set_linewidth(0.6)


def _narrow(text: str, width: float) -> str:
    """The text cut to what fits a width in inches."""
    room = int(width * 14)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _grid(report: Report) -> Float[np.ndarray, "layer head"]:
    """First-token shares by attention call and head; NaN, left blank, where a layer has no such head."""
    table = report.heads
    rows = table[["layer", "call"]].drop_duplicates().reset_index(drop=True)
    grid = np.full((len(rows), int(table["head"].max()) + 1), math.nan)
    index = {(layer, call): row for row, (layer, call) in enumerate(rows.itertuples(index=False))}
    for layer, call, head, share in table[["layer", "call", "head", "first_share"]].itertuples(index=False):
        grid[index[layer, call], head] = share
    return grid


def _labels(report: Report) -> list[str]:
    """The model's own number of each row's layer: not every layer has attention, and some have it twice."""
    several = report.layers["call"].any()
    pairs = report.layers[["layer", "call"]].itertuples(index=False)
    return [f"{layer}.{call}" if several else str(layer) for layer, call in pairs]


def _profile(axes: Axes, shares: "pd.Series[float]", epsilon: float) -> None:
    axes.barh(range(len(shares)), shares.to_numpy(), color=BARS, height=0.8)
    axes.axvline(epsilon, color=INK, linewidth=0.8)
    axes.set(xlim=(0, 1), xlabel="mean over heads", xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"])
    axes.tick_params(left=False, labelleft=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _ticks(axes: Axes, heads: int, labels: list[str], height: float) -> None:
    """As many numbers as there is room for, evenly spaced and beginning with the first."""
    axes.set_xticks(range(0, heads, _apart(heads, 24)))
    at = range(0, len(labels), _apart(len(labels), int((height - 1.2) / 0.15)))
    axes.set_yticks(at, [labels[index] for index in at])


def _apart(count: int, room: int) -> int:
    """The smallest power of two by which `count` numbers thin out to no more than there is room for."""
    return 1 << max(0, math.ceil(math.log2(count / room)))


def _title(report: Report, width: float) -> str:
    row = report.summary.iloc[0]
    windows = windows_in_words(report.metadata["text"], int(row["windows"]))
    name = _narrow(shown(str(report.metadata["model"]["name"])), width)
    rate = (
        "no sink rate" if math.isnan(row["sink_rate"]) else f"{row['sink_rate']:.1%} of heads above {row['epsilon']:g}"
    )
    return f"{name}\n{rate} · {row['normalizer']}\n{windows}"


@contextmanager
def _quiet() -> Iterator[None]:
    """A model's name may hold characters that the font has not; they become boxes, and nothing else is lost."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
            yield
    finally:
        log.setLevel(level)


def _undated(path: Path) -> dict[str, None]:
    """The same run gives the same file."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
