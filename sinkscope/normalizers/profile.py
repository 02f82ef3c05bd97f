"""What a normalizer does to scores and what it costs, measured: sums, zeros, norm, Jacobian, finite range, time."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.normalizers import NORMALIZERS, Normalizer, resolve
from sinkscope.normalizers.exponential import SOFTMAX
from sinkscope.progress import Progress, silent

_MOST_ROWS = 256
"""Rows whose Jacobian and finite range are measured, evenly spaced over all that see at least two keys."""

_MOST_ENTRIES = 2**24
"""Jacobian entries that are held at a time: 128 MiB of fp64."""

_NOTICEABLE = 1e-3
"""What counts as more than almost zero, relative to the largest entry of the same row's Jacobian."""

_TIMED_BLOCK = (1, 512)
"""Maps and queries of the scores that are timed: 1 MiB, because what is larger is mapped anew and times the system."""


@dataclass(frozen=True)
class Profile:
    """What was measured of one normalizer on given scores; None where a figure is undefined or was not asked for.

    On all rows, in fp64, weights without a unit:

    * `row_sum_min`, `row_sum_mean`, `row_sum_max`: of the rows that see a key
    * `zeros`: share of the visible keys, 0 to 1, whose weight is exactly 0, by underflow too
    * `frobenius`: the largest ‖A‖_F / √n over the maps A, n the number of queries

    On at most 256 rows that see at least two keys, stretched until the largest |score| of every row is s, and on their
    negatives:

    * `finite_fp16`, `finite_bf16`: the largest s = 1, 2, 4, … up to which scores and weights in that dtype are finite;
      inf if they are for every s that the dtype holds, 0 if not even for 1
    * `declared_fp16`, `declared_bf16`: what the card's `finite_range` says, None where it does not know

    On the same rows as they are, by autograd in fp64, with J[i, j] = ∂weight_i / ∂score_j over the visible keys; None
    for what is declared not to be differentiable, and where weights carry no gradient:

    * `sensitivity`: the largest |J[i, j]| of any row, per unit of score; softmax cannot exceed 1/4
    * `sensitivity_ratio`: the same, as a multiple of softmax's
    * `sensitivity_typical`: the largest |J[i, j]| of a row as a multiple of softmax's in that row, the median over rows
    * `gradient_density`: share of the entries, 0 to 1, that are not exactly 0
    * `gradient_density_noticeable`: share of the entries above 1/1000 of the largest of their row

    On a causal map of 512 queries in fp32, on one thread, in CPU time, which other programs hardly disturb; the
    median over repeats that take turns:

    * `time`: of `weigh`, as a multiple of softmax's `weigh`
    * `time_plain`: of `weigh`, as a multiple of plain `torch.softmax`
    """

    normalizer: str
    row_sum_min: float
    row_sum_mean: float
    row_sum_max: float
    zeros: float
    frobenius: float
    finite_fp16: float
    finite_bf16: float
    declared_fp16: float | None
    declared_bf16: float | None
    sensitivity: float | None = None
    sensitivity_ratio: float | None = None
    sensitivity_typical: float | None = None
    gradient_density: float | None = None
    gradient_density_noticeable: float | None = None
    time: float | None = None
    time_plain: float | None = None


def profile(
    normalizer: str | Normalizer | Callable[..., Tensor],
    scores: Float[Tensor, "map query key"] | None = None,
    *,
    repeats: int = 41,
) -> Profile:
    """One normalizer, measured on scores with -inf at hidden keys, by default those of `sample_scores`.

    Times are the medians of so many `repeats`, None for 0; everything else comes out the same every time. Raises what
    `resolve` raises for a normalizer that is none, and ValueError for NaN or inf among the scores or where no query
    sees two keys.
    """
    card = resolve(normalizer)
    maps = (sample_scores() if scores is None else scores.detach()).double()
    rows = _sampled_rows(maps)
    with _one_thread():
        return Profile(
            normalizer=card.spec,
            **_of_weights(card, maps),
            finite_fp16=_finite_scale(card, rows, torch.float16),
            finite_bf16=_finite_scale(card, rows, torch.bfloat16),
            declared_fp16=card.finite_range(torch.float16),
            declared_bf16=card.finite_range(torch.bfloat16),
            **_of_gradient(card, rows),
            **_of_time(card, repeats),
        )


def profiles(
    normalizers: Iterable[str | Normalizer | Callable[..., Tensor]] = tuple(NORMALIZERS),
    scores: Float[Tensor, "map query key"] | None = None,
    *,
    repeats: int = 41,
    progress: Progress = silent,
) -> pd.DataFrame:
    """A row per normalizer, by default per listed one; the columns are the fields of `Profile`, NaN for None.

    Raises what `profile` raises.
    """
    asked = list(normalizers)
    rows = []
    for done, normalizer in enumerate(asked):
        progress("profiling normalizers", done, len(asked))
        rows.append(asdict(profile(normalizer, scores, repeats=repeats)))
    progress("profiling normalizers", len(asked), len(asked))
    names = [field.name for field in fields(Profile)]
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[1:], float))


