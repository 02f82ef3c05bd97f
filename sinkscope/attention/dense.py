"""The plain path: blocks of queries against all the keys they see, in fp32, for any normalizer.

It is also the oracle: every faster path is tested against it, and it against transformers' own eager attention.
Memory is bounded by one block, whatever the length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkscope.attention.call import Call
from sinkscope.attention.norms import norms
from sinkscope.attention.reductions import Question, Reductions
from sinkscope.attention.swap import PLAIN, Swap, Weighed

BLOCK_ENTRIES = 1 << 20
"""Weights in one block: 4 MiB of fp32, so that a block's many passes stay near the cache."""


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of some consecutive queries; keys past the last of them are left out where all are hidden."""

    start: int
    call: Call
    weighed: Weighed


def blocks(call: Call, swap: Swap, entries: int = BLOCK_ENTRIES) -> Iterator[Block]:
    """Go through a call in blocks of at most `entries` weights, and at least one query."""
    batch, heads, queries, _ = call.query.shape
    size = max(1, min(queries, entries // (batch * heads * call.key.shape[2])))
    for start in range(0, queries, size):
        part = call.rows(start, min(start + size, queries))
        yield Block(start, part, swap.weigh(part))


def attend(
    call: Call, swap: Swap = PLAIN, entries: int = BLOCK_ENTRIES
) -> Float[Tensor, "batch query head value_width"]:
    """The layer's output under a swap, laid out and typed as transformers expects it."""
    return _output(call, [_values(each) for each in blocks(call, swap, entries)])


def reduce(
    call: Call,
    question: Question,
    output: Float[Tensor, "batch query head value_width"] | None = None,
    entries: int = BLOCK_ENTRIES,
) -> Reductions:
    """Everything the question needs to know of one call under softmax; `output` is the layer's own, for its norm."""
    running = _Running(call, question, PLAIN)
    for each in blocks(call, PLAIN, entries):
        running.add(each)
    return running.finish(output)


def attend_and_reduce(
    call: Call, swap: Swap, question: Question, entries: int = BLOCK_ENTRIES
) -> tuple[Float[Tensor, "batch query head value_width"], Reductions]:
    """Output and reductions under a swap, from the same weights."""
    running = _Running(call, question, swap)
    parts = []
    for each in blocks(call, swap, entries):
        running.add(each)
        parts.append(_values(each))
    output = _output(call, parts)
    return output, running.finish(output)


def _values(each: Block) -> Float[Tensor, "batch head query value_width"]:
    weights = each.weighed.weights
    if each.call.dropout:
        weights = torch.nn.functional.dropout(weights, each.call.dropout)
    return each.call.output(weights)


def _output(call: Call, parts: list[Tensor]) -> Float[Tensor, "batch query head value_width"]:
    return torch.cat(parts, dim=2).transpose(1, 2).to(call.value.dtype).contiguous()


class _Running:
    """The reductions of one call while its blocks go by."""

    def __init__(self, call: Call, question: Question, swap: Swap) -> None:
        self.call = call
        self.question = question
        self.swap = swap
        self.columns = torch.stack([*question.marked.values()], dim=-1)[:, None]
        self.rows: dict[str, list[Tensor]] = {}
        if "received" in question.needs:
            batch, heads, _, _ = call.query.shape
            # Thousands of blocks may add up here; only MPS has no fp64.
            exact = torch.float32 if call.query.device.type == "mps" else torch.float64
            self.received = call.query.new_zeros((batch, heads, call.key.shape[2]), dtype=exact)
            self.receivers = torch.zeros_like(self.received)

    def add(self, each: Block) -> None:
        found = each.weighed
        weights = found.weights
        columns = self.columns[:, :, : weights.shape[-1]].to(weights.dtype)
        visible = found.visible.to(weights.dtype)
        size = weights.abs() if self.swap.signed else weights
        row = size.sum(dim=-1)
        self._put("keys", visible.sum(dim=-1))
        self._put("seen", visible @ columns)
        self._put("mass", weights @ columns)
        self._put("row_mass", weights.sum(dim=-1) if self.swap.signed else row)
        self._put("absolute_row", row)
        if self.swap.signed:
            self._put("absolute_mass", size @ columns)
        if found.sink is not None:
            self._put("sink_mass", found.sink)
        self._add_optional(each, size, row)
        if "received" in self.question.needs:
            self._receive(each, visible)

    def _add_optional(self, each: Block, size: Tensor, row: Tensor) -> None:
        found, needs = each.weighed, self.question.needs
        if "entropy" in needs:
            self._put("entropy", _entropy(size, row))
        if "squares" in needs:
            self._put("squares", found.weights.square().sum(dim=-1))
        if "zeros" in needs:
            self._put("zeros", ((found.weights == 0) & found.visible).sum(dim=-1).to(row.dtype))
        if "lse" in needs:
            self._put("lse", found.scores.logsumexp(dim=-1))
        if "degenerate" in needs and found.degenerate is not None:
            self._put("degenerate", found.degenerate.to(row.dtype))

    def _receive(self, each: Block, visible: Tensor) -> None:
        weights = each.weighed.weights
        queries, keys = weights.shape[-2:]
        query = torch.arange(each.start, each.start + queries, device=visible.device)
        later = query[:, None] > torch.arange(keys, device=visible.device)
        later = later & self.question.keep[:, None, query, None]
        # where, not a product: the queries of padding may hold anything, NaN included.
        self.received[..., :keys] += torch.where(later, weights, 0).sum(dim=2)
        self.receivers[..., :keys] += torch.where(later, visible, 0).sum(dim=2)

    def _put(self, name: str, rows: Tensor) -> None:
        self.rows.setdefault(name, []).append(rows)

    def finish(self, output: Tensor | None) -> Reductions:
        fields: dict[str, Tensor] = {name: torch.cat(parts, dim=2) for name, parts in self.rows.items()}
        fields.setdefault("absolute_mass", fields["mass"])
        if "received" in self.question.needs:
            fields |= {"received": self.received, "receivers": self.receivers}
        fields |= norms(self.call, self.question.needs, output)
        return Reductions(question=self.question, **fields)


def _entropy(size: Tensor, row: Tensor) -> Tensor:
    """H of a row of |w| normalised to sum 1, in nats: log Σ|w| - Σ|w|·log|w| / Σ|w|, with 0·log 0 = 0."""
    product = torch.special.xlogy(size, size).sum(dim=-1)
    empty = row == 0
    safe = row.masked_fill(empty, 1)
    entropy: Tensor = safe.log() - product / safe
    return entropy.masked_fill(empty, 0)
