"""A map of layers and heads made of characters."""

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from sinkscope.report import Report

SHADES = " ·░▒▓█"
ASCII = " .:+#@"
LEVELS = (0.01, 0.1, 0.3, 0.5, 0.8)
"""Where one shade gives way to the next: 0.3 is the field's threshold, 0.8 the strict one."""
COLOURS = ("grey30", "grey50", "dark_goldenrod", "orange3", "orange_red1", "red1")

UNDEFINED = "?"


def heat(report: Report, width: int, *, ascii_only: bool) -> list[Text]:
    """The key, then one line a layer: its number, a cell a head shaded by the first token's share, and their mean.

    Where the heads do not fit, a cell stands for the largest of several neighbours, and the key says so. Kinds of
    layers are named where there are several, calls where a layer makes several.
    """
    shades = ASCII if ascii_only else SHADES
    labels, kinds = _labels(report), _kinds(report)
    left, right = max(map(len, labels)), max(map(len, kinds))
    room = width - left - len("    0.000") - (right + 1 if right else 0)
    widest = int(report.heads["head"].max()) + 1
    cell = 2 if 2 * widest <= room else 1
    together = 1 if cell == 2 else math.ceil(widest / room)
    lines = [_key(shades, together, undefined=bool(report.heads["first_share"].isna().any()))]
    length = math.ceil(widest / together) * cell
    groups = report.heads.groupby(["layer", "call"], sort=False)
    for label, kind, (_, rows) in zip(labels, kinds, groups, strict=True):
        shares = rows.sort_values("head")["first_share"].to_list()
        line = Text(f"{label:>{left}}  ", no_wrap=True)
        line.append_text(_cells(shares, together, cell, shades))
        line.append(" " * (length - math.ceil(len(shares) / together) * cell))
        mean = rows["first_share"].mean()
        line.append("  " + (f"{'–':>5}" if math.isnan(mean) else f"{mean:.3f}"))
        line.append(f" {kind}" if kind else "", Style(dim=True))
        lines.append(line)
    return lines


def _labels(report: Report) -> list[str]:
    """What each attention call is called: its layer's number, and its own where a layer makes several."""
    several = report.layers["call"].any()
    pairs = report.layers[["layer", "call"]].itertuples(index=False)
    return [f"layer {layer}.{call}" if several else f"layer {layer}" for layer, call in pairs]


def _kinds(report: Report) -> list[str]:
    """The type of each call's layer and how far it sees; nothing where all are alike."""
    table = report.layers
    names = [
        f"{str(kind).removesuffix('_attention')}{'' if math.isnan(window) else f' {window:.0f}'}"
        for kind, window in zip(table["layer_type"], table["window_length"], strict=True)
    ]
    return names if len(set(names)) > 1 else [""] * len(names)


def _cells(shares: Sequence[float], together: int, width: int, shades: str) -> Text:
    text = Text()
    for start in range(0, len(shares), together):
        known = [share for share in shares[start : start + together] if not math.isnan(share)]
        if not known:
            text.append(UNDEFINED * width)
            continue
        level = sum(max(known) > edge for edge in LEVELS)
        text.append(shades[level] * width, Style(color=COLOURS[level]))
    return text


def _key(shades: str, together: int, *, undefined: bool) -> Text:
    key = Text("blank up to 0.01")
    for shade, edge, colour in zip(shades[1:], LEVELS, COLOURS[1:], strict=True):
        key.append("  ").append(shade * 2, Style(color=colour)).append(f" >{edge:g}")
    key.append("  then the mean")
    if together > 1:
        key.append(f"; a cell is the largest of {together} heads")
    if undefined:
        key.append(f"; {UNDEFINED} has none")
    return key
