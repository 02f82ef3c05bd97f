"""A map of layers and heads made of characters."""

import math

from rich.style import Style
from rich.text import Text

from sinkscope.report import Report

SHADES = " ·░▒▓█"
ASCII = " .:+#@"
LEVELS = (0.01, 0.1, 0.3, 0.5, 0.8)
"""Where one shade gives way to the next: 0.3 is the field's threshold, 0.8 the strict one."""
COLOURS = ("grey30", "grey50", "dark_goldenrod", "orange3", "orange_red1", "red1")


def heat(report: Report, width: int, *, ascii_only: bool) -> list[Text]:
    """One line a layer: its number, a cell a head shaded by the first token's share, and the layer's mean.

    Where the heads do not fit, a cell stands for the largest of several neighbours, and the key says so.
    """
    shades = ASCII if ascii_only else SHADES
    heads = int(report.heads["head"].max()) + 1
    room = width - len("layer 000  ") - len("  0.000")
    cell = 2 if 2 * heads <= room else 1
    together = math.ceil(heads / room) if cell == 1 else 1
    lines = [_key(shades, together)]
    for (layer, _), rows in report.heads.groupby(["layer", "call"], sort=False):
        shares = rows.sort_values("head")["first_share"].to_list()
        line = Text(f"layer {layer:>3}  ", no_wrap=True)
        for start in range(0, len(shares), together):
            known = [share for share in shares[start : start + together] if not math.isnan(share)]
            line.append_text(_cell(max(known) if known else None, shades, cell))
        mean = rows["first_share"].mean()
        line.append("  –" if math.isnan(mean) else f"  {mean:.3f}")
        lines.append(line)
    return lines


def _cell(share: float | None, shades: str, width: int) -> Text:
    if share is None:
        return Text("?" * width)
    level = sum(share > edge for edge in LEVELS)
    return Text(shades[level] * width, Style(color=COLOURS[level]))


def _key(shades: str, together: int) -> Text:
    edges = ["0", *(f"{edge:g}" for edge in LEVELS)]
    key = Text("first token's share: ")
    for shade, edge, colour in zip(shades, edges, COLOURS, strict=True):
        key.append(f"{shade * 2}", Style(color=colour)).append(f">{edge} ")
    key.append("mean")
    if together > 1:
        key.append(f" (a cell is the largest of {together} heads)")
    return key
