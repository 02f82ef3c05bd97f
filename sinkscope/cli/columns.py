"""Tables that never cut a number: on a narrow screen whole columns go, the last ones first."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2


def columns(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[str]) -> None:
    """Print as many columns as fit, most important first; those named in `left` are text, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    room = console.width
    shown = 0
    for index, name in enumerate(header):
        room -= max(cell_len(row[index]) for row in ([header, *rows])) + GAP * (index > 0)
        if room < 0 and index > 0:
            break
        text = name in left
        table.add_column(Text(name), justify="left" if text else "right", overflow="fold", no_wrap=not text)
        shown += 1
    for row in rows:
        table.add_row(*(Text(cell) for cell in row[:shown]))
    console.print(table)


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
