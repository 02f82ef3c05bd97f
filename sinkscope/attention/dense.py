"""The plain path: blocks of queries against all the keys they see, in fp32, for any normalizer.

It is also the oracle: every faster path is tested against it, and it against transformers' own eager attention.
Memory is bounded by one block, whatever the length.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout, pad

from sinkscope.attention.band import band
from sinkscope.attention.call import Call
from sinkscope.attention.norms import norms
from sinkscope.attention.question import Question
from sinkscope.attention.reductions import Population, Reductions
from sinkscope.attention.swap import PLAIN, SOFTMAX, Swap, Weighed

BLOCK_ENTRIES = 1 << 21
"""Weights in one block: 8 MiB of fp32, so that a block's many passes stay near the cache."""

MOST_QUERIES = 64
"""Queries in a block: half of them times as many weights are computed in vain, on keys later than the query."""

FULL_WIDTH = 16
"""A matrix product with fewer columns than this takes longer than one with as many."""


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of some consecutive queries on the keys between the first and the last that any of them sees."""

    start: int
    """The first query."""
    low: int
    """The first key."""
    call: Call
    weighed: Weighed


def blocks(call: Call, swap: Swap, entries: int = BLOCK_ENTRIES) -> Iterator[Block]:
    """Go through a call in blocks of at most `entries` weights, and at least one query."""
    batch, heads, queries, _ = call.query.shape
    size = max(1, min(queries, MOST_QUERIES, entries // (batch * heads * call.key.shape[2])))
    exact = call.exact()
    for start in range(0, queries, size):
        part = exact.rows(start, min(start + size, queries))
        low, high = part.sight.reach
        if high - low < part.key.shape[2]:
            part = part.between(low, high)
        yield Block(start, low, part, swap.weigh(part))


def attend(
    call: Call, swap: Swap = PLAIN, entries: int = BLOCK_ENTRIES
) -> Float[Tensor, "batch query head value_width"]:
    """The layer's output under a swap, laid out and typed as transformers expects it."""
    return _output(call, [_values(each) for each in blocks(call, swap, entries)])


def reduce(
    call: Call,
    question: Question,
    output: Float[Tensor, "batch all_queries head value_width"] | None = None,
    swap: Swap = PLAIN,
    entries: int = BLOCK_ENTRIES,
) -> Reductions:
    """Everything the question needs to know of one call under a swap; `output` is the layer's own, for its norm.

    Where the question is about some queries only, no other's weights are computed, and a key receives from these only;
    what the others see is in the record's `population`.
    """
    running = _Running(call, question, swap)
    for each in blocks(running.asked, swap, entries):
        running.add(each)
    return running.finish(output)


def attend_and_reduce(
    call: Call, swap: Swap, question: Question, entries: int = BLOCK_ENTRIES
) -> tuple[Float[Tensor, "batch query head value_width"], Reductions]:
    """Output of all queries and reductions of those asked for, under a swap, from the same weights if these are all."""
    if question.positions is not None:
        output = attend(call, swap, entries)
        return output, reduce(call, question, output, swap, entries)
    running = _Running(call, question, swap)
    parts = []
    for each in blocks(call, swap, entries):
        parts.append(_values(each))
        running.add(each)
    output = _output(call, parts)
    return output, running.finish(output)


def _values(each: Block) -> Float[Tensor, "batch head query value_width"]:
    weights = each.weighed.weights
    if each.call.dropout:
        weights = dropout(weights, each.call.dropout)
    return each.call.output(weights)


def _output(call: Call, parts: list[Tensor]) -> Float[Tensor, "batch query head value_width"]:
    return torch.cat(parts, dim=2).transpose(1, 2).to(call.value.dtype).contiguous()