def sample_scores(maps: int = 4, length: int = 64, seed: int = 0) -> Float[Tensor, "map query key"]:
    """Causal scores as sink heads have them, -inf at hidden keys: N(−1, 1.5), and N(4, 0.7) for key 0."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(maps, length, length, generator=generator) * 1.5 - 1
    scores[..., 0] = torch.randn(maps, length, generator=generator) * 0.7 + 4
    return scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)


def jacobian(normalizer: Normalizer, rows: Float[Tensor, "row key"]) -> Float[Tensor, "row weight key"] | None:
    """∂weight / ∂score of every row in fp64, per unit of score, 0 at hidden keys; None where there is no gradient."""
    scores = rows.detach().double().requires_grad_()
    weights = normalizer.weigh(scores)
    if normalizer.differentiable is False or not weights.requires_grad:
        return None
    # Rows do not see each other: the gradient of a weight's sum over rows is its gradient in each of them.
    sums = weights.sum(0).unbind()
    return torch.stack([torch.autograd.grad(each, scores, retain_graph=True)[0] for each in sums], dim=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have torch use one thread: several wait for each other in CPU time, and round sums differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sampled_rows(maps: Float[Tensor, "map query key"]) -> Float[Tensor, "row key"]:
    """At most so many of the rows that see two keys or more; with one key most weights cannot move."""
    if bool((maps.isnan() | (maps == math.inf)).any()):
        raise ValueError("expected scores that are finite, or -inf at hidden keys, got NaN or inf among them")
    rows = maps.flatten(0, 1)
    rows = rows[rows.isfinite().sum(-1) >= 2]
    if not len(rows):
        raise ValueError(f"expected a query that sees at least two keys, got none in maps of shape {list(maps.shape)}")
    return rows[:: math.ceil(len(rows) / _MOST_ROWS)]


def _of_weights(card: Normalizer, maps: Float[Tensor, "map query key"]) -> dict[str, Any]:
    weights = card.weigh(maps)
    visible = maps.isfinite()
    sums = weights.sum(-1)[visible.any(-1)]
    norms = torch.linalg.matrix_norm(weights) / math.sqrt(maps.shape[-2])
    return {
        "row_sum_min": float(sums.min()),
        "row_sum_mean": float(sums.mean()),
        "row_sum_max": float(sums.max()),
        "zeros": float((weights[visible] == 0).double().mean()),
        "frobenius": float(norms.max()),
    }


def _of_gradient(card: Normalizer, rows: Float[Tensor, "row key"]) -> dict[str, Any]:
    by_row = []
    for part in torch.split(rows, max(1, _MOST_ENTRIES // rows.shape[-1] ** 2)):
        slopes, usual = jacobian(card, part), jacobian(SOFTMAX, part)
        if slopes is None or usual is None:
            return {}
        sizes = slopes.abs()
        top = sizes.amax((-2, -1))
        noticeable = sizes > top[:, None, None] * _NOTICEABLE
        by_row.append(torch.stack([top, usual.abs().amax((-2, -1)), _count(sizes > 0), _count(noticeable)]))
    largest, reference, moved, noticed = torch.cat(by_row, dim=-1)
    entries = rows.isfinite().sum(-1).square().sum()
    return {
        "sensitivity": float(largest.max()),
        "sensitivity_ratio": _defined(largest.max() / reference.max()),
        "sensitivity_typical": _defined((largest / reference).nanmedian()),
        "gradient_density": float(moved.sum() / entries),
        "gradient_density_noticeable": float(noticed.sum() / entries),
    }


def _count(entries: Bool[Tensor, "row weight key"]) -> Float[Tensor, "row"]:
    return entries.sum((-2, -1)).double()


def _defined(figure: Float[Tensor, ""]) -> float | None:
    """The figure, or None for 0 / 0: a softmax that is saturated to the last digit cannot be compared with."""
    return None if bool(figure.isnan()) else float(figure)


def _finite_scale(card: Normalizer, rows: Float[Tensor, "row key"], dtype: torch.dtype) -> float:
    hidden = rows.isinf()
    seen = rows.masked_fill(hidden, 0)
    unit = seen / seen.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(seen.dtype).tiny)
    unit, hidden = torch.cat([unit, -unit]), torch.cat([hidden, hidden])
    powers = math.frexp(torch.finfo(dtype).max)[1]
    for power in range(powers):
        if not card((unit * 2.0**power).to(dtype), hidden).isfinite().all():
            return 2.0 ** (power - 1) if power else 0.0
    return math.inf


def _of_time(card: Normalizer, repeats: int) -> dict[str, Any]:
    if not repeats:
        return {}
    block = sample_scores(*_TIMED_BLOCK)
    runs = (card.weigh, SOFTMAX.weigh, lambda scores: torch.softmax(scores, -1))
    with torch.inference_mode():
        for run in runs:  # the first run pays for its memory
            run(block)
        seconds = [[_seconds(run, block) for run in runs] for _ in range(repeats)]
    return {
        "time": median(own / usual for own, usual, _ in seconds),
        "time_plain": median(own / plain for own, _, plain in seconds),
    }


def _seconds(run: Callable[[Tensor], Tensor], scores: Float[Tensor, "map query key"]) -> float:
    start = time.process_time()
    run(scores)
    return time.process_time() - start
