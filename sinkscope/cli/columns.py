"""Tables that never cut a number: on a narrow screen long text is folded, then columns go, and a line says which."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2

LEAST_TEXT = 16
"""Cells to which a column of text may be folded before a column of numbers goes."""


def columns(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[str]) -> None:
    """Print as many columns as fit, most important first; those named in `left` are text, the others numbers.

    Where all of them do not fit, text is folded; where that is not enough, the last columns are left out, and a line
    below the table names them and the width that would show them.
    """
    widths = [max(cell_len(row[index]) for row in [header, *rows]) for index in range(len(header))]
    least = [min(width, LEAST_TEXT) if name in left else width for name, width in zip(header, widths, strict=True)]
    shown = max(1, sum(_total(least[:count]) <= console.width for count in range(1, len(header) + 1)))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for name, width in zip(header[:shown], _folded(widths[:shown], least[:shown], console.width), strict=True):
        text = name in left
        table.add_column(
            Text(name), justify="left" if text else "right", overflow="fold", no_wrap=not text, width=width
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row[:shown]))
    console.print(table)
    if hidden := header[shown:]:
        names = ", ".join(" ".join(name.split()) for name in hidden)
        note = f"Not shown in {console.width} columns: {names} (COLUMNS={_total(least)} shows all)."
        console.print(Text(note, style="dim"))


def _total(widths: Sequence[int]) -> int:
    """The cells that columns of these widths take, with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _folded(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths, the widest one narrowed again and again, but none below its least, until they fit."""
    found = list(widths)
    while _total(found) > room:
        spare = [index for index, width in enumerate(found) if width > least[index]]
        if not spare:
            break
        widest = max(spare, key=lambda index: found[index])
        found[widest] -= 1
    return found


def entries(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print names with what they are beside them, or below them where that would leave too little room."""
    width = max(cell_len(name) for name, _ in rows) + GAP
    beside = console.width - width >= 40
    for name, text in rows:
        if beside:
            grid = Table.grid(padding=(0, GAP, 0, 0))
            grid.add_column(width=width - GAP, no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(Text(name), Text(text))
            console.print(grid)
        else:
            console.print(Text(name), soft_wrap=True)
            console.print(Text(text), style="dim")
