"""Seconds by the wall and by the processor, and their ratios within one run."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

WHOLE = "whole"


@dataclass
class Clock:
    """Wall and processor seconds by the name of what was timed; on CUDA once its queue is empty."""

    cuda: bool = False
    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, part: str = WHOLE) -> Iterator[None]:
        """Add the time that the block takes to a part."""
        self._settle()
        start, used = time.perf_counter(), time.process_time()
        yield
        self._settle()
        self.cpu[part] = self.cpu.get(part, 0) + time.process_time() - used
        self.wall[part] = self.wall.get(part, 0) + time.perf_counter() - start

    def _settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def interleaved(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """The wall seconds of each way: once untimed, then `repeats` times, always one way after the other."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            clock = Clock()
            with clock.timing():
                way()
            seconds[name].append(clock.wall[WHOLE])
    return seconds


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median of the ratios of each repeat; a row that sat some repeats out sat out the last ones."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=False))
