"""The raw figures as tables that people read."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cells import Run
from rows import OBSERVING, ROWS, Row
from timing import ratio

HEAD = """\
# What measuring costs

One window of the built-in text through SmolLM2-135M-Instruct, and what else takes how long. Figures are ratios within
one run, in which all rows take turns: medians over the repeats of a row, each divided by the same repeat of the row
that it is held against. Written by `make benchmark`, from the seconds in [raw](raw).
"""

TIME = """\
## Time

Wall clock, in brackets processor time, ÷ that of the row named second: *plain* is the forward with one token's logits,
*scored* the forward with every token's loss. Those two are in seconds. *growth* is the exponent of the number of
tokens, fitted to the seconds. *observing alone* is the forward with everything that is reduced in it, without
handshake, loss and tables. `patched` is the scored forward while another normalizer is in place.
"""

EQUAL = """\
## Time for the same figures

How many times as long as ours another way takes to the same masses, by wall clock: as our whole call, in brackets as
our *observing alone*. *off* is the largest difference of any head's mass from ours; a row that is off by more than 1e-4
is void.
"""

MEMORY = """\
## Memory

The most that a process of its own needed, and how much more than the plain forward's that is. *out of memory*: all maps
of the model, layers x heads x tokens² x 4 bytes, would be more than 16 GiB.
"""

OPEN, CLOSE = "<!-- benchmark -->", "<!-- /benchmark -->"
SHORT = ("few", "classes", "default", "sampled", "maps-classes", "hooks-classes")
SHORT_LENGTHS = (2048, 8192)
NAMES = {"plain": "a plain forward", "scored": "a forward with loss"}

Shown = Callable[[Run, Row, str], str]
"""A cell of a table: the run of a length, a row, and the key of the row or of a part of it."""

Keyed = tuple[Row, str]


def page(runs: Sequence[Run]) -> str:
    """The page: three tables, and what they hold for."""
    labels = {row.key: row.label for row in ROWS}
    rows = [(row, row.key) for row in ROWS]
    parts = [(row, key) for row in ROWS for key in (row.key, *(f"{row.key}/{part}" for part in row.parts))]
    rivals = [(row, row.key) for row in ROWS if row.ours]
    tables = [
        (TIME, table(runs, parts, _time, _base, ("growth", _growth))),
        (EQUAL, table(runs, rivals, _equal, lambda row, _: labels[row.ours or ""], ("off", _off))),
        (MEMORY, table(runs, rows, _memory)),
    ]
    blocks = [HEAD, *(line for head, lines in tables for line in (head, *lines, ""))]
    missing = {cell.note for run in runs for cell in run.cells.values() if cell.note and "install" in cell.note}
    notes = [f"TransformerLens: {note}." for note in sorted(missing)]
    settings = [f"{_lengths(runs, each)}: {each}." for each in dict.fromkeys(run.setting for run in runs)]
    return "\n".join([*blocks, *notes, *settings, ""])


def short(runs: Sequence[Run]) -> str:
    """The table for the README: some rows at two lengths, time and memory."""
    found = [run for run in runs if run.tokens in SHORT_LENGTHS]
    heads = [f"{what}, {run.tokens:,} tokens" for what in ("time", "memory") for run in found]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for row in ROWS:
        cells = [_or_why(run, row, row.key, shown) for shown in (_wall, _memory) for run in found]
        if row.key in SHORT and any(cell != "–" for cell in cells):
            lines.append(f"| {row.label} ÷ {NAMES[row.base]} | {' | '.join(cells)} |")
    settings = dict.fromkeys(f"One window through SmolLM2-135M-Instruct, {run.setting}." for run in found)
    return "\n".join([*lines, "", *settings])


def put_into(path: Path, text: str) -> None:
    """Replace what is between the two marks of a page; ValueError where they are not there once each."""
    before = path.read_text("utf-8")
    if before.count(OPEN) != 1 or before.count(CLOSE) != 1:
        raise ValueError(f"expected {OPEN} and {CLOSE} once each in {path}")
    within = re.compile(f"{re.escape(OPEN)}.*{re.escape(CLOSE)}", re.DOTALL)
    path.write_text(within.sub(lambda _: f"{OPEN}\n\n{text}\n\n{CLOSE}", before), encoding="utf-8")


def table(
    runs: Sequence[Run],
    rows: Iterable[Keyed],
    shown: Shown,
    against: Callable[[Row, str], str] | None = None,
    last: tuple[str, Callable[[Sequence[Run], str], str]] | None = None,
) -> list[str]:
    """Rows by lengths, with what they are divided by, and a last column over all lengths."""
    before, after = (["÷"] if against else []), ([last[0]] if last else [])
    heads = ["", *before, *(f"{run.tokens:,}" for run in runs), *after]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * (1 + len(before))}{' ---: |' * (len(runs) + len(after))}"]
    for row, key in rows:
        cells = [_or_why(run, row, key, shown) for run in runs]
        if any(cell != "–" for cell in cells):
            cells = [*([against(row, key)] if against else []), *cells, *([last[1](runs, key)] if last else [])]
            lines.append(f"| {row.parts.get(key.partition('/')[2], row.label)} | {' | '.join(cells)} |")
    return lines


def _base(row: Row, key: str) -> str:
    """What a row or a part of it is divided by: a part scores no loss."""
    return "plain" if "/" in key else row.base


def _or_why(run: Run, row: Row, key: str, shown: Shown) -> str:
    """The cell, or why there is none."""
    cell = run.cells.get(key)
    if cell is None:
        return "–"
    if cell.note is not None:
        return cell.note.partition(":")[0].partition(" (")[0]
    return f"void ({cell.off:.0e})" if cell.void else shown(run, row, key)


def _time(run: Run, row: Row, key: str) -> str:
    cell, base = run.cells[key], _base(row, key)
    if key == base:
        return f"{cell.seconds:.2f} s"
    return f"{_wall(run, row, key)} ({ratio(cell.cpu, run.cells[base].cpu):.2f})"


def _wall(run: Run, row: Row, key: str) -> str:
    return f"{ratio(run.cells[key].wall, run.cells[_base(row, key)].wall):.2f}"


def _equal(run: Run, row: Row, key: str) -> str:
    wall, ours = run.cells[key].wall, row.ours or key
    return f"{ratio(wall, run.cells[ours].wall):.2f} ({ratio(wall, run.cells[f'{ours}/{OBSERVING}'].wall):.2f})"


def _memory(run: Run, _: Row, key: str) -> str:
    peak, floor = (run.cells[each].peak for each in (key, "plain"))
    if peak is None or floor is None:
        return "–"
    return f"{peak / (1 << 20):,.0f} MiB" if key == "plain" else f"{100 * (peak / floor - 1):+.0f} %"


def _off(runs: Sequence[Run], key: str) -> str:
    found = [cell.off for run in runs if (cell := run.cells.get(key)) is not None and cell.off is not None]
    return f"{max(found):.0e}" if found else "–"


def _growth(runs: Sequence[Run], key: str) -> str:
    timed = [(run.tokens, cell) for run in runs if (cell := run.cells.get(key)) is not None]
    return exponent([(tokens, cell.seconds) for tokens, cell in timed if cell.wall and not cell.void])


def exponent(points: Sequence[tuple[float, float]]) -> str:
    """The slope of a figure over another, in logarithms."""
    if len(points) < 2:
        return "–"
    logs = [(math.log(x), math.log(y)) for x, y in points]
    across, up = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
    slope = sum((x - across) * (y - up) for x, y in logs) / sum((x - across) ** 2 for x, _ in logs)
    return f"{slope:.2f}"


def _lengths(runs: Sequence[Run], setting: str) -> str:
    return ", ".join(f"{run.tokens:,}" for run in runs if run.setting == setting) + " tokens"
