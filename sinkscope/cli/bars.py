"""Progress on stderr: a bar with rate and remaining time on a terminal, now and then a line elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from sinkscope import progress
from sinkscope.cli.console import talk

PATIENCE = 2.0
"""Seconds before a line about work that may be short."""

EVERY = 10.0
"""Seconds between lines where nothing can be redrawn."""


@contextmanager
def shown(*, quiet: bool) -> Iterator[progress.Progress]:
    """Somebody to tell progress to, for as long as the block runs; afterwards nothing of it is left on a terminal."""
    if quiet:
        yield progress.silent
        return
    console = talk()
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        yield _Bars(bars)


class _Pace:
    """How fast the current stage goes, in a few words."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.start = time.monotonic()

    def __call__(self, done: int, total: int | None) -> str:
        passed = time.monotonic() - self.start
        if total is None or done <= 0 or passed < 0.5:
            return ""
        rate = done / passed
        left = (total - done) / rate
        return f"{rate:,.0f}/s, {left:,.0f} s left" if rate >= 10 else f"{rate:.2g}/s, {left:,.0f} s left"


class _Bars:
    """One bar, which is the current stage's."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.pace = _Pace("starting")
        self.task: TaskID = bars.add_task("starting", total=None, pace="")

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.pace.stage:
            self.pace = _Pace(stage)
            self.bars.remove_task(self.task)
            self.task = self.bars.add_task(stage, total=total, pace="")
        self.bars.update(self.task, completed=done, total=total, pace=self.pace(done, total))


class _Lines:
    """A line for each stage that takes longer than PATIENCE, repeated every EVERY seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.pace = _Pace("starting")
        self.next = time.monotonic() + PATIENCE

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if stage != self.pace.stage:
            self.pace = _Pace(stage)
            self.next = now + PATIENCE
        if now < self.next:
            return
        self.next = now + EVERY
        of = "" if total is None else f" {done:,} of {total:,}"
        pace = self.pace(done, total)
        self.console.print(f"{stage}{of}{', ' if pace else ''}{pace}", soft_wrap=True)
