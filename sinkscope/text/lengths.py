"""How long windows are: facts for the metadata, words for a screen or a caption, and what has to be warned of."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool
from torch import Tensor

MOST_NAMED = 3
"""Windows whose different lengths are named one by one; of more, the shortest and the longest."""

SHORT = 32
"""Tokens below which a window's figures are its length's rather than the model's."""


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


def length_warnings(keep: Bool[Tensor, "window position"]) -> list[str]:
    """The warnings that go with windows of these lengths, each without its full stop."""
    lengths = keep.sum(-1)
    shortest, longest, few = int(lengths.min()), int(lengths.max()), int((lengths < SHORT).sum())
    found = []
    if shortest < longest:
        found.append(
            f"windows have {shortest:,} to {longest:,} tokens: sink rates and other means over windows count each "
            "window once, means over rows count each row once"
        )
    if few:
        found.append(
            f"{few:,} of {len(lengths):,} windows have fewer than {SHORT} tokens, and first-token figures fall with "
            "the length: compare them with windows of the same length only"
        )
    return found
