"""What measuring costs beside not measuring, and beside keeping attention maps: ratios within one run.

    python benchmarks/measuring.py --lengths 512 2048 --output benchmarks

The embedded model in fp32, one window of the built-in text. Every row has a process of its own, and all take turns, so
that a busy machine slows them alike. Without lengths the tables are made again from the raw figures.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pages
from cells import Cell, Run, saved, setting
from processes import CARDS, Outcome, chosen, prepared, process, turn
from rivals import Masses
from rows import Row
from timing import WHOLE

LENGTHS = (512, 1024, 2048, 4096, 8192)
REPEATS = {512: 3, 1024: 3, 2048: 3}
"""Turns of each row by length, 1 where none is given; dear rows have fewer."""
DEAR = {512: 1, 1024: 1, 2048: 2}


def measured(length: int, keys: Sequence[str] | None = None, repeats: int | None = None) -> Run:
    """All rows at one length, by turns."""
    rows, run = chosen(keys, length), Run(length, setting())
    most = repeats or REPEATS.get(length, 1)
    masses: dict[str, Masses] = {}
    with ExitStack() as stack:
        pools = {row.key: stack.enter_context(process()) for row in rows}
        ready = _prepared(pools, length, run)
        for repeat in range(most):
            for row in rows:
                turns = most if repeats or not row.dear else min(most, DEAR.get(length, 1))
                if row.key not in ready or repeat >= turns:
                    continue
                tell(f"{length} tokens, turn {repeat + 1} of {turns}: {row.label}")
                outcome = pools[row.key].submit(turn, row.key, length).result()
                _take_in(run, row, outcome)
                if outcome.masses is not None:
                    masses[row.key] = outcome.masses
    for row in rows:
        if row.key in ready and row.ours is not None:
            run.cells[row.key].off = difference(masses[row.key], masses[row.ours])
    return run


def _prepared(pools: dict[str, ProcessPoolExecutor], length: int, run: Run) -> set[str]:
    """Warm one process up after the other; the keys of the rows that can be run."""
    for key, pool in pools.items():
        tell(f"{length} tokens, warming up: {key}")
        run.cells[key] = Cell(note=pool.submit(prepared, key, length).result())
    return {key for key, cell in run.cells.items() if cell.note is None}


def _take_in(run: Run, row: Row, outcome: Outcome) -> None:
    for part in (WHOLE, *row.parts):
        cell = run.cells.setdefault(row.key if part == WHOLE else f"{row.key}/{part}", Cell())
        cell.wall.append(outcome.wall[part])
        cell.cpu.append(outcome.cpu[part])
    run.cells[row.key].peak = outcome.peak


def difference(theirs: Masses, ours: Masses) -> float:
    """The largest between the masses of any class that both have; infinite where only one of them has a figure."""
    pairs = [pair for name in theirs.keys() & ours.keys() for pair in zip(theirs[name], ours[name], strict=True)]
    return max(
        0.0 if math.isnan(one) and math.isnan(other) else math.inf if math.isnan(one - other) else abs(one - other)
        for one, other in pairs
    )


def tell(line: str) -> None:
    """Say on stderr how far it is."""
    sys.stderr.write(line + "\n")


def main() -> None:
    """Run the benchmark; print its tables, or write them with the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="tokens in the window")
    parser.add_argument("--repeats", type=int, help="turns of every row (default: fewer for long and dear ones)")
    parser.add_argument(
        "--rows", nargs="+", choices=CARDS, metavar="ROW", help="these rows, with those that they are held against"
    )
    parser.add_argument("--output", type=Path, help="the folder for measuring.md and raw/, where other lengths may be")
    parser.add_argument("--readme", type=Path, help="a page whose short table is to be renewed")
    asked = parser.parse_args()
    runs = []
    for length in asked.lengths:
        runs.append(measured(length, asked.rows, asked.repeats))
        if asked.output:
            runs[-1].save(asked.output / "raw")
    if asked.output:
        runs = saved(asked.output / "raw")
        (asked.output / "measuring.md").write_text(pages.page(runs), encoding="utf-8")
        if asked.readme and any(run.tokens in pages.SHORT_LENGTHS for run in runs):
            pages.put_into(asked.readme, pages.short(runs))
    print(pages.page(runs))


if __name__ == "__main__":
    main()
