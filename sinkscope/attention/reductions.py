"""What is kept of an attention layer once its weights are gone: a few numbers per query, head and key.

Every path through a layer, dense or fast, ends in this record, and metrics see nothing else.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Which queries of a call have a figure under one way of weighing: what a change has to have in common.

    A query may see no key, or no key of a class; and all of its weights may be 0, so that nothing can be shared out.
    """

    seeing: Bool[Tensor, "batch #head query"]
    """Those that see a key."""
    seeing_class: Bool[Tensor, "batch #head query column"]
    """Those that see a key of each class."""
    weighing: Bool[Tensor, "batch head query"]
    """Those that give a key any weight: they have entropy and support."""
    sharing: Bool[Tensor, "batch head query"]
    """Those that give a key or the learned sink any weight: they have shares."""

    def same(self, other: "Rows") -> bool:
        """Whether they are the same queries."""
        return all(torch.equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))


@dataclass(frozen=True, eq=False)
class Question:
    """What a run wants to know about each call: the tokens of a batch, and which reductions are needed.

    `keep` tells real tokens from padding. `rows` are the queries over which means are taken: real tokens, without
    those that the protocol leaves out. `marked` holds one bool tensor per class of keys, in the order of the record's
    columns. With `positions`, ascending, the question is about the queries at these positions only, and `rows` and the
    record have no others. With `only`, figures are to be compared with those of another way of weighing the call, and
    the rows that count there are the only ones that count.
    """

    keep: Bool[Tensor, "batch key"]
    rows: Bool[Tensor, "batch query"]
    marked: dict[str, Bool[Tensor, "batch key"]]
    needs: frozenset[str]
    epsilon: float = 0.3
    positions: Int[Tensor, "query"] | None = None
    only: Rows | None = None

    @property
    def classes(self) -> Bool[Tensor, "batch key column"]:
        """True where a key belongs to a class; the classes in the order of the record's columns."""
        return torch.stack([*self.marked.values()], dim=-1)

    @property
    def kept(self) -> Bool[Tensor, "batch query"]:
        """Which of the queries are real tokens."""
        return self.keep if self.positions is None else self.keep[:, self.positions]

    @property
    def before(self) -> Int[Tensor, "batch query"]:
        """How many real tokens stand before each query."""
        count = self.keep.long().cumsum(-1) - self.keep.long()
        return count if self.positions is None else count[:, self.positions]

    @property
    def last(self) -> Bool[Tensor, "batch query"]:
        """Which of the queries is the window's last real token; none where queries are sampled without it."""
        return self.kept & (self.before + 1 == self.keep.sum(-1, keepdim=True))

    def to(self, device: torch.device) -> "Question":
        """The same question to a layer on another device."""
        return replace(
            self,
            keep=self.keep.to(device),
            rows=self.rows.to(device),
            marked={name: each.to(device) for name, each in self.marked.items()},
            positions=None if self.positions is None else self.positions.to(device),
        )


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
    """How many visible keys have a weight of exactly 0."""
    lse: Float[Tensor, "batch head query"] | None = None
    """log Σ exp(score) over the keys the query sees, whatever the normalizer; -inf where it sees none."""
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the column axis."""
        return tuple(self.question.marked)

    def column(self, name: str) -> int:
        """Where a class stands on the column axis."""
        return self.columns.index(name)

    def counted(self) -> Bool[Tensor, "batch #head query"]:
        """The rows that count: among the question's rows, those that see a key at all."""
        return self.question.rows[:, None, :] & self.seeing()

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
        kept = self.question.kept[:, None]
        return Rows(
            kept & self.seeing(), kept[..., None] & self.seeing_class(), kept & self.weighing(), kept & self.sharing()
        )

    def replicates(self, count: int) -> "Reductions":
        """The queries as `count` interleaved samples of equal size, each a batch row of its own.

        Up to count - 1 of the last queries are left out, and so is what belongs to keys: this is for metrics that
        need no more than `counted()` and the fields of each query.
        """

        def dealt(rows: Tensor, axis: int) -> Tensor:
            size = rows.shape[axis] // count
            parts = rows.narrow(axis, 0, size * count)
            parts = parts.reshape(*rows.shape[:axis], size, count, *rows.shape[axis + 1 :])
            return parts.movedim(axis + 1, 1).flatten(0, 1)

        asked = self.question
        question = replace(
            asked,
            keep=asked.keep.repeat_interleave(count, dim=0),
            rows=dealt(asked.rows, 1),
            marked={name: each.repeat_interleave(count, dim=0) for name, each in asked.marked.items()},
            positions=None,
            only=None
            if asked.only is None
            else Rows(**{name: dealt(each, 2) for name, each in vars(asked.only).items()}),
        )
        found: dict[str, Any] = {"question": question}
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
