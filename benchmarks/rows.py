"""The rows of the benchmark; write a way through the window, and list its card here."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import rivals
import torch
from rivals import Masses
from timing import Clock
from workload import Workload

import sinkscope
from sinkscope.hooks.predictions import losses, predict
from sinkscope.runs import observe
from sinkscope.runs.options import Options
from sinkscope.study.runs import measure_windows

Way = Callable[[Workload, Clock], Masses | None]

OBSERVING = "observing"
FEW = ("first", "initial", "bos")


@dataclass(frozen=True)
class Row:
    """One way through the window: what it is held against, and how far it is taken.

    `base` is the row by whose time it is divided. `ours` is our row of the same figures: its masses have to agree, and
    the two are compared in time. A `dear` row sits out the later repeats, `longest` is the most tokens that it is tried
    with, and with `maps` it keeps every layer's.
    """

    key: str
    label: str
    way: Way
    base: str
    ours: str | None = None
    longest: int | None = None
    dear: bool = False
    maps: bool = False
    needs_lens: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)
    """Labels of the parts of the way that are shown as rows `key/part`, ÷ the plain forward."""


@torch.no_grad()
def plain(workload: Workload, clock: Clock) -> None:
    """A forward with the logits of one token."""
    with clock.timing():
        workload.model(workload.ids, use_cache=False, logits_to_keep=1)


def scored(workload: Workload, clock: Clock) -> None:
    """A forward with the loss of every token, logits in chunks."""
    with clock.timing():
        _score(workload)


def _score(workload: Workload) -> None:
    ids = workload.windows.ids
    losses(predict(workload.model, ids, chunked=True), ids)


def measuring(**options: Any) -> Way:
    """`sinkscope measure` with these options: the whole call, and the forward under observation alone."""

    def way(workload: Workload, clock: Clock) -> Masses:
        with clock.timing(), _observing(clock):
            report = measure_windows(workload.model, workload.tokenizer, workload.windows, Options(**options))
        heads = report.first().heads
        names = [name for name in workload.marked if f"{name}_mass" in heads]
        return {name: heads[f"{name}_mass"].astype(float).tolist() for name in names}

    return way


@contextmanager
def _observing(clock: Clock) -> Iterator[None]:
    """Time the forward of the windows on its own: within `observe` nothing else calls `predict`."""

    def timed(*arguments: Any, **named: Any) -> object:
        with clock.timing(OBSERVING):
            return predict(*arguments, **named)

    with patch.object(observe, "predict", timed):
        yield


def rival(way: Callable[[Workload, Clock, tuple[str, ...]], Masses], *names: str) -> Way:
    """A rival's way to the masses of these classes, or of all."""
    return lambda workload, clock: way(workload, clock, names)


def swapped(normalizer: str) -> Way:
    """A forward with the loss of every token while another normalizer is in place; putting it there is not timed."""

    def way(workload: Workload, clock: Clock) -> None:
        with sinkscope.patched(workload.model, normalizer), clock.timing():
            _score(workload)

    return way


ALONE = {OBSERVING: "— observing alone"}

ROWS = [
    Row("plain", "forward, one token's logits", plain, "plain"),
    Row("scored", "forward, loss of every token", scored, "scored"),
    Row("few", "measure, first/initial/BOS masses", measuring(only=("mass",), classes=FEW), "plain", parts=ALONE),
    Row("classes", "measure, all class masses", measuring(only=("mass", "share", "lift")), "plain", parts=ALONE),
    Row("default", "measure, everything", measuring(), "scored", parts=ALONE),
    Row("sampled", "measure, 256 queries", measuring(queries=256), "scored"),
    Row("dense", "measure, dense path", measuring(attention="dense"), "scored", "default", 4096, dear=True),
    Row(
        "maps-few",
        "output_attentions, first/initial",
        rival(rivals.output_attentions, *FEW),
        "plain",
        "few",
        dear=True,
        maps=True,
    ),
    Row(
        "maps-classes",
        "output_attentions, all classes",
        rival(rivals.output_attentions),
        "plain",
        "classes",
        dear=True,
        maps=True,
    ),
    Row("hooks-few", "hooks on eager, first/initial", rival(rivals.hooks, *FEW), "plain", "few", 2048, dear=True),
    Row("hooks-classes", "hooks on eager, all classes", rival(rivals.hooks), "plain", "classes", 4096, dear=True),
    Row(
        "lens",
        "TransformerLens, all classes",
        rival(rivals.transformer_lens),
        "plain",
        "classes",
        dear=True,
        maps=True,
        needs_lens=True,
    ),
    Row("softmax1", "patched, softmax1", swapped("softmax1"), "scored", None, 2048, dear=True),
    Row("softpick", "patched, softpick", swapped("softpick"), "scored", None, 2048, dear=True),
    Row("entmax", "patched, entmax:alpha=1.5", swapped("entmax:alpha=1.5"), "scored", None, 2048, dear=True),
]
