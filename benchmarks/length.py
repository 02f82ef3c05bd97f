"""How all default reductions of one layer grow with the length, in time and in memory.

    python benchmarks/length.py --output benchmarks

One layer of SmolLM2-135M's shape. Its own attention and our reductions each have a process of their own and take turns.
"""

import argparse
import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import layer
import torch
from cells import keep, rounded, setting
from pages import exponent
from processes import peak, process
from timing import WHOLE, Clock, ratio
from torch import Tensor

from sinkscope.attention import Call, Question, flash

LENGTHS = (4096, 8192, 16384, 32768)
TURNS = {4096: 3, 8192: 3, 16384: 2}
"""Turns by length, 1 where none is given."""

OWN, OURS = "own attention", "reductions"

HEAD = """\
# One long layer

One attention layer of SmolLM2-135M's shape (9 query heads, 3 key heads, width 64) on random vectors: everything that
`sinkscope measure` reduces a layer to by default, beside the layer's own attention. Medians of turns within one run;
memory is what a process of its own needed beyond its inputs.
"""


@dataclass
class Taken:
    """The seconds of each turn, and the bytes that a way needs beyond its inputs."""

    wall: list[float] = field(default_factory=list)
    beyond: int = 0


@functools.cache
def inputs(length: int) -> tuple[Call, Question, Tensor, int]:
    """The call, the question, room for an output, and the bytes that the process has needed until here."""
    each = layer.call(length)
    return each, layer.question(length), torch.zeros(1, length, layer.HEADS, layer.WIDTH), peak()


def turn(way: str, length: int) -> tuple[float, int]:
    """One turn: its seconds, and the bytes beyond the inputs."""
    each, question, output, before = inputs(length)
    clock = Clock()
    with clock.timing(), torch.no_grad():
        if way == OWN:
            layer.sdpa(each)
        else:
            flash.reduce(each, question, output)
    return clock.wall[WHOLE], peak() - before


def taken(length: int) -> dict[str, Taken]:
    """Both ways, by turns."""
    found = {OWN: Taken(), OURS: Taken()}
    with process() as first, process() as second:
        pools = {OWN: first, OURS: second}
        for _ in range(TURNS.get(length, 1)):
            for way, pool in pools.items():
                seconds, found[way].beyond = pool.submit(turn, way, length).result()
                found[way].wall.append(seconds)
    return found


def page(runs: dict[int, dict[str, Taken]]) -> str:
    """The table."""
    lines = [
        "| tokens | own attention, s | reductions, s | reductions ÷ own | own, MiB | reductions, MiB | all maps, MiB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for length, both in runs.items():
        own, ours = both[OWN], both[OURS]
        seconds = [f"{statistics.median(each.wall):.2f}" for each in (own, ours)]
        bytes_ = (own.beyond, ours.beyond, layer.HEADS * length**2 * 4)
        mebibytes = [f"{each / (1 << 20):,.0f}" for each in bytes_]
        lines.append(f"| {length:,} | {' | '.join([*seconds, f'{ratio(ours.wall, own.wall):.2f}', *mebibytes])} |")
    time = exponent([(length, statistics.median(both[OURS].wall)) for length, both in runs.items()])
    memory = exponent([(length, both[OURS].beyond) for length, both in runs.items()])
    grown = f"The reductions grow with the tokens to the power of {time} in time and of {memory} in memory."
    return "\n".join([HEAD, *lines, "", grown, f"{setting()}.", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    parser.add_argument("--output", type=Path, help="the folder for length.md and raw/length.json")
    asked = parser.parse_args(arguments)
    runs = {length: taken(length) for length in asked.lengths}
    if asked.output:
        rows = {
            f"{length} {way}": {"wall": rounded(each.wall), "beyond": each.beyond}
            for length, both in runs.items()
            for way, each in both.items()
        }
        keep(asked.output / "raw" / "length.json", {"setting": setting()}, rows)
        (asked.output / "length.md").write_text(page(runs), encoding="utf-8")
    print(page(runs))


if __name__ == "__main__":
    main()
