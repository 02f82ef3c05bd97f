"""What one run collects while the model goes by: a tally per metric and layer, the positions, the loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.activations.record import HiddenRecord
from sinkscope.attention import OF_VECTORS, Call, Reductions, Site
from sinkscope.attention.reductions import Population
from sinkscope.errors import UnsupportedModelError
from sinkscope.metrics import Metric
from sinkscope.metrics.base import over
from sinkscope.metrics.levels import share_by_level
from sinkscope.metrics.positions import Received, bin_edges, first_mass_by_position
from sinkscope.statistics.accumulate import Sums, Tally

Numbers = Sequence[int]
"""The windows of a batch, by their numbers among all windows of the run."""


@dataclass
class Layer:
    """One attention call of the model, in the order of execution: where it is, and its tallies."""

    name: str
    """The module's qualified name."""
    layer: int
    """The layer's own number in the model."""
    call: int
    """Which of the module's calls within one forward."""
    layer_type: str | None
    window: int | None
    heads: int
    learned_sink: bool
    path: str
    """How its weights were reduced: flash or dense."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    sampled: dict[str, Tally] = field(default_factory=dict)
    """Where queries were sampled, the same of each replicate: unit window x replicates + replicate."""
    population: Tally = field(default_factory=Tally)
    """And how many rows each window has and how many of them were sampled, [head column + 1]: those that see a key of
    each class, and last all."""
    even: Tally = field(default_factory=Tally)
    """What the sample makes of the sum of each class's part of the visible keys, and that sum, [head column]."""
    by_position: Tally = field(default_factory=Tally)
    by_level: Tally = field(default_factory=Tally)
    widest: int = 0
    """The largest number of keys that any query saw."""
    full: bool = True
    """Whether every query saw all the real keys up to itself."""

    @classmethod
    def of(cls, site: Site, call: Call, path: str) -> "Layer":
        """The layer that a call comes from, with nothing counted yet."""
        heads, learned_sink = call.query.shape[1], call.sink is not None
        return cls(site.name, site.layer, site.call, site.layer_type, site.window, heads, learned_sink, str(path))

    @property
    def kind(self) -> str:
        """The layer's own type where it states one, else what its mask showed."""
        return self.layer_type or ("full_attention" if self.full else "sliding_attention")

    @property
    def window_length(self) -> int | None:
        """How many keys a query of a windowed layer sees at most."""
        return self.window or (None if self.full else self.widest)


