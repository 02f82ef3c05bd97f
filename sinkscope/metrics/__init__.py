"""Reductions to a number per head: the list of everything that is measured.

To add a metric, write a function from reductions to (sum, count) in the file of its kind and list its card here.
"""

from sinkscope.catalog import Catalog
from sinkscope.metrics import mass, shape, vectors
from sinkscope.metrics.base import Metric

__all__ = ["METRICS", "Metric"]

METRICS: Catalog[Metric] = Catalog(
    "metric",
    [
        Metric(
            name="mass",
            function=mass.mass,
            summary="mean signed weight on the class, over the rows that can see a key of it",
            unit="weight",
            per_class=True,
        ),
        Metric(
            name="share",
            function=mass.share,
            summary="mean of Σ|w| on the class ÷ Σ|w| of the row (a learned sink included below)",
            unit="fraction",
            low=0.0,
            high=1.0,
            per_class=True,
        ),
        Metric(
            name="lift",
            function=mass.lift,
            summary="mean share ÷ mean frequency of the class among the visible keys, over the same rows",
            unit="ratio",
            low=0.0,
            per_class=True,
        ),
        Metric(
            name="row_mass",
            function=mass.row_mass,
            summary="mean of Σw over the real keys of a row",
            unit="weight",
        ),
        Metric(
            name="sink_logit_mass",
            function=mass.sink_logit_mass,
            summary="mean weight of the layer's learned sink, where it has one",
            unit="weight",
        ),
        Metric(
            name="zero_rows",
            function=mass.zero_rows,
            summary="share of rows whose every weight is 0; they have no shares, entropy or support",
            unit="fraction",
            low=0.0,
            high=1.0,
        ),
        Metric(
            name="sink_rate",
            function=mass.sink_rate,
            summary="share of windows in which the first token's mean share exceeds ε",
            unit="fraction",
            low=0.0,
            high=1.0,
        ),
        Metric(
            name="sink_rate_raw",
            function=mass.sink_rate_raw,
            summary="share of windows in which the first token's mean mass exceeds ε",
            unit="fraction",
            low=0.0,
            high=1.0,
        ),
        Metric(
            name="entropy",
            function=shape.entropy,
            summary="mean entropy of |w| normalised over the real keys of a row",
            unit="nats",
            low=0.0,
            needs=frozenset({"entropy", "squares"}),
        ),
        Metric(
            name="entropy_normalised",
            function=shape.entropy_normalised,
            summary="mean of entropy ÷ ln n over the rows that see n ≥ 2 keys",
            unit="fraction",
            low=0.0,
            high=1.0,
            needs=frozenset({"entropy", "squares"}),
        ),
        Metric(
            name="effective_support",
            function=shape.effective_support,
            summary="mean of 1 ÷ Σp² with p = |w| ÷ Σ|w| over the real keys",
            unit="keys",
            low=1.0,
            needs=frozenset({"squares"}),
        ),
        Metric(
            name="frobenius",
            function=shape.frobenius,
            summary="mean over windows of √ΣΣw², query 0 included",
            unit="weight",
            low=0.0,
            needs=frozenset({"squares"}),
        ),
        Metric(
            name="exact_zeros",
            function=shape.exact_zeros,
            summary="share of visible entries whose weight is exactly 0",
            unit="fraction",
            low=0.0,
            high=1.0,
            needs=frozenset({"zeros"}),
        ),
        Metric(
            name="lse",
            function=shape.lse,
            summary="mean log-sum-exp of the scores; softmax1 multiplies a row of softmax by its sigmoid",
            unit="nats",
            needs=frozenset({"lse"}),
            optional=True,
        ),
        Metric(
            name="degenerate_rows",
            function=shape.degenerate_rows,
            summary="share of rows whose denominator vanishes or is negative, for normalizers where that can be",
            unit="fraction",
            low=0.0,
            high=1.0,
            needs=frozenset({"degenerate"}),
            optional=True,
        ),
        Metric(
            name="value_norm_ratio",
            function=vectors.value_norm_ratio,
            summary="‖v‖ of the first token ÷ mean ‖v‖ of the others, mean over windows",
            unit="ratio",
            low=0.0,
            needs=frozenset({"value_norm"}),
        ),
        Metric(
            name="output_norm",
            function=vectors.output_norm,
            summary="mean over rows of ‖Σwv‖, the head's output before the output projection",
            unit="activation",
            low=0.0,
            needs=frozenset({"output_norm"}),
        ),
    ],
)
