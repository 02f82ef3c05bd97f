"""How far a mean over a few windows reaches: the quantiles of Student's t, exact for whole degrees of freedom."""

import math
from functools import cache

CONFIDENCE = 0.95
"""Of every interval that words are decided by."""


@cache
def student(degrees: int) -> float:
    """The t between whose negative and itself CONFIDENCE of Student's distribution lies; NaN below one degree."""
    if degrees < 1:
        return math.nan
    low, high = 0.0, 16.0  # with one degree it is 12.7, and less with more
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, degrees) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def within(t: float, degrees: int) -> float:
    """The probability that a variable of Student's distribution is between -t and t: the finite sums for whole degrees.

    With θ = atan(t/√ν): sin θ·(1 + 1/2·cos²θ + (1·3)/(2·4)·cos⁴θ + … ) to cos^(ν-2) where ν is even, and
    2/π·(θ + sin θ·(cos θ + 2/3·cos³θ + (2·4)/(3·5)·cos⁵θ + …)) likewise where it is odd (Abramowitz & Stegun 26.7).
    """
    angle = math.atan2(t, math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
