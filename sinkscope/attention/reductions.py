"""What is kept of an attention layer once its weights are gone: a few numbers per query, head and key.

Every path through a layer, dense or fast, ends in this record, and metrics see nothing else.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention.question import Question, Rows


@dataclass(frozen=True, eq=False)
class Population:
    """What is known of all the rows of each window, where only a sample of them was reduced: masks tell it exactly."""

    keys: Float[Tensor, "batch #head every_query"]
    """How many keys each query sees."""
    seen: Float[Tensor, "batch #head every_query column"]
    """How many keys of each class it sees."""
    rows: Float[Tensor, "batch #head"]
    """How many rows count."""
    seers: Float[Tensor, "batch #head column"]
    """How many of them see a key of each class."""
    frequency: Float[Tensor, "batch #head column"]
    """The sum over these of the class's part of the visible keys."""
    widest: int
    """The largest number of keys that any real query sees."""
    full: bool
    """Whether every real query sees all the real keys up to itself."""
    looks_ahead: bool
    """Whether any real query sees more keys than there are tokens up to itself."""

    @classmethod
    def of(
        cls,
        question: Question,
        keys: Float[Tensor, "batch #head every_query"],
        seen: Float[Tensor, "batch #head every_query column"],
    ) -> "Population":
        """From the number of keys, and of keys of each class, that every query sees."""
        seeing, seeing_class = keys > 0, seen > 0
        only = question.only
        if only is not None and only.every_seeing is not None and only.every_seeing_class is not None:
            seeing, seeing_class = seeing & only.every_seeing, seeing_class & only.every_seeing_class
        rows = question.rows[:, None] & seeing
        seers = rows[..., None] & seeing_class
        parts = torch.where(seers, seen / keys.clamp(min=1)[..., None], 0)
        exact = torch.float32 if keys.device.type == "mps" else torch.float64
        real = torch.where(question.keep[:, None], keys, 0)
        everything = torch.where(question.keep, question.keep.long().cumsum(-1), 0)
        return cls(
            keys=keys,
            seen=seen,
            rows=rows.sum(-1, dtype=exact),
            seers=seers.sum(2, dtype=exact),
            frequency=parts.sum(2, dtype=exact),
            widest=int(real.max()),
            full=bool((real == everything[:, None]).all()),
            looks_ahead=bool((real > everything[:, None]).any()),
        )

    def repeated(self, count: int) -> "Population":
        """The same, each window so many times."""
        tensors = {name: each for name, each in vars(self).items() if isinstance(each, Tensor)}
        repeated: dict[str, Any] = {name: each.repeat_interleave(count, dim=0) for name, each in tensors.items()}
        return replace(self, **repeated)


