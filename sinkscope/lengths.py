"""What has to be said of the lengths of windows: of unequal ones, and of those that are too short to compare."""

from jaxtyping import Bool
from torch import Tensor

SHORT = 32
"""Tokens below which a window's figures are its length's rather than the model's."""


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
