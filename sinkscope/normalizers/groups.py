"""The few keys of a long row that stand out, found through the best of each group of keys instead of by sorting."""

import torch
from jaxtyping import Float
from torch import Tensor

GROUP = 16
"""Keys in a group. They stand n / 16 apart, so that neighbours, which are often alike, share none."""

SHORT = 8 * GROUP
"""A row of fewer keys is looked at whole."""


def best_of_groups(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows group"]:
    """The largest score of every group, and the scores that are left over; together, the best of the row is in them."""
    if scores.shape[-1] < SHORT:
        return scores
    grouped, rest = _grouped(scores)
    return torch.cat([grouped.amax(-2), rest], dim=-1)


def of_best_groups(scores: Float[Tensor, "*rows key"], count: int) -> Float[Tensor, "*rows near"]:
    """All the scores of so many groups, those with the largest best; the whole row where that is little more.

    The `count` largest scores of the row are among them, ties included as often as they are needed.
    """
    if scores.shape[-1] < SHORT:
        return scores
    grouped, rest = _grouped(scores)
    if 4 * count > grouped.shape[-1]:
        return scores
    best = grouped.amax(-2, keepdim=True).topk(count, sorted=False).indices
    found = grouped.gather(-1, best.expand(*grouped.shape[:-1], count))
    return torch.cat([found.flatten(-2), rest], dim=-1)


def _grouped(
    scores: Float[Tensor, "*rows key"],
) -> tuple[Float[Tensor, "*rows member group"], Float[Tensor, "*rows rest"]]:
    groups = scores.shape[-1] // GROUP
    whole = groups * GROUP
    return scores[..., :whole].view(*scores.shape[:-1], GROUP, groups), scores[..., whole:]