@dataclass
class Record:
    """Everything one run under one normalizer has seen of the model, complete once every window has passed."""

    normalizer: str
    edges: list[int]
    received: Received
    metrics: tuple[Metric, ...]
    layers: dict[tuple[str, int], Layer] = field(default_factory=dict)
    loss: Tally = field(default_factory=Tally)
    divergence: Tally = field(default_factory=Tally)
    agreement: Tally = field(default_factory=Tally)
    """Where there is a baseline to compare with: KL to it, and how often the same token comes first."""
    fractions: dict[int, float] = field(default_factory=dict)
    """Which part of its queries was reduced in each window, where they were sampled."""
    parts: int = 0
    """How many replicates of each window's sample there are; 0 where queries were not sampled."""
    hidden: HiddenRecord | None = None
    """What was seen of hidden states, where they were asked for."""
    gradients: Float[Tensor, "window position"] | None = None
    """The norm of the loss's gradient at each input embedding, where it was asked for."""
    largest_difference: float | None = None
    """Between a layer's own output and ours, over all calls that were checked; None where none was."""

    @classmethod
    def start(cls, normalizer: str, windows: int, length: int, metrics: tuple[Metric, ...]) -> "Record":
        """An empty record for that many windows of at most that many tokens."""
        return cls(normalizer, bin_edges(length), Received.empty(windows, length), metrics)

    def add(self, layer: Layer, windows: Numbers, reductions: Reductions) -> None:
        """Take in one call's reductions; `layer` is only used when its site is new."""
        known = self.layers.setdefault((layer.name, layer.call), layer)
        for metric in self.metrics:
            known.tallies.setdefault(metric.name, Tally()).add(windows, _sums(metric, reductions))
        known.by_position.add(windows, first_mass_by_position(reductions, self.edges))
        if reductions.lse is not None:
            known.by_level.add(windows, share_by_level(reductions))
        if reductions.received is not None:
            self.received.add(windows, layer.layer, reductions)
        population = reductions.population
        if population is None:
            population = Population.of(reductions.question, reductions.keys, reductions.seen)
        else:
            self._add_sample(known, windows, reductions, population)
        if population.looks_ahead:
            raise UnsupportedModelError(
                f"{known.name} cannot be measured: over this text its queries see more keys than "
                "there are tokens up to them, so a token attends to later ones"
            )
        known.widest = max(known.widest, population.widest)
        known.full = known.full and population.full

    def _add_sample(self, known: Layer, windows: Numbers, reductions: Reductions, population: Population) -> None:
        question = reductions.question
        fractions = question.kept.sum(-1) / question.keep.sum(-1)
        self.fractions |= dict(zip(windows, fractions.tolist(), strict=True))
        known.population.add(windows, rows_of(reductions, population))
        known.even.add(windows, even_of(reductions, population))
        parts = reductions.replicates(self.parts)
        units = [window * self.parts + part for window in windows for part in range(self.parts)]
        for metric in self.metrics:
            if metric.by_row:
                known.sampled.setdefault(metric.name, Tally()).add(units, _sums(metric, parts))

    def over(self, other: "Record") -> "Record":
        """This record's sums of calls, and the other's for the windows that this one lacks; neither is changed."""
        layers = {
            key: replace(
                layer,
                tallies=_over(mine.tallies, layer.tallies),
                sampled=_over(mine.sampled, layer.sampled),
                by_position=mine.by_position.over(layer.by_position),
                population=mine.population.over(layer.population),
                even=mine.even.over(layer.even),
            )
            for key, layer in other.layers.items()
            for mine in [self.layers.get(key, layer)]
        }
        return replace(other, layers=layers)

    def in_order(self) -> list[Layer]:
        """The layers by their own numbers, and those that share a number in the order of execution."""
        return sorted(self.layers.values(), key=lambda layer: layer.layer)


def _over(some: dict[str, Tally], others: dict[str, Tally]) -> dict[str, Tally]:
    return {name: some[name].over(tally) for name, tally in others.items()}


def rows_of(reductions: Reductions, population: Population) -> Sums:
    """How many rows there are and how many were sampled, [batch, head, column + 1]."""
    counted = reductions.counted()
    seeing = counted[..., None] & reductions.seeing_class()
    total = torch.cat([population.seers, population.rows[..., None]], dim=-1)
    sampled = torch.cat([seeing.sum(2), counted.sum(2)[..., None]], dim=-1)
    heads = (-1, reductions.mass.shape[1], -1)
    return total.expand(heads), sampled.to(total.dtype).expand(heads)


def even_of(reductions: Reductions, population: Population) -> Sums:
    """The sum over all rows of each class's part of the visible keys, as the sample has it and as it is."""
    rows = reductions.counted()[..., None] & reductions.seeing_class()
    sampled, number = over(reductions.seen / reductions.keys.clamp(min=1)[..., None], rows)
    scale = torch.where(number > 0, population.seers / number.clamp(min=1), 0)
    # Of rows that are all in the sample the sum is the same, but not the rounding.
    found = torch.where(number == population.seers, population.frequency, sampled * scale)
    heads = (-1, reductions.mass.shape[1], -1)
    return found.expand(heads), population.frequency.expand(heads)


def _sums(metric: Metric, reductions: Reductions) -> Sums:
    """What the metric makes of a call; undefined if it needs vectors that the layer keeps to itself, or projected."""
    if all(getattr(reductions, name) is not None for name in metric.needs & OF_VECTORS):
        return metric.function(reductions)
    nothing = torch.zeros_like(reductions.mass if metric.per_class else reductions.row_mass).sum(dim=2)
    return nothing, nothing