@dataclass(frozen=True, eq=False)
class Reductions:
    """One call's weights, reduced. Fields that the question did not need are None.

    Counts that no head can change have a head axis of one. Weights are signed; `absolute_…` are sums of |w|, the
    very same tensors where no weight can be negative. A learned sink is no key: it is in `sink_mass` and in nothing
    else.
    """

    question: Question
    keys: Float[Tensor, "batch #head query"]
    """How many keys the query sees: n."""
    seen: Float[Tensor, "batch #head query column"]
    """How many keys of each class it sees."""
    mass: Float[Tensor, "batch head query column"]
    """Σw over each class."""
    absolute_mass: Float[Tensor, "batch head query column"]
    row_mass: Float[Tensor, "batch head query"]
    """Σw over all real keys."""
    absolute_row: Float[Tensor, "batch head query"]
    """Σ|w| over all real keys."""
    sink_mass: Float[Tensor, "batch head query"] | None = None
    """The weight of the learned sink, where the layer has one."""
    entropy: Float[Tensor, "batch head query"] | None = None
    """H of |w| normalised over the real keys, in nats; 0 in a row of zeros."""
    squares: Float[Tensor, "batch head query"] | None = None
    """Σw² over real keys."""
    zeros: Float[Tensor, "batch head query"] | None = None
    """How many visible keys get no weight by the normalizer's own formula; underflow is not counted."""
    lse: Float[Tensor, "batch head query"] | None = None
    """log Σ exp(score) over the keys the query sees and a learned sink, whatever the normalizer; -inf where it sees
    no key."""
    degenerate: Float[Tensor, "batch head query"] | None = None
    """1 where the normalizer's formula defines nothing, for normalizers that have such rows."""
    received: Float[Tensor, "batch head key"] | None = None
    """Σw that each key gets from later queries."""
    receivers: Float[Tensor, "batch #head key"] | None = None
    """How many later queries can see the key."""
    value_norm: Float[Tensor, "batch head key"] | None = None
    """‖v‖ of each key, for each query head."""
    output_norm: Float[Tensor, "batch head query"] | None = None
    """‖Σwv‖ of each query: the head's output before the output projection."""
    output_largest: Float[Tensor, "batch head query"] | None = None
    """max|Σwv| of each query: the largest entry of that output, without its sign."""
    value_drain: Float[Tensor, "batch head key"] | None = None
    """‖W_O·v‖ of each key, with the head's own slice of the output projection."""
    projected_norm: Float[Tensor, "batch head query"] | None = None
    """‖W_O·Σwv‖ of each query: what the head adds to the layer's output."""
    population: Population | None = None
    """Where queries are sampled, what is known of all of them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the column axis."""
        return tuple(self.question.marked)

    def column(self, name: str) -> int:
        """Where a class stands on the column axis."""
        return self.columns.index(name)

    def counted(self) -> Bool[Tensor, "batch #head query"]:
        """The rows that count: among the question's rows, those that see a key at all."""
        return self.question.counted[:, None, :] & self.seeing()

    def seeing(self) -> Bool[Tensor, "batch #head query"]:
        """The queries that see a key, padding and the first one included."""
        found = self.keys > 0
        return found if self.question.only is None else found & self.question.only.seeing

    def seeing_class(self) -> Bool[Tensor, "batch #head query column"]:
        """The queries that see a key of each class."""
        found = self.seen > 0
        return found if self.question.only is None else found & self.question.only.seeing_class

    def weighing(self) -> Bool[Tensor, "batch head query"]:
        """The queries that give a key any weight; one whose weights are no numbers is among them."""
        # Σw² of weights below 1e-23 is 0 in fp32, and nothing can be divided by it.
        found = (self.absolute_row if self.squares is None else self.squares) != 0
        return found if self.question.only is None else found & self.question.only.weighing

    def sharing(self) -> Bool[Tensor, "batch head query"]:
        """The queries that give a key or the learned sink any weight; what is no number is kept likewise."""
        found = self.whole() != 0
        return found if self.question.only is None else found & self.question.only.sharing

    def whole(self) -> Float[Tensor, "batch head query"]:
        """What shares are shares of: Σ|w| over the real keys and a learned sink."""
        return self.absolute_row if self.sink_mass is None else self.absolute_row + self.sink_mass.abs()

    def rows(self) -> Rows:
        """Which real queries have figures here."""
        kept, known = self.question.kept[:, None], self.population
        return Rows(
            kept & self.seeing(),
            kept[..., None] & self.seeing_class(),
            kept & self.weighing(),
            kept & self.sharing(),
            None if known is None else known.keys > 0,
            None if known is None else known.seen > 0,
        )

    def within(self, rows: Rows) -> "Reductions":
        """The same weights, with figures over these rows only."""
        question, known = replace(self.question, only=rows), self.population
        population = None if known is None else Population.of(question, known.keys, known.seen)
        return replace(self, question=question, population=population)

    def replicates(self, count: int) -> "Reductions":
        """The queries as `count` interleaved samples, each a batch row of its own.

        Where they do not come out even, the later samples end with a row that does not count. What belongs to keys is
        left out: this is for metrics that need no more than `counted()` and the fields of each query.
        """

        def dealt(rows: Tensor, axis: int) -> Tensor:
            missing = -rows.shape[axis] % count
            filler = rows.new_zeros((*rows.shape[:axis], missing, *rows.shape[axis + 1 :]))
            whole = torch.cat([rows, filler], dim=axis)
            parts = whole.reshape(*rows.shape[:axis], -1, count, *rows.shape[axis + 1 :])
            return parts.movedim(axis + 1, 1).flatten(0, 1)

        asked = self.question
        question = replace(
            asked,
            keep=asked.keep.repeat_interleave(count, dim=0),
            rows=dealt(asked.counted, 1),
            marked={name: each.repeat_interleave(count, dim=0) for name, each in asked.marked.items()},
            positions=None,
            only=None if asked.only is None else asked.only.of_queries(dealt),
        )
        population = None if self.population is None else self.population.repeated(count)
        found: dict[str, Any] = {"question": question, "population": population}
        for each in fields(self):
            tensor = getattr(self, each.name)
            if each.name not in found:
                found[each.name] = None if tensor is None or each.name in OF_KEYS else dealt(tensor, 2)
        return Reductions(**found)


OF_KEYS = frozenset({"received", "receivers", "value_norm", "value_drain"})
"""The reductions with a key axis; the others have a query axis."""

PROJECTED = frozenset({"value_drain", "projected_norm"})
"""The reductions that take the layer's output projection, and are None for a call without it."""

OF_VECTORS = PROJECTED | {"value_norm", "output_norm", "output_largest"}
"""The reductions of values and outputs: all are None for a layer that keeps these to itself."""

OPTIONAL = OF_VECTORS | {"entropy", "squares", "zeros", "lse", "degenerate", "received"}
"""The reductions a metric can ask for by name; the others cost next to nothing and are always there."""
