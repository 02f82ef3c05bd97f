"""A metric that lives outside the package: how often a head has nothing else to do but to rest on the first token."""

import sys

import sinkscope
from sinkscope.attention import Reductions
from sinkscope.metrics import Metric
from sinkscope.metrics.base import over
from sinkscope.statistics.accumulate import Sums


def resting(reductions: Reductions) -> Sums:
    """Whether a row puts more than 0.9 on the first token: sum and count over the rows that count."""
    on_first = reductions.mass[..., reductions.column("first")]
    return over((on_first > 0.9).to(on_first.dtype), reductions.counted())


RESTING = Metric(
    name="resting",
    function=resting,
    summary="share of rows with more than 0.9 on the first token",
    unit="fraction",
    low=0.0,
    high=1.0,
)

model, tokenizer = sinkscope.load(sys.argv[1] if len(sys.argv) > 1 else None)
report = sinkscope.measure(model, tokenizer, seq_len=128, windows=2, metrics=[RESTING])
strongest = report.heads.sort_values("resting", ascending=False).head(8)
print(strongest[["layer", "head", "resting", "resting_se", "first_share"]].round(3).to_string(index=False))