class _Running:
    """The reductions of one call while its blocks go by."""

    def __init__(self, call: Call, question: Question, swap: Swap) -> None:
        self.call = call
        self.question = question
        self.swap = swap
        positions = question.positions
        self.asked = call if positions is None else call.at(positions)
        everything = torch.arange(call.length, device=call.query.device)[None]
        self.positions = everything if positions is None else positions
        self.kept = question.kept
        columns = question.classes[:, None]
        self.count = columns.shape[-1]
        self.columns = pad(columns.to(call.exact_dtype), (0, -self.count % FULL_WIDTH))
        self.rows: dict[str, list[Tensor]] = {}
        self.sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, each: Block) -> None:
        """Take in one block; erases those of its weights that no later query's are, unless a gradient needs them."""
        found = each.weighed
        if found.weights.requires_grad:
            found = replace(found, weights=found.weights.detach().clone())
        weights = found.weights
        visible = found.visible.to(weights.dtype)
        size = weights.abs() if self.swap.signed else weights
        row = size.sum(dim=-1)
        self._put("keys", visible.sum(dim=-1))
        self._put("seen", self._by_class(each, visible))
        self._put("mass", self._by_class(each, weights))
        self._put("row_mass", weights.sum(dim=-1) if self.swap.signed else row)
        self._put("absolute_row", row)
        if self.swap.signed:
            self._put("absolute_mass", self._by_class(each, size))
        if found.sink is not None:
            self._put("sink_mass", found.sink)
        self._add_optional(each.call, found, size, row)
        if "received" in self.question.needs:
            self._receive("received", each, weights)
            self._receive("receivers", each, visible)

    def _add_optional(self, part: Call, found: Weighed, size: Tensor, row: Tensor) -> None:
        needs = self.question.needs
        if "entropy" in needs:
            self._put("entropy", _entropy(size, row))
        if "squares" in needs:
            self._put("squares", torch.linalg.vector_norm(size, dim=-1).square())
        if "zeros" in needs:
            self._put("zeros", self.swap.zeros(part, found).to(row.dtype))
        if "lse" in needs:
            self._put("lse", beside_sink(self._lse(found), part.sink))
        if "degenerate" in needs and found.degenerate is not None:
            self._put("degenerate", found.degenerate.to(row.dtype))

    def _lse(self, found: Weighed) -> Float[Tensor, "batch head query"]:
        if self.swap.normalizer != SOFTMAX or found.sink is not None:
            return found.scores.logsumexp(dim=-1)
        # The largest weight of a row is 1 / Σ exp(score - largest score).
        largest = found.scores.amax(dim=-1)
        return largest - found.weights.amax(dim=-1).log().masked_fill(largest == -torch.inf, 0)

    def _by_class(
        self, each: Block, weights: Float[Tensor, "batch #head query key"]
    ) -> Float[Tensor, "batch #head query column"]:
        """Sums over the keys of each class."""
        columns = self.columns[:, :, each.low : each.low + weights.shape[-1]]
        return (weights @ columns)[..., : self.count]

    def _receive(self, name: str, each: Block, weights: Float[Tensor, "batch #head query key"]) -> None:
        """Add what each key gets from later queries, and erase the rest."""
        batch, heads, queries, keys = weights.shape
        rows = slice(each.start, each.start + queries)
        if name not in self.sums:
            # Thousands of blocks may add up here; only MPS has no fp64.
            exact = torch.float32 if weights.device.type == "mps" else torch.float64
            self.sums[name] = weights.new_zeros((batch, heads, self.call.key.shape[2]), dtype=exact)
        query = self.positions[:, None, rows, None]
        own = min(max(0, int(query.min()) - each.low), keys)
        key = torch.arange(each.low + own, each.low + keys, device=weights.device)
        weights[..., own:].masked_fill_(key >= query, 0)
        if not bool((kept := self.kept[:, rows]).all()):
            # Erased, not multiplied by 0: the queries of padding may hold anything, NaN included.
            weights.masked_fill_(~kept[:, None, :, None], 0)
        self.sums[name][..., each.low : each.low + keys] += weights.new_ones(queries) @ weights

    def _put(self, name: str, rows: Tensor) -> None:
        self.rows.setdefault(name, []).append(rows)

    def finish(self, output: Tensor | None) -> Reductions:
        """The record, once all blocks are in."""
        fields: dict[str, Any] = {name: torch.cat(parts, dim=2) for name, parts in self.rows.items()} | self.sums
        fields.setdefault("absolute_mass", fields["mass"])
        if self.question.positions is not None:
            fields["population"] = population(self.call, self.question, self.swap)
            if output is not None:
                output = output[torch.arange(len(output), device=output.device)[:, None], self.positions]
        fields |= norms(self.call, self.question.needs, output)
        return Reductions(question=self.question, **fields)


def population(call: Call, question: Question, swap: Swap = PLAIN) -> Population:
    """What all the rows of each window see, from the mask alone."""
    if swap.modifier is None and not isinstance(shape := band(call), str):
        low, high = shape.reach(call.query.device)
        return Population.of(question, (high - low).float()[:, None], shape.seen(question.classes))
    columns = question.classes[:, None].to(call.exact_dtype)
    keys, seen = [], []
    for start in range(0, call.length, MOST_QUERIES):
        part = call.rows(start, min(start + MOST_QUERIES, call.length))
        visible = swap.visible(part).to(columns.dtype)
        keys.append(visible.sum(-1).expand(len(columns), -1, -1))
        seen.append(visible @ columns[:, :, : visible.shape[-1]])
    return Population.of(question, torch.cat(keys, dim=2), torch.cat(seen, dim=2))


def beside_sink(
    lse: Float[Tensor, "batch head query"], sink: Float[Tensor, "#batch head #query"] | None
) -> Float[Tensor, "batch head query"]:
    """The log-sum-exp of a row's scores and of its learned sink's; -inf still where a row sees no key."""
    if sink is None:
        return lse
    return torch.logaddexp(lse, sink.to(lse.dtype)).masked_fill(lse == -torch.inf, -torch.inf)


def _entropy(
    size: Float[Tensor, "batch head query key"], row: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head query"]:
    """H of a row of |w| normalised to sum 1, in nats: log Σ|w| - Σ|w|·log|w| / Σ|w|, with 0·log 0 = 0."""
    # Of clamped weights, because xlogy takes three times as long.
    product = size.clamp_min(torch.finfo(size.dtype).tiny).log_().mul_(size).sum(dim=-1)
    empty = row == 0
    safe = row.masked_fill(empty, 1)
    return (safe.log() - product / safe).masked_fill(empty, 0)
