"""The one ± of a figure that people see, and what would make it smaller."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

LAST_DIGIT = 0.001
"""What the last digit of a share is worth, as it is shown."""


def uncertainty(row: pd.Series, name: str) -> float:
    """The standard error of a figure that holds everything: √(texts² + sample²).

    With several windows that is `_se`: each window is sampled by itself, so the spread over windows (or documents)
    has the sampling error in it already, and adding `_sampling_se` would count it twice. It is never less than
    `_sampling_se`, which few windows can make it by chance. With one window there is no spread, and it is
    `_sampling_se` alone, which says nothing of other texts. NaN where neither is known.
    """
    known = [float(row.get(f"{name}{end}", math.nan)) for end in ("_se", "_sampling_se")]
    return max((each for each in known if not math.isnan(each)), default=math.nan)


def unsettled(row: pd.Series, metadata: Mapping[str, Any]) -> list[str]:
    """How uncertain the first token's share is, where that is more than its last digit, and what reduces it."""
    error = uncertainty(row, "first_share")
    if math.isnan(error) or error <= LAST_DIGIT:
        return []
    sampled = float(row.get("first_share_sampling_se", math.nan))
    over = metadata.get("standard_errors", {})
    unit = "document" if over.get("over") == "documents" else "window"
    number = int(over.get("number", row["windows"]))
    of = f"{number:,} {unit}{'s' * (number != 1)}"
    if not math.isnan(sampled):
        of += f", {metadata['queries']['number']:,} queries of each{' window' * (unit == 'document')}"
    remedy = "queries" if 2 * sampled**2 > error**2 else f"{unit}s"
    note = ""
    if number == 1:
        note = "; one window says nothing of other texts"
    elif unit == "window" and over.get("documents", number) < number:
        note = "; windows of one text are alike, so it may be larger"
    return [f"Uncertainty ± {error:.1%} ({of}); more {remedy} reduce it{note}."]
