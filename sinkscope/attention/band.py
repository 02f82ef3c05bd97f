"""The masks of causal models in a few numbers, so that nothing has to be counted on the mask itself."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkscope.attention.call import Call

CHECKED_AT_ONCE = 1 << 22
"""Entries of a mask that are compared at a time."""


@dataclass(frozen=True)
class Part:
    """The rows of a batch that have the same padding, the queries that see a key at all, and the real keys."""

    rows: tuple[int, ...]
    queries: slice
    keys: slice

    @property
    def length(self) -> int:
        """The number of queries."""
        return int(self.queries.stop - self.queries.start)


@dataclass(frozen=True)
class Band:
    """A mask by which query i sees the keys from max(start, i - window + 1) to min(i, stop - 1)."""

    length: int
    window: int
    """How many keys a query sees at most: the length itself where there is no sliding window."""
    spans: tuple[tuple[int, int], ...]
    """(start, stop) of the real keys, for each row of the batch."""

    def parts(self) -> Iterator[Part]:
        """The batch in as few parts as its padding allows; rows without a real key are in none."""
        for start, stop in sorted(set(self.spans)):
            if start < stop:
                rows = tuple(row for row, span in enumerate(self.spans) if span == (start, stop))
                last = min(self.length, stop - 1 + self.window)
                yield Part(rows, slice(start, last), slice(start, stop))

    def reach(self, device: torch.device) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch query"]]:
        """The first key that each query sees, and the one behind the last; equal where it sees none."""
        start, stop = torch.tensor(self.spans, device=device).unbind(1)
        query = torch.arange(self.length, device=device)
        low = torch.maximum(query - self.window + 1, start[:, None])
        return low, torch.minimum(query + 1, stop[:, None]).maximum(low)

    def seen(self, columns: Bool[Tensor, "batch key column"]) -> Float[Tensor, "batch 1 query column"]:
        """How many keys of each column a query sees."""
        low, high = self.reach(columns.device)
        before = torch.nn.functional.pad(columns.long().cumsum(1), (0, 0, 1, 0))
        shape = (*low.shape, columns.shape[-1])
        # A query before the first real key has its empty reach there; one far behind the last, anywhere.
        last = torch.tensor(self.length, device=columns.device)
        at_low, at_high = (at.minimum(last)[..., None].expand(shape) for at in (low, high))
        return (before.gather(1, at_high) - before.gather(1, at_low)).float()[:, None]

    def receivers(self, keep: Bool[Tensor, "batch query"]) -> Float[Tensor, "batch 1 key"]:
        """How many later queries that count can see a key."""
        start, stop = torch.tensor(self.spans, device=keep.device).unbind(1)
        key = torch.arange(self.length, device=keep.device)
        before = torch.nn.functional.pad(keep.long().cumsum(1), (1, 0))
        later = before[:, (key + self.window).clamp(max=self.length)] - before[:, key + 1]
        real = (key >= start[:, None]) & (key < stop[:, None])
        return torch.where(real, later, 0)[:, None].float()


_read: WeakKeyDictionary[Call, Band | str] = WeakKeyDictionary()


def band(call: Call) -> Band | str:
    """The call's mask as a band, after every entry of it was compared; else, in words, why it is none."""
    if call not in _read:
        _read[call] = _band(call)
    return _read[call]


def _band(call: Call) -> Band | str:
    batch, _, queries, _ = call.query.shape
    if queries != call.key.shape[2]:
        return f"{queries} queries on {call.key.shape[2]} keys"
    if call.mask is None:
        return Band(queries, queries, ((0, queries),) * batch) if call.causal else "queries see later keys"
    if call.mask.shape[1] > 1:
        return "every head has a mask of its own"
    guessed = _guess(call, call.mask)
    if guessed is not None and not any(start < stop for start, stop in guessed.spans):
        return "every key is hidden"
    if guessed is None or not all(_agrees(call, guessed, rows) for rows in _blocks(call)):
        return "the mask is more than causality, a sliding window and padding at the ends"
    return guessed


def _guess(call: Call, mask: Tensor) -> Band | None:
    """The only band that the mask can be, from its diagonal and the column of each batch row's first real key."""
    length = call.length
    spans, windows = [], set()
    for row, marks in enumerate(_open(call, mask.diagonal(dim1=-2, dim2=-1)).cpu()):
        places = marks.nonzero()
        start, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        spans.append((start, stop))
        if start < stop:
            # Of padding behind the last key, too: it may be all that a window hides a key from.
            seers = int(_open(call, mask[..., start])[row].sum())
            windows |= {seers} if seers < length - start else set()
    if len(windows) > 1:
        return None
    spans *= call.query.shape[0] // len(spans)
    return Band(length, windows.pop() if windows else length, tuple(spans))


def _open(call: Call, line: Tensor) -> Bool[Tensor, "#batch key"]:
    """True where a line through the mask, as long as there are keys, hides nothing."""
    part = dataclasses.replace(call.rows(0, 1), key=call.key, value=call.value, mask=line[:, :, None])
    return part.visible()[:, 0, 0]


def _blocks(call: Call) -> Iterator[slice]:
    size = max(1, CHECKED_AT_ONCE // (call.query.shape[0] * call.length))
    return (slice(start, min(start + size, call.length)) for start in range(0, call.length, size))


def _agrees(call: Call, guessed: Band, rows: slice) -> bool:
    """Whether the mask hides exactly what the band does, and adds nothing to what it leaves visible."""
    part = call.rows(rows.start, rows.stop)
    visible = part.visible()[:, 0]
    low, high = (each[: visible.shape[0], rows, None] for each in guessed.reach(visible.device))
    key = torch.arange(visible.shape[-1], device=visible.device)
    if not torch.equal(visible, (key >= low) & (key < high)):
        return False
    mask = part.mask
    return mask is None or mask.dtype == torch.bool or not torch.where(visible, mask[:, 0], 0).any()
