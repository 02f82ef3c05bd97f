"""Sums over the entries of each token, central moments that merge exactly, and the kurtosis that they give."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 1 << 17
"""Entries that are passed over at a time on the CPU, so that the passes stay in the cache."""

Moments = Float[Tensor, "*part 5"]
"""n, mean, Σ(x-mean)², Σ(x-mean)³ and Σ(x-mean)⁴ of the entries of each part."""


@dataclass(frozen=True, eq=False)
class Swept:
    """What one pass over the states tells of each token."""

    moments: Float[Tensor, "batch position 5"]
    """In fp64 where the device has it; products and the sums of one token are in fp32.

    Entries up to 1e9 have fourth powers that fp32 can hold.
    """
    highest: Float[Tensor, "batch position"]
    lowest: Float[Tensor, "batch position"]


def swept(values: Float[Tensor, "batch position width"]) -> Swept:
    """Pass over the states once, a block at a time."""
    batch, positions, width = values.shape
    step = max(1, BLOCK // (batch * width)) if values.device.type == "cpu" else positions
    sums = torch.cat([_sums(block) for block in torch.split(values, step, dim=1)], dim=1)
    exact = sums if sums.device.type == "mps" else sums.double()
    about, first, second, third, fourth = exact[..., :5].unbind(-1)
    # The mean was rounded to fp32, and what it was rounded by counts where the spread is small beside it.
    slip = first / width
    shift = slip * first
    moments = [
        torch.full_like(slip, width),
        about + slip,
        second - shift,
        third - slip * (3 * second - 2 * shift),
        fourth - slip * (4 * third - slip * (6 * second - 3 * shift)),
    ]
    return Swept(torch.stack(moments, dim=-1), sums[..., 5], sums[..., 6])


def _sums(values: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch position 7"]:
    """About the mean of each token's entries, the sums of the powers of what they are off it, and the range."""
    about = values.mean(-1)
    off = values - about[..., None]
    squares = off * off
    powers = (off.sum(-1), squares.sum(-1), torch.linalg.vecdot(squares, off), torch.linalg.vecdot(squares, squares))
    return torch.stack([about, *powers, values.amax(-1), values.amin(-1)], dim=-1)


def pooled(parts: Float[Tensor, "*group part 5"]) -> Float[Tensor, "*group 5"]:
    """Those of all entries of several parts together; parts without an entry change nothing."""
    # what an empty part says of its mean may be anything
    counts, means, second, third, fourth = torch.where(parts[..., :1] > 0, parts, 0).unbind(-1)
    count = counts.sum(-1)
    mean = (counts * means).sum(-1) / count
    off = means - mean[..., None]
    shifts = counts * off * off
    return torch.stack(
        [
            count,
            mean,
            (second + shifts).sum(-1),
            (third + off * (3 * second + shifts)).sum(-1),
            (fourth + off * (4 * third + off * (6 * second + shifts))).sum(-1),
        ],
        dim=-1,
    )


def kurtosis(parts: Moments) -> Float[Tensor, "*part"]:
    """m₄ / m₂² with population moments, 3 for a normal distribution; NaN where all entries are equal."""
    count, _, second, _, fourth = parts.unbind(-1)
    return count * fourth / second.square()
