"""Whether a head does anything: the scores by which papers call heads dormant, inactive or dead, under their names.

All but `dead_rows` are means over windows of what the window gives. The twelve scores of 2504.03889 are those of its
code, which takes values and outputs before the output projection, and every token of the window, the first included.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Reductions
from sinkscope.metrics.base import Metric, over
from sinkscope.metrics.vectors import first_by_others
from sinkscope.statistics.accumulate import Sums

DEAD = 1e-6
"""A head's output is dead where no entry reaches this."""


def awft(reductions: Reductions) -> Sums:
    """Average weight of the first token: A_i0 over all rows i, row 0 included; 0 in a row that cannot see it."""
    return _mean(reductions.mass[..., reductions.column("first")], _rows(reductions))


def aeqd(reductions: Reductions) -> Sums:
    """Average entropy of the query distributions, in nats; rows of zeros have none."""
    return _mean(_known(reductions, "entropy"), _rows(reductions) & reductions.weighing())


def ftvvn(reductions: Reductions) -> Sums:
    """First token's value vector norm."""
    return _mean(_known(reductions, "value_norm"), reductions.question.marked["first"][:, None])


def avvn(reductions: Reductions) -> Sums:
    """Average value vector norm."""
    return _mean(_known(reductions, "value_norm"), reductions.question.keep[:, None])


def lthon(reductions: Reductions) -> Sums:
    """Last token's head output norm; undefined where queries are sampled and the last is not among them."""
    return _mean(_known(reductions, "output_norm"), _rows(reductions) & reductions.question.last[:, None])


def ahon(reductions: Reductions) -> Sums:
    """Average head output norm."""
    return _mean(_known(reductions, "output_norm"), _rows(reductions))


def full_head_output(reductions: Reductions) -> Sums:
    """Average norm of the head's output through its slice of the output projection."""
    return _mean(_known(reductions, "projected_norm"), _rows(reductions))


def value_drain(reductions: Reductions) -> Sums:
    """‖W_O·v‖ of the first token ÷ the mean of the window's other tokens."""
    return first_by_others(_known(reductions, "value_drain"), reductions.question)


def dead_rows(reductions: Reductions) -> Sums:
    """The share of rows whose output has no entry of DEAD or more."""
    largest = _known(reductions, "output_largest")
    # A row that is no number stays one.
    return over(torch.where(largest.isnan(), largest, (largest < DEAD).to(largest.dtype)), reductions.counted())


def _known(reductions: Reductions, name: str) -> Tensor:
    found: Tensor | None = getattr(reductions, name)
    if found is None:
        raise ValueError(f"expected reductions with {name}, got none")
    return found


def _rows(reductions: Reductions) -> Bool[Tensor, "batch #head query"]:
    """Every real row that sees a key, the first one included."""
    return reductions.question.kept[:, None] & reductions.seeing()


def _mean(values: Float[Tensor, "batch head place"], counted: Bool[Tensor, "batch #head place"]) -> Sums:
    """The window's own mean, once for each window that has one."""
    total, count = over(values, counted)
    defined = count > 0
    return total / count.clamp(min=1), defined.to(total.dtype)


def _by_layer(score: Callable[[Reductions], Sums], level: Callable[[Reductions], Sums]) -> Callable[[Reductions], Sums]:
    """A score ÷ the mean of `level` over the layer's heads, in the same window."""

    def normalised(reductions: Reductions) -> Sums:
        (own, defined), (others, counted) = score(reductions), level(reductions)
        mean = others.sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1)
        possible = defined.bool() & (mean != 0)
        return torch.where(possible, own / mean.masked_fill(mean == 0, 1), 0), possible.to(own.dtype)

    return normalised


def _both(card: Metric, level: Callable[[Reductions], Sums] | None = None) -> tuple[Metric, Metric]:
    """A score, and its form relative to the layer, which the paper calls LN."""
    of = "its mean" if level is None else "the mean ahon"
    return card, replace(
        card,
        name=f"{card.name}_ln",
        function=_by_layer(card.function, level or card.function),
        summary=f"{card.name} ÷ {of} over the heads of the layer, in each window (2504.03889, LN)",
        unit="ratio",
        high=None,
    )


SCORES: tuple[Metric, ...] = (
    *_both(
        Metric(
            name="awft",
            function=awft,
            summary="mean weight of the first token over all rows, row 0 included (2504.03889, AWFT)",
            unit="weight",
            optional=True,
        )
    ),
    *_both(
        Metric(
            name="aeqd",
            function=aeqd,
            summary="mean entropy of |w| normalised over all rows, row 0 included (2504.03889, AEQD)",
            unit="nats",
            low=0.0,
            needs=frozenset({"entropy"}),
            optional=True,
        )
    ),
    *_both(
        Metric(
            name="ftvvn",
            function=ftvvn,
            summary="‖v‖ of the first token, before the output projection (2504.03889, FTVVN)",
            unit="activation",
            low=0.0,
            needs=frozenset({"value_norm"}),
            optional=True,
        )
    ),
    *_both(
        Metric(
            name="avvn",
            function=avvn,
            summary="mean ‖v‖ over all tokens, the first included, before the output projection (2504.03889, AVVN)",
            unit="activation",
            low=0.0,
            needs=frozenset({"value_norm"}),
            optional=True,
        )
    ),
    *_both(
        Metric(
            name="lthon",
            function=lthon,
            summary="‖Σwv‖ of the window's last token, before the output projection (2504.03889, LTHON)",
            unit="activation",
            low=0.0,
            needs=frozenset({"output_norm"}),
            optional=True,
        ),
        ahon,
    ),
    *_both(
        Metric(
            name="ahon",
            function=ahon,
            summary="mean ‖Σwv‖ over all rows, row 0 included, before the output projection (2504.03889, AHON)",
            unit="activation",
            low=0.0,
            needs=frozenset({"output_norm"}),
            optional=True,
        )
    ),
    *_both(
        Metric(
            name="full_head_output",
            function=full_head_output,
            summary="mean ‖W_O·Σwv‖ over all rows, row 0 included, with the head's slice W_O of the output projection "
            "(2504.03889's code, FullHeadOutput)",
            unit="activation",
            low=0.0,
            needs=frozenset({"projected_norm"}),
            optional=True,
        )
    ),
    Metric(
        name="value_drain",
        function=value_drain,
        summary="‖W_O·v‖ of the first token ÷ mean ‖W_O·v‖ of the others, none trimmed (2410.13835 plots each token's)",
        unit="ratio",
        low=0.0,
        needs=frozenset({"value_drain"}),
        optional=True,
    ),
    Metric(
        name="dead_rows",
        function=dead_rows,
        summary="share of rows with max|Σwv| < 1e-6; at 0.95 and more 2504.20966 calls the head dead",
        unit="fraction",
        low=0.0,
        high=1.0,
        needs=frozenset({"output_largest"}),
        optional=True,
        by_row=True,
    ),
)
"""Every score by its card."""
