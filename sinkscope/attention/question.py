"""What a run wants to know about each call of attention, and over which of its queries."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int, Shaped
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
    every_seeing: Bool[Tensor, "batch #head every_query"] | None = None
    every_seeing_class: Bool[Tensor, "batch #head every_query column"] | None = None
    """The first two of all queries, where the others are about a sample of them."""

    def same(self, other: "Rows") -> bool:
        """Whether they are the same queries."""
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return all(mine is theirs or torch.equal(mine, theirs) for mine, theirs in pairs)

    def of_queries(self, change: Callable[[Tensor, int], Tensor]) -> "Rows":
        """The same with the query axis, which is the third, changed; without what is known of all queries."""
        return Rows(*(change(each, 2) for each in (self.seeing, self.seeing_class, self.weighing, self.sharing)))


@dataclass(frozen=True, eq=False)
class Question:
    """What a run wants to know about each call: the tokens of a batch, and which reductions are needed.

    `keep` tells real tokens from padding. `rows` are the queries over which means are taken: real tokens, without
    those that the protocol leaves out. `marked` holds one bool tensor per class of keys, in the order of the record's
    columns. With `positions`, ascending in each window, the question is about the queries at these positions only, and
    the record has no others. With `only`, figures are to be compared with those of another way of weighing the call,
    and the rows that count there are the only ones that count.
    """

    keep: Bool[Tensor, "batch key"]
    rows: Bool[Tensor, "batch every_query"]
    marked: dict[str, Bool[Tensor, "batch key"]]
    needs: frozenset[str]
    epsilon: float = 0.3
    positions: Int[Tensor, "batch query"] | None = None
    only: Rows | None = None

    @property
    def classes(self) -> Bool[Tensor, "batch key column"]:
        """True where a key belongs to a class; the classes in the order of the record's columns."""
        return torch.stack([*self.marked.values()], dim=-1)

    @property
    def kept(self) -> Bool[Tensor, "batch query"]:
        """Which of the queries are real tokens."""
        return self._at(self.keep)

    @property
    def counted(self) -> Bool[Tensor, "batch query"]:
        """Which of the queries are among the rows over which means are taken."""
        return self._at(self.rows)

    @property
    def before(self) -> Int[Tensor, "batch query"]:
        """How many real tokens stand before each query."""
        return self._at(self.keep.long().cumsum(-1) - self.keep.long())

    @property
    def last(self) -> Bool[Tensor, "batch query"]:
        """Which of the queries is the window's last real token; none where queries are sampled without it."""
        return self.kept & (self.before + 1 == self.keep.sum(-1, keepdim=True))

    def _at(self, values: Shaped[Tensor, "batch every_query"]) -> Shaped[Tensor, "batch query"]:
        return values if self.positions is None else values.gather(1, self.positions)

    def to(self, device: torch.device) -> "Question":
        """The same question to a layer on another device."""
        return replace(
            self,
            keep=self.keep.to(device),
            rows=self.rows.to(device),
            marked={name: each.to(device) for name, each in self.marked.items()},
            positions=None if self.positions is None else self.positions.to(device),
        )
