"""How long windows are: the facts for the metadata, and the words for a screen or a caption."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool
from torch import Tensor

MOST_NAMED = 3
"""Windows whose different lengths are named one by one; of more, the shortest and the longest."""


def longest(keep: Bool[Tensor, "window position"]) -> int:
    """The number of tokens in the longest window, without padding: `seq_len` in every table."""
    return int(keep.sum(dim=1).max())


def length_facts(keep: Bool[Tensor, "window position"], asked: int | None = None) -> dict[str, object]:
    """The longest window's real length, the length that was asked for, and every window's where they differ."""
    lengths = keep.sum(dim=1).tolist()
    return {
        "seq_len": max(lengths),
        "seq_len_asked": asked,
        "lengths": lengths if len(set(lengths)) > 1 else None,
    }


def windows_in_words(facts: Mapping[str, Any], windows: int) -> str:
    """`4 windows of 512 tokens`, `2 windows of 19 and 3 tokens`, `9 windows of 3 to 19 tokens`."""
    lengths = facts.get("lengths")
    if not lengths:
        size = f"{facts['seq_len']:,}"
    elif len(lengths) <= MOST_NAMED:
        *others, last = (f"{length:,}" for length in lengths)
        size = f"{', '.join(others)} and {last}"
    else:
        size = f"{min(lengths):,} to {max(lengths):,}"
    return f"{windows:,} {'window' if windows == 1 else 'windows'} of {size} tokens"
