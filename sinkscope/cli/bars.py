"""Progress on stderr: a bar with rate and remaining time on a terminal, now and then a line elsewhere."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from sinkscope import progress
from sinkscope.cli.console import plain, talk
from sinkscope.text.documents import shown

PATIENCE = 2.0
"""Seconds before anything is said of work that may be short, and before a pace is believed."""

EVERY = 10.0
"""Seconds between lines where nothing can be redrawn."""

ENOUGH = 0.05
"""The share of the work before which its pace says little: the first step of many is the slowest."""


@contextmanager
def watched(*, quiet: bool) -> Iterator[progress.Progress]:
    """Somebody to tell progress to, for as long as the block runs; afterwards nothing of it is left on a terminal."""
    if quiet:
        yield progress.silent
        return
    console = talk()
    with _bar(console) if console.is_terminal else _lines(console) as told:
        yield told


def pace(done: int, total: int | None, seconds: float) -> str:
    """How fast a stage goes and how long it will take, in a few words; nothing before there is enough to judge by."""
    if total is None or seconds < PATIENCE or done < ENOUGH * total or done <= 0:
        return ""
    rate = done / seconds
    left = (total - done) / rate
    remaining = f"{left:,.0f} s" if left < 120 else f"{left / 60:,.0f} min"
    return f"{rate:,.0f}/s, {remaining} left" if rate >= 10 else f"{rate:.2g}/s, {remaining} left"


@contextmanager
def _bar(console: Console) -> Iterator[progress.Progress]:
    """One bar, which is the current stage's."""
    spinner = SpinnerColumn("line" if plain(console.file) else "dots")
    stage_column = TextColumn("{task.description}", markup=False)
    fields = (spinner, stage_column, BarColumn(24), TextColumn("{task.fields[pace]}"), TimeElapsedColumn())
    with Progress(*fields, console=console, transient=True) as bars:
        task: TaskID = bars.add_task("starting", total=None, pace="")
        current, start = "starting", time.monotonic()

        def told(stage: str, done: int, total: int | None) -> None:
            nonlocal task, current, start
            if stage != current:
                bars.remove_task(task)
                task = bars.add_task(shown(stage), total=total, pace="")
                current, start = stage, time.monotonic()
            bars.update(task, completed=done, total=total, pace=pace(done, total, time.monotonic() - start))

        yield told


@contextmanager
def _lines(console: Console) -> Iterator[progress.Progress]:
    """A line for what takes longer than PATIENCE, repeated every EVERY seconds, also without news."""
    state = _State()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            line = state.due()
            if line is not None:
                console.print(shown(line), soft_wrap=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield state
    finally:
        over.set()
        watcher.join()


class _State:
    """What the current stage is, how far, since when, and when to say so next."""

    def __init__(self) -> None:
        self.stage, self.done = "starting", 0
        self.total: int | None = None
        self.start = self.said = time.monotonic()
        self.wait = PATIENCE

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            self.start = self.said = time.monotonic()
            self.wait = PATIENCE
        self.stage, self.done, self.total = stage, done, total

    def due(self) -> str | None:
        """The line to print now, or None."""
        now = time.monotonic()
        if now - self.said < self.wait:
            return None
        self.said, self.wait = now, EVERY
        of = "" if self.total is None else f" {self.done:,} of {self.total:,}"
        speed = pace(self.done, self.total, now - self.start)
        return f"{self.stage}{of}{', ' if speed else ''}{speed}"
