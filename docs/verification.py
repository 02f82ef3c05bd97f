"""Writes verification.md and verification.csv: published figures beside what sinkscope gives on models at hand.

Models are the embedded one and those named as arguments, such as a Gemma 3 270M in a .gguf file.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import sinkscope
from sinkscope.protocols import PROTOCOLS
from sinkscope.report.verdict import first_token

HERE = Path(__file__).parent

INTRODUCTION = """\
# Verification

What papers have published, and what sinkscope gives by the same protocols on the models that were at hand. Neither the
models nor the texts of the papers were, so no row of the one can be held against a row of the other; what can be held
against something is the code: each protocol against a plain reading of its paper on full attention maps and against
cases worked out by hand (`tests/protocols/test_protocols.py`), attention against transformers' eager attention for
every type of model ([architectures.md](architectures.md)). For every published row there is the command that measures
it elsewhere.

This page and [verification.csv](verification.csv), with standard errors, are written by `make verification`.
"""

PROTOCOL_TABLE = """\
## The same model and text by every protocol

Figures ± their standard error over samples, on the built-in text, with as many samples as it gives.
[protocols.md](protocols.md) says what each is.
"""

INPUTS = """\
## Natural, random and repeated tokens

`gu2025` on three kinds of input, 100 samples each where the text gives so many; random and repeated tokens stand
without BOS. In a model with rotary positions, a token that is repeated then has the same state everywhere, so that
attention is even and there is no sink.
"""

MASSIVE = """\
## Massive activations and kurtosis

The largest entry of any layer's output over four windows of 512 tokens of the built-in text, the layers with entries
above 100 and 1,000 times the median (Sun et al.), and the kurtosis of all entries together (Zuhri et al.).
"""

PUBLISHED = """\
## Published figures, and the commands for them

None of these could be run here: the weights were out of reach. *sinkscope* commands follow the paper's protocol; where
the paper's text is not public, TEXT stands for a file of natural texts, and a few points of difference are to be
expected.
"""


class Published(NamedTuple):
    """A figure as its paper has it, and how it would be measured."""

    model: str
    figure: str
    value: str
    source: str
    command: str


def published() -> Iterator[Published]:
    """Every figure that a protocol of ours has in its paper, as far as the paper's text was read."""
    yield from _gu("openai-community/gpt2-xl", "GPT2-XL", ("77.00", "70.29", "62.28"))
    yield from _gu("mistralai/Mistral-7B-v0.1", "Mistral-7B", ("97.49", "75.21", "0.00"))
    yield from _gu("meta-llama/Llama-2-7b", "LLaMA2-7B", ("92.47", "90.13", "0.00"))
    yield from _gu("meta-llama/Meta-Llama-3-8B", "LLaMA3-8B", ("99.02", "91.23", "0.00"))
    yield from _softpick("vanilla", ("68.28 / 63.41 %", "33510.81", "-207.55 / 240.27", "4.53 %"))
    yield from _softpick("softpick", ("0 / 0 %", "340.96", "-45.03 / 36.21", "99.34 %"))
    for size, value in (("8B", "45.97"), ("70B", "73.49"), ("405B", "78.29")):
        model = f"meta-llama/Llama-3.1-{size} --dtype bfloat16 --device-map auto"
        command = f"sinkscope measure {model} --protocol barbero2025 --text TEXT"
        yield Published(f"LLaMA-3.1 {size}", "barbero2025_sink_rate", f"{value} %", "Barbero et al., Table 1", command)
    llama = "sinkscope measure meta-llama/Llama-2-7b --dtype float16"
    streaming = "over 1/2 in all but the two bottom layers"
    command = f"{llama} --protocol streamingllm2024 --text TEXT -o layers.csv"
    yield Published("Llama-2-7B", "streamingllm2024_mass by layer", streaming, "Xiao et al., Figure 12", command)
    massive = "over 2,000 from layer 2 to 30, in dimensions 1415 and 2533; median about 0.2"
    command = f"{llama} --bos never --seq-len 2048 --text TEXT -o activations.csv -o massive.csv"
    yield Published("LLaMA2-7B", "max_activation, median_activation", massive, "Sun et al., Section 2", command)
    command = "sinkscope measure openai-community/gpt2-large --seq-len 1024 --windows all --text wikitext-2-test.txt"
    yield Published("GPT-2-large", "perplexity", "19.44", "transformers' documentation, stride 1,024", command)


def _gu(model: str, name: str, values: tuple[str, str, str]) -> Iterator[Published]:
    inputs = ("--text TEXT", "--synthetic random", "--synthetic repeat")
    for kind, value, given in zip(("natural", "random", "repeated"), values, inputs, strict=True):
        command = f"sinkscope measure {model} --protocol gu2025 {given}"
        yield Published(name, f"gu2025_sink_rate, {kind}", f"{value} %", "Gu et al., Table 1", command)


def _softpick(name: str, values: tuple[str, str, str, str]) -> Iterator[Published]:
    figures = (
        "softpick2025_sink_rate_02 / softpick2025_sink_rate",
        "kurt_global",
        "activation_min / activation_max",
        "softpick2025_sparsity",
    )
    model = f"zaydzuhri/{name}-340M-4096-model --trust-remote-code"
    command = f"sinkscope measure {model} --protocol softpick2025 --dataset Phando/SlimPajama-val-sampled:test"
    for figure, value in zip(figures, values, strict=True):
        yield Published(f"{name} 340M", figure, value, "Zuhri et al. v4, Table 2", command)


