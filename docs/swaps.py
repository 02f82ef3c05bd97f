"""Writes swaps.md and swaps.csv: every normalizer in place of softmax, on the embedded model and the built-in text."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import sinkscope
from sinkscope.report.opening import first_token
from sinkscope.report.readings import readings
from sinkscope.report.verdict import percent

HERE = Path(__file__).parent

INTRODUCTION = """\
# What happens when softmax goes

Every normalizer of the catalog, with its default settings, in place of softmax in all layers of a model that was
trained with softmax, without any further training. It says what the swap does to this model on this text, and nothing
about a model that would have been trained with another normalizer.

This page and [swaps.csv](swaps.csv), which holds all figures with their standard errors, are written by `make swaps`.
Formulas, settings and sources: [normalizers.md](normalizers.md). With their default settings `softmax_n` and
`sink_logit` are `softmax1`, and `softmax (identity)` is the baseline once more: rows that have to agree.
"""

SHARE_AND_MASS = """\
## The sinks, in shares and in raw mass

Where rows no longer add up to 1, the raw mass on the first token falls or rises with the row. The share of the row is
what tells whether it is still the sink. *rate* is the share of heads above {epsilon:g}, by shares and by raw mass.
"""


def main() -> None:
    """Measure, and write both files."""
    model, tokenizer = sinkscope.load()
    report = sinkscope.compare(model, tokenizer, normalizers=list(sinkscope.NORMALIZERS), progress=tell)
    report.summary.to_csv(HERE / "swaps.csv", index=False, lineterminator="\n")
    (HERE / "swaps.md").write_text("\n".join(page(report)), encoding="utf-8")


def tell(stage: str, done: int, total: int | None) -> None:
    """Say on stderr how far it is."""
    sys.stderr.write(f"{stage} {done} of {total}\n")


def page(report: sinkscope.Report) -> Iterator[str]:
    """The page, a block at a time."""
    rows, baseline = report.summary, report.summary.iloc[0]
    versions = report.metadata["versions"]
    yield INTRODUCTION
    yield (
        f"{report.metadata['model']['architecture']} (SmolLM2-135M-Instruct, embedded), float32, "
        f"{baseline['windows']} windows of {report.metadata['text']['seq_len']} tokens.\n"
        f"{first_token(report.first(), ascii_only=False)}\n"
        f"Measured with torch {versions['torch']}, transformers {versions['transformers']}. "
        "Our own softmax in place of the model's\n"
        f"changes its output by {report.metadata['comparison']['identity_delta']:.0e} of the largest.\n"
    )
    yield "## The model\n"
    yield from table(
        rows,
        {
            "perplexity": lambda row: number(row["perplexity"], 2),
            "change in nll": lambda row: change(row, "nll"),
            "KL": lambda row: number(row["kl_to_baseline"], 3),
            "top-1": lambda row: number(row["top1_agreement"], 3),
            "entropy": lambda row: number(row["entropy"], 3),
            "exact zeros": lambda row: number(row["exact_zeros"], 3),
        },
    )
    yield SHARE_AND_MASS.format(epsilon=baseline["epsilon"])
    yield from table(
        rows,
        {
            "row mass": lambda row: number(row["row_mass"], 3),
            "first, share": lambda row: number(row["first_share"], 3),
            "first, raw": lambda row: number(row["first_mass"], 3),
            "initial, share": lambda row: number(row["initial_share"], 3),
            "initial, raw": lambda row: number(row["initial_mass"], 3),
            "punctuation, share": lambda row: number(row["punctuation_share"], 3),
            "punctuation, raw": lambda row: number(row["punctuation_mass"], 3),
            "rate, share": lambda row: number(row["sink_rate"], 3),
            "rate, raw": lambda row: number(row["sink_rate_raw"], 3),
        },
    )
    yield from survivors(rows)
    yield "## In words\n"
    yield from (f"* `{name}`: {sentence}" for name, sentence in readings(report).items())
    yield ""


def survivors(rows: pd.DataFrame) -> Iterator[str]:
    """Which sinks are still there, by the share of heads above the threshold."""
    before, after = rows.iloc[0], rows.iloc[1:]
    yield "## Which sinks survived\n"
    yield (
        f"Before, {percent(before['sink_rate'])} of the heads are sinks. Ordered by what is left of that share, with "
        "what raw mass alone would have said:\n"
    )
    for _, row in after.sort_values("sink_rate", ascending=False).iterrows():
        kept = percent(row["sink_rate"] / before["sink_rate"], 0)
        raw = percent(row["sink_rate_raw"] / before["sink_rate"], 0)
        broken = " (the model is broken)" if row["perplexity"] > 20 * before["perplexity"] else ""
        yield f"* `{row['normalizer']}`{broken}: {kept} by share, {raw} by raw mass"
    yield ""


def table(rows: pd.DataFrame, columns: dict) -> Iterator[str]:
    """A Markdown table, one row a normalizer."""
    yield "| normalizer | " + " | ".join(columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    for _, row in rows.iterrows():
        yield f"| `{row['normalizer']}` | " + " | ".join(cell(row) for cell in columns.values()) + " |"
    yield ""


def change(row: pd.Series, name: str) -> str:
    """A change with its paired standard error."""
    if pd.isna(row[f"{name}_delta"]):
        return "–"
    return f"{row[f'{name}_delta']:+.3f} ± {row[f'{name}_delta_se']:.3f}"


def number(value: float, digits: int) -> str:
    """A number with so many digits, or in powers of ten where they would say nothing."""
    if pd.isna(value):
        return "–"
    return f"{value:.1e}" if abs(value) >= 1e5 else f"{value:,.{digits}f}"


if __name__ == "__main__":
    main()
