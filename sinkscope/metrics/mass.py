"""How much of the attention lands on a class of tokens: mass, share, lift, and rates over a threshold."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.metrics.base import over
from sinkscope.statistics.accumulate import Sums


def mass(reductions: Reductions) -> Sums:
    """Σw on the class, over the rows that can see a key of it."""
    rows = _seeing(reductions)
    return over(reductions.mass, rows)


def share(reductions: Reductions) -> Sums:
    """Σ|w| on the class ÷ Σ|w| of the row, over the rows that can see a key of it and have any weight."""
    return over(*_shares(reductions))


def lift(reductions: Reductions) -> Sums:
    """Mean share ÷ mean frequency of the class among the visible keys, over the same rows.

    Of a sample of queries the shares are sampled, but not the frequencies.
    """
    shares, rows = _shares(reductions)
    return over(shares, rows)[0], _frequencies(reductions, rows)[0]


def frequency(reductions: Reductions) -> Sums:
    """The class's part of the visible keys, over the rows whose shares are taken; of a sample, over all such rows."""
    _, rows = _shares(reductions)
    total, count = _frequencies(reductions, rows)
    if reductions.population is None:
        return total, count
    _, seeing = over(reductions.seen, _seeing(reductions))
    weight = torch.where(seeing > 0, reductions.population.seers / seeing.clamp(min=1), 0)
    return total * weight, count * weight


def row_mass(reductions: Reductions) -> Sums:
    """Σw over all real keys."""
    return over(reductions.row_mass, reductions.counted())


def sink_logit_mass(reductions: Reductions) -> Sums:
    """The weight of the layer's learned sink."""
    rows = reductions.counted()
    if reductions.sink_mass is None:
        return over(torch.zeros_like(reductions.row_mass), torch.zeros_like(rows))
    return over(reductions.sink_mass, rows)


def zero_rows(reductions: Reductions) -> Sums:
    """The share of rows in which every real key weighs 0, whatever a learned sink has."""
    return over((reductions.absolute_row == 0).to(reductions.row_mass.dtype), reductions.counted())


def sink_rate(reductions: Reductions) -> Sums:
    """Whether the window's mean share on its first token exceeds ε."""
    first = reductions.column("first")
    shares, rows = _shares(reductions, slice(first, first + 1))
    return rate(over(shares[..., 0], rows[..., 0]), reductions.question.epsilon)


def sink_rate_raw(reductions: Reductions) -> Sums:
    """Whether the window's mean mass on its first token exceeds ε."""
    first = reductions.column("first")
    return rate(over(reductions.mass[..., first], _seeing(reductions)[..., first]), reductions.question.epsilon)


def rate(first: Sums, epsilon: float) -> Sums:
    """Whether each window's mean exceeds ε, strictly; a mean that is no number stays one."""
    total, count = first
    defined = count > 0
    exceeds = ((total > epsilon * count) & defined).to(total.dtype)
    return torch.where(total.isnan(), total, exceeds), defined.to(total.dtype)


def _seeing(reductions: Reductions) -> Bool[Tensor, "batch #head query column"]:
    return reductions.counted()[..., None] & reductions.seeing_class()


def _shares(
    reductions: Reductions, columns: slice = slice(None)
) -> tuple[Float[Tensor, "batch head query column"], Bool[Tensor, "batch head query column"]]:
    of = reductions.whole()[..., None]
    # A row that is no number stays, so that the figure is none either.
    rows = _seeing(reductions)[..., columns] & reductions.sharing()[..., None]
    return reductions.absolute_mass[..., columns] / of.masked_fill(of == 0, 1), rows


def _frequencies(reductions: Reductions, rows: Bool[Tensor, "batch #head query column"]) -> Sums:
    """The sum over these rows of the class's part of the visible keys, and their number.

    Of a sample of queries the sum is what it is on average over all rows that see the class: masks tell it exactly.
    Rows of zeros have no share; how far they differ from the others in frequency is all that the sample then tells.
    """
    parts = reductions.seen / reductions.keys.clamp(min=1)[..., None]
    total, count = over(parts.expand_as(reductions.mass), rows)
    known = reductions.population
    if known is None:
        return total, count
    sampled, number = over(parts, _seeing(reductions))
    correction = known.frequency * number / (known.seers * sampled)
    return torch.where(count > 0, total * correction, 0), count