def main() -> None:
    """Measure every model, and write both files."""
    found = [measured(name) for name in [None, *sys.argv[1:]]]
    table = pd.concat([each.table for each in found], ignore_index=True)
    table.to_csv(HERE / "verification.csv", index=False, lineterminator="\n")
    (HERE / "verification.md").write_text("\n".join(page(found)), encoding="utf-8")


class Measured(NamedTuple):
    """What one model gave."""

    name: str
    token: str
    everything: sinkscope.Report
    inputs: dict[str, sinkscope.Report]
    plain: sinkscope.Report

    @property
    def table(self) -> pd.DataFrame:
        """Every figure by its input, below each other."""
        parts = [self.everything.protocols.assign(input="natural")]
        parts += [each.protocols.assign(input=kind) for kind, each in self.inputs.items() if kind != "natural"]
        return pd.concat(parts, ignore_index=True).assign(model=self.name)


def measured(given: str | None) -> Measured:
    """One model by every protocol on the built-in text, and by gu2025 on synthetic tokens."""
    loaded = sinkscope.load(given)
    name = str(loaded.origin["name"]).removesuffix(" (embedded)")
    how: dict[str, Any] = {"progress": tell, "origin": loaded.origin}
    everything = sinkscope.measure(*loaded, protocol="all", windows="all", **how)
    inputs = {"natural": everything.by("gu2025")}
    for kind in ("random", "repeat"):
        inputs[kind] = sinkscope.measure(*loaded, protocol="gu2025", synthetic=kind, only=(), **how)
    plain = sinkscope.measure(*loaded, **how)
    return Measured(name, first_token(plain, ascii_only=False), everything, inputs, plain)


def tell(stage: str, done: int, total: int | None) -> None:
    """Say on stderr how far it is."""
    sys.stderr.write(f"{stage} {done} of {total}\n")


def page(found: list[Measured]) -> Iterator[str]:
    """The page, a block at a time."""
    versions = found[0].plain.metadata["versions"]
    yield INTRODUCTION
    yield f"Measured in float32 with torch {versions['torch']}, transformers {versions['transformers']}.\n"
    yield PROTOCOL_TABLE
    for each in found:
        yield f"**{each.name}.** {each.token}\n"
    yield from rows(["figure", "ε", "tokens", *(f"{each.name} | samples" for each in found)], _by_figure(found))
    for each in found:
        for name, reason in each.everything.metadata.get("not_followed", {}).items():
            yield f"{each.name} by {name}: {reason}.\n"
    yield INPUTS
    yield from rows(["model", "natural", "random", "repeated"], ([each.name, *_inputs(each)] for each in found))
    yield MASSIVE
    yield from rows(["model", "largest", "where", "÷ median", "massive layers", "kurt_global"], map(_massive, found))
    yield PUBLISHED
    lines = ([each.model, f"`{each.figure}`", each.value, each.source, f"`{each.command}`"] for each in published())
    yield from rows(["model", "figure", "published", "source", "command"], lines)


def _by_figure(found: list[Measured]) -> Iterator[list[str]]:
    """A row for each figure of each protocol, two columns for each model."""
    tables = [each.everything.protocols.set_index("figure") for each in found]
    for card in PROTOCOLS.values():
        for figure in card.figures:
            cells = [cell for table in tables for cell in _cells(table, figure)]
            threshold = card.thresholds.get(figure)
            yield [f"`{figure}`", "–" if threshold is None else f"{threshold:g}", f"{card.seq_len:,}", *cells]


def _cells(table: pd.DataFrame, figure: str) -> list[str]:
    if figure not in table.index:
        return ["–", "–"]
    row = table.loc[figure]
    paper = row["paper_windows"]
    whole = "" if pd.isna(paper) or paper == row["windows"] else f" of {paper:,.0f}"
    return [value(row), f"{row['windows']:,}{whole}"]


def _inputs(each: Measured) -> Iterator[str]:
    for report in each.inputs.values():
        yield value(report.protocols.set_index("figure").loc["gu2025_sink_rate"])


def value(row: pd.Series) -> str:
    """A figure with its error over samples, where it has one."""
    error = "" if pd.isna(row["value_se"]) else f" ± {row['value_se']:.3f}"
    return f"{row['value']:.3f}{error}"


def _massive(each: Measured) -> list[str]:
    table = each.plain.massive
    top = table.loc[table["value"].abs().idxmax()]
    layers = table[table["massive"]]["layer"].unique()
    where = f"layer {top['layer']}, dimension {top['dimension']}, position {top['position']}"
    run = f"{min(layers)} to {max(layers)}" if len(layers) else "none"
    return [
        each.name,
        f"{top['value']:,.1f}",
        where,
        f"{top['ratio']:,.0f}",
        run,
        f"{each.plain.summary['kurt_global'][0]:,.0f}",
    ]


def rows(header: list[str], lines: Iterable[list[str]]) -> Iterator[str]:
    """A table, and an empty line behind it."""
    names = " | ".join(header)
    yield f"| {names} |"
    yield "|" + " --- |" * len(names.split(" | "))
    yield from ("| " + " | ".join(line) + " |" for line in lines)
    yield ""


if __name__ == "__main__":
    main()
