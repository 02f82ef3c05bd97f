"""What a run collects of hidden states: for each layer and window its figures, moments and largest entries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.activations.base import Activation, measured
from sinkscope.activations.layers import Layers
from sinkscope.activations.states import Entries, States
from sinkscope.activations.watching import Place, watching
from sinkscope.statistics.accumulate import Tally


@dataclass(frozen=True)
class Entry:
    """One of the largest entries of a window: its signed value, and where it is."""

    value: float
    window: int
    position: int
    dimension: int


@dataclass(frozen=True, eq=False)
class Outline:
    """What is kept of all the entries of one window: moments, range, median |x| and the largest by |x|."""

    moments: Float[Tensor, "5"]
    low: float
    high: float
    median: float
    entries: tuple[Entry, ...]


@dataclass
class Seen:
    """What has passed at one place, window by window; in the tally a figure stands in a head's place."""

    tally: Tally = field(default_factory=Tally)
    outlines: dict[int, Outline] = field(default_factory=dict)


@dataclass
class HiddenRecord:
    """Everything one run under one normalizer has seen of a model's hidden states."""

    normalizer: str
    layers: Layers
    activations: tuple[Activation, ...]
    places: dict[Place, Seen] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Modules whose output is no hidden states, with the reason; nothing that was seen of them counts."""

    @contextmanager
    def watch(self, model: PreTrainedModel, windows: Sequence[int], length: int) -> Iterator[None]:
        """Take in what the model makes of these windows of one length, which is to be run once in the block."""
        keep = torch.ones(len(windows), length, dtype=torch.bool)

        def take(place: Place, output: Tensor | None) -> None:
            self.add(place, windows, output, keep)

        with watching(model, self.layers, take):
            yield

    @torch.no_grad()
    def add(
        self, place: Place, windows: Sequence[int], output: Tensor | None, keep: Bool[Tensor, "batch position"]
    ) -> None:
        """Take in the output of one module over these windows; one that is no hidden states leaves a reason."""
        seen = self.places.setdefault(place, Seen())
        if output is None or output.shape[:2] != keep.shape:
            shape = "of another kind" if output is None else list(output.shape)
            self.unread[place.module] = f"its output is {shape}, not [batch, position, width]"
            return
        states = States(output.float(), keep.to(output.device))
        if figures := self.figures(place):
            seen.tally.add(windows, measured(figures, states))
        seen.outlines |= zip(windows, _outlines(windows, states, attention=place.attention), strict=True)

    def figures(self, place: Place) -> tuple[Activation, ...]:
        """Those that are measured there, in the order of the tally."""
        return tuple(each for each in self.activations if each.of_attention or not place.attention)

    def defined(self, place: Place) -> bool:
        """Whether what was seen there counts."""
        return place.module not in self.unread and bool(self.places[place].outlines)

    @property
    def undefined(self) -> dict[str, str]:
        """Modules without figures, with the reason."""
        called = {place.module for place in self.places}
        never = {each.name: "it was never called" for each in self.layers.layers if each.name not in called}
        return self.layers.undefined | never | self.unread

    def merge(self, other: "HiddenRecord") -> "HiddenRecord":
        """The record of both, which must not share a window; neither is changed."""
        places = {}
        for place in self.places | other.places:
            one, two = (each.places.get(place, Seen()) for each in (self, other))
            places[place] = Seen(one.tally.merge(two.tally), one.outlines | two.outlines)
        return HiddenRecord(self.normalizer, self.layers, self.activations, places, self.unread | other.unread)


def _outlines(windows: Sequence[int], states: States, *, attention: bool) -> list[Outline]:
    """The outline of each window; of attention without what is told of layers only, and costs the most."""
    low = torch.where(states.keep, states.swept.lowest, torch.inf).amin(-1).tolist()
    high = torch.where(states.keep, states.swept.highest, -torch.inf).amax(-1).tolist()
    medians = [torch.nan] * len(windows) if attention else states.median.tolist()
    entries = [()] * len(windows) if attention else _entries(windows, states.top)
    columns = (states.whole.cpu().double(), low, high, medians, entries)
    return [Outline(*each) for each in zip(*columns, strict=True)]


def _entries(windows: Sequence[int], top: Entries) -> list[tuple[Entry, ...]]:
    columns = (top.values.tolist(), top.positions.tolist(), top.dimensions.tolist())
    return [
        tuple(Entry(value, window, position, dimension) for value, position, dimension in zip(*each, strict=True))
        for window, *each in zip(windows, *columns, strict=True)
    ]
