"""A process for each row: what it needs at most is then what the row needs, and nothing that another left behind."""

import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rivals import Masses, has_lens
from rows import ROWS, Row
from timing import Clock
from workload import Workload, embedded

WARM_UP = 128
GIVEN = 16 << 30
"""Bytes that a row may have: what keeps more maps than that is not tried."""

CARDS = {row.key: row for row in ROWS}


@dataclass(frozen=True)
class Outcome:
    """One turn of a row: its seconds by part, its masses, and the bytes its process has needed at most so far."""

    wall: dict[str, float]
    cpu: dict[str, float]
    masses: Masses | None
    peak: int


def process() -> ProcessPoolExecutor:
    """A fresh process, forked off one that has imported everything and run nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["sinkscope.study"])
    return ProcessPoolExecutor(1, mp_context=context)


def prepared(key: str, length: int) -> str | None:
    """Load and warm up in the row's process; why the row cannot be run there, else None."""
    row = CARDS[key]
    if row.needs_lens and not has_lens():
        return "not installed (pip install transformer-lens)"
    if row.maps and (wanted := map_bytes(embedded(length))) > GIVEN:
        return f"out of memory: the maps alone are {wanted / (1 << 30):.1f} GiB"
    row.way(embedded(WARM_UP), Clock())
    embedded(length)
    return None


def turn(key: str, length: int) -> Outcome:
    """One turn in the row's process."""
    clock = Clock()
    masses = CARDS[key].way(embedded(length), clock)
    return Outcome(clock.wall, clock.cpu, masses, peak())


def map_bytes(workload: Workload) -> int:
    """All attention maps of one window: layers · heads · tokens² · bytes of a weight."""
    config, dtype = workload.model.config, workload.model.dtype
    return config.num_hidden_layers * config.num_attention_heads * workload.length**2 * dtype.itemsize


def peak() -> int:
    """The most bytes this process has had in memory; unlike ru_maxrss it knows nothing of the parent's."""
    status = Path("/proc/self/status").read_text("ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("no VmHWM in /proc/self/status: peaks of memory can only be read on Linux")
    return int(found[1]) << 10


def chosen(keys: Sequence[str] | None, length: int) -> list[Row]:
    """The rows that are asked for, and those that they are held against, as far as they are tried at this length."""
    asked = set(keys or CARDS)
    wanted = asked | {CARDS[key].ours or key for key in asked}
    wanted |= {"plain"} | {CARDS[key].base for key in wanted}
    return [row for row in ROWS if row.key in wanted and length <= (row.longest or length)]
