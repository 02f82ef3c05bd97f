"""Softmax and every figure about it, in blocks of queries that are gone through as few times as can be.

A fused kernel needs a whole pass over the scores for each figure. A block of scores answers every question while it is
at hand: all figures together take less time than its products with the keys, or than its exponentials.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.dense import FULL_WIDTH, MOST_QUERIES

HIDDEN = -1e30
"""The score of a hidden key: its weight is 0, and so is weight times score."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive queries and the keys they may see: query i the keys from i - window + 1 to i, as far as there are."""

    query: Float[Tensor, "batch head query width"]
    """Scaled: its product with a key is the score."""
    key: Float[Tensor, "batch group key width"]
    window: int
    needs: frozenset[str] = frozenset()
    columns: Float[Tensor, "batch key column"] | None = None
    """1 where a key belongs to a class."""
    keep: Bool[Tensor, "batch query"] | None = None
    """The queries from which keys receive anything; None for all."""
    silent: Float[Tensor, "batch head query"] | None = None
    """The log of what each row's denominator holds beside Σ exp(score), where that is anything."""
    value: Float[Tensor, "batch group key value_width"] | None = None
    """Where the output is wanted too."""


@dataclass(frozen=True)
class Block:
    """The queries start…stop-1 and the keys low…high-1, the only ones that any of them sees."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def entries(self) -> int:
        """Scores of one head."""
        return (self.stop - self.start) * (self.high - self.low)


def block_entries(device: torch.device) -> int:
    """Scores in one block: enough to keep every thread at work, and no more than caches can hold."""
    return (1 << 20) * torch.get_num_threads() if device.type == "cpu" else 1 << 26


@torch.no_grad()
def reduced(rows: Rows, entries: int) -> dict[str, Tensor]:
    """What the rows need, by the names of Reductions' fields, and always `lse`; with values the `output` too."""
    batch, heads, _, _ = rows.query.shape
    blocks = list(_blocks(rows, entries // (batch * heads)))
    # Fresh memory for each block would cost as much as an exponential.
    scratch = rows.query.new_empty((2, batch * heads * max(block.entries for block in blocks)))
    parts = []
    # Thousands of blocks may add up here, and what each gives may not be kept; only MPS has no fp64.
    exact = torch.float32 if rows.query.device.type == "mps" else torch.float64
    received = rows.query.new_zeros((batch, heads, rows.key.shape[2]), dtype=exact)
    # The longest first: what one block frees then holds what the next one needs, and the heap does not grow.
    for block in reversed(blocks):
        part = _figures(rows, block, scratch)
        if "received" in part:
            received[..., block.low : block.high] += part.pop("received")
        parts.append(part)
    found = {name: torch.cat([part[name] for part in reversed(parts)], dim=2) for name in parts[0]}
    return found | {"received": received} if "received" in rows.needs else found


def _blocks(rows: Rows, entries: int) -> Iterator[Block]:
    """Blocks of at most that many scores a head, and at least one query."""
    queries, keys, start = rows.query.shape[2], rows.key.shape[2], 0
    while start < queries:
        low = max(0, start - rows.window + 1)
        fitting = max(1, entries // (min(start + MOST_QUERIES, keys) - low))
        stop = min(start + min(fitting, MOST_QUERIES), queries)
        yield Block(start, stop, low, min(stop, keys))
        start = stop


def _figures(rows: Rows, block: Block, scratch: Float[Tensor, "2 entry"]) -> dict[str, Tensor]:
    """One block's figures, in an order in which nothing is overwritten before its last use."""
    batch, heads, _, _ = rows.query.shape
    shape = (batch, heads, block.stop - block.start, block.high - block.low)
    scores, weights = (each[: math.prod(shape)].view(shape) for each in scratch)
    queries, keys, found = slice(block.start, block.stop), slice(block.low, block.high), {}
    _score(rows.query[:, :, queries], rows.key[:, :, keys], scores)
    _hide(scores, block, rows.window)
    torch.softmax(scores, -1, out=weights)
    # The largest weight of a row is 1 / Σ exp(score - largest score).
    found["lse"] = lse = scores.amax(dim=-1) - weights.amax(dim=-1).log()
    total = lse if rows.silent is None else torch.logaddexp(lse, rows.silent[:, :, queries])
    gate = (lse - total).exp()
    if rows.columns is not None:
        found["mass"] = _mass(weights, rows.columns[:, keys]) * gate[..., None]
    if rows.value is not None:
        found["output"] = _grouped(weights, rows.value[:, :, keys]) * gate[..., None]
    if "squares" in rows.needs:
        found["squares"] = (torch.linalg.vector_norm(weights, dim=-1) * gate).square()
    if "zeros" in rows.needs:
        # Softmax gives every key a weight, however small: what is 0 here is underflow.
        found["zeros"] = torch.zeros_like(lse)
    if "entropy" in rows.needs:
        found["entropy"] = (lse - scores.mul_(weights).sum(dim=-1)).clamp(min=0)
    if "received" in rows.needs:
        found["received"] = _received(rows, block, weights, gate)
    return found


def _score(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch group key width"],
    scores: Float[Tensor, "batch head query key"],
) -> None:
    batch, groups, keys, width = key.shape
    # Query heads that share a key head are stacked as more queries, so that keys are never repeated.
    stacked = query.reshape(batch, groups, -1, width)
    torch.matmul(stacked, key.transpose(2, 3), out=scores.view(batch, groups, -1, keys))


def _hide(scores: Float[Tensor, "batch head query key"], block: Block, window: int) -> None:
    """Hide the future of each query and what its window has left behind: two corners of the block."""
    queries, keys = scores.shape[-2:]
    if (future := block.high - block.start) > 0:
        corner = torch.ones(queries, future, dtype=torch.bool, device=scores.device).triu(1)
        scores[..., -future:].masked_fill_(corner, HIDDEN)
    if (past := min(block.stop - window - block.low, keys)) > 0:
        corner = torch.ones(queries, past, dtype=torch.bool, device=scores.device)
        scores[..., :past].masked_fill_(corner.tril(block.start - window - block.low), HIDDEN)


def _mass(
    weights: Float[Tensor, "batch head query key"], columns: Float[Tensor, "batch key column"]
) -> Float[Tensor, "batch head query column"]:
    batch, heads, queries, keys = weights.shape
    count = columns.shape[-1]
    wide = pad(columns, (0, -count % FULL_WIDTH))
    found = weights.view(batch, heads * queries, keys) @ wide
    return found.view(batch, heads, queries, -1)[..., :count]


def _grouped(
    weights: Float[Tensor, "batch head query key"], value: Float[Tensor, "batch group key value_width"]
) -> Float[Tensor, "batch head query value_width"]:
    batch, groups, keys, width = value.shape
    stacked = weights.view(batch, groups, -1, keys)
    return (stacked @ value).view(batch, weights.shape[1], -1, width)


def _received(
    rows: Rows, block: Block, weights: Float[Tensor, "batch head query key"], gate: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head key"]:
    """What each key gets from the later queries of the block; erases the weights that do not count."""
    if (own := block.high - block.start) > 0:
        weights[..., -own:].diagonal(dim1=-2, dim2=-1).zero_()
    if rows.keep is not None and not bool((kept := rows.keep[:, block.start : block.stop]).all()):
        # Erased, not multiplied by 0: the queries of padding may hold anything, NaN included.
        weights.masked_fill_(~kept[:, None, :, None], 0)
        gate = gate.masked_fill(~kept[:, None], 0)
    return (gate[:, :, None] @ weights)[:, :, 0]
