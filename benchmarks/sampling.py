"""How often twice the stated sampling error holds the error that `--queries` makes.

    python benchmarks/sampling.py --output benchmarks

Every row of a model is reduced once. Then its queries are sampled under many seeds, by the code that a run uses from
the reductions on, and each sampled figure is compared with that of all rows of the same windows.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import sinkscope
from sinkscope.attention import Question, Reductions
from sinkscope.attention.reductions import OF_KEYS, Population
from sinkscope.report import tables
from sinkscope.runs.record import Layer, Record
from sinkscope.statistics.sampling import Sample, replicates

FIGURES = ("first_share", "first_mass", "first_lift", "entropy", "punctuation_share")
SEEDS = 200
STEP = 64
"""Positions between one sampled query and the next."""

HEAD = """\
# Sampled queries

How often the figure over every row lies within two `_sampling_se` of the sampled one, over {seeds} seeds, with one
query in {step}. "mean" is the summary's figure, the mean over heads; "heads" are all single heads together. "rms" is
the root mean square error ÷ the stated error. SmolLM2-135M-Instruct reads the built-in text; the GPT-2 has random
weights and reads random tokens, as in the tests.

The error of one window comes from eight replicates, with 8 queries of one row each. A figure that a window's first few
rows decide (the first token's share under attention that is nearly even, 1/n) is skewed: most samples miss these rows,
and replicates do not tell of them. What masks tell of them is in the error, which is then rather too large.

"""


@dataclass
class Full:
    """The reductions of every row, all layers one behind the other on the head axis, window by window."""

    reductions: Reductions
    metrics: tuple[Any, ...]
    length: int


@contextmanager
def captured(kept: list[Reductions], metrics: list[Any]) -> Iterator[None]:
    """Keep what every call was reduced to."""
    original = Record.add

    def add(record: Record, layer: Layer, windows: Any, reductions: Reductions) -> None:
        kept.append(reductions)
        metrics[:] = record.metrics
        original(record, layer, windows, reductions)

    Record.add = add  # type: ignore[method-assign]
    try:
        yield
    finally:
        Record.add = original  # type: ignore[method-assign]


def full(length: int, **given: Any) -> Full:
    """Reduce every row of all windows, each in a batch of its own."""
    kept: list[Reductions] = []
    metrics: list[Any] = []
    with captured(kept, metrics):
        report = sinkscope.measure(**given, only=["entropy"], batch_size=1)
    windows = int(report.summary["windows"][0])
    calls = len(kept) // windows
    parts = [_side_by_side(kept[window * calls : (window + 1) * calls]) for window in range(windows)]
    return Full(_below(parts), tuple(metrics), length)


def _side_by_side(calls: list[Reductions]) -> Reductions:
    """The heads of all layers of one window as those of one layer."""
    one = {each.name: getattr(calls[0], each.name) for each in fields(Reductions)}
    for name, value in one.items():
        if isinstance(value, Tensor) and name not in {"keys", "seen"}:
            one[name] = torch.cat([getattr(call, name) for call in calls], dim=1)
    return Reductions(**one)


def _below(windows: list[Reductions]) -> Reductions:
    """Windows as one batch."""
    questions = [each.question for each in windows]
    question = replace(
        questions[0],
        keep=torch.cat([each.keep for each in questions]),
        rows=torch.cat([each.rows for each in questions]),
        marked={name: torch.cat([each.marked[name] for each in questions]) for name in questions[0].marked},
    )
    return _mapped(windows[0], question, lambda name, _: torch.cat([getattr(each, name) for each in windows]))


def _mapped(found: Reductions, question: Question, change: Any, population: Population | None = None) -> Reductions:
    values = {each.name: getattr(found, each.name) for each in fields(Reductions)}
    changed = {name: change(name, value) if isinstance(value, Tensor) else value for name, value in values.items()}
    return Reductions(**changed | {"question": question, "population": population})


def sampled(whole: Full, windows: int, sample: Sample | None) -> Record:
    """The record of the first windows, of all their rows or of a sample."""
    question = whole.reductions.question
    question = replace(
        question,
        keep=question.keep[:windows],
        rows=question.rows[:windows],
        marked={name: each[:windows] for name, each in question.marked.items()},
    )
    some = _mapped(whole.reductions, question, lambda _, value: value[:windows])
    record = Record.start("softmax", windows, whole.length, whole.metrics)
    if sample is not None:
        at = sample.positions(whole.length, range(windows))
        known = Population.of(question, some.keys, some.seen)
        record.parts = replicates(sample.count)
        batch = torch.arange(windows)[:, None]

        def chosen(name: str, value: Tensor) -> Tensor:
            return value if name in OF_KEYS else value.movedim(2, 1)[batch, at].movedim(1, 2)

        some = _mapped(some, replace(question, positions=at), chosen, known)
    heads = some.mass.shape[1]
    record.add(Layer("all", 0, 0, None, None, heads, learned_sink=False, path="dense"), range(windows), some)
    return record


def coverage(whole: Full, windows: int, seeds: int) -> dict[str, tuple[float, float, float]]:
    """For each figure how often its mean, and how often its heads are within two errors; and the rms of the mean's."""
    sheet = tables.Sheet(tuple(whole.reductions.question.marked))
    truth = [table(sampled(whole, windows, None), sheet) for table in (tables.layers, tables.heads)]
    made: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in FIGURES}
    for seed in range(seeds):
        record = sampled(whole, windows, Sample(whole.length // STEP, seed))
        told = [table(record, sheet) for table in (tables.layers, tables.heads)]
        for name in FIGURES if f"{FIGURES[-1]}" in told[0] else FIGURES[:-1]:
            pairs = [
                torch.tensor((ours[[name, f"{name}_sampling_se"]].to_numpy() - _truth(true[name])).copy())
                for ours, true in zip(told, truth, strict=True)
            ]
            made[name].append((pairs[0], pairs[1]))
    return {name: _score(found) for name, found in made.items() if found}


def _truth(column: Any) -> Any:
    """The figure over all rows, and 0 for the error's own column."""
    values = torch.tensor(column.to_numpy())
    return torch.stack([values, torch.zeros_like(values)], dim=1).numpy()


def _score(found: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
    mean, heads = (torch.stack([each[side] for each in found]) for side in (0, 1))
    held = [(each[..., 0].abs() <= 2 * each[..., 1] + 1e-12).double().mean() for each in (mean, heads)]
    rms = (mean[..., 0].square().mean() / mean[..., 1].square().mean()).sqrt()
    return float(held[0]), float(held[1]), float(rms)


def gpt2(windows: int, length: int) -> dict[str, Any]:
    """A GPT-2 with random weights, far from uniform, and random tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {
            "vocab_size": 300,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": length,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes)).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(2 if "wte" in name else 4)
        return {"model": model, "input_ids": torch.randint(3, 300, (windows, length))}


def cases() -> Iterator[tuple[str, Full, tuple[int, ...]]]:
    """The models, each with its windows."""
    model, tokenizer = sinkscope.load()
    for length, count, windows in ((512, 16, (1, 4, 16)), (2048, 4, (1, 4))):
        given = {"model": model, "tokenizer": tokenizer, "seq_len": length, "windows": count}
        yield "SmolLM2", full(length, **given), windows
    yield "tiny GPT-2", full(512, **gpt2(64, 512)), (1, 4, 16, 64)


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="the folder that gets sampling.md")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    torch.set_grad_enabled(False)
    lines = [
        "| model | windows | queries of each | figure | mean | heads | rms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, whole, counts in cases():
        for windows in counts:
            of = f"{whole.length // STEP} of {whole.length:,}"
            for figure, (mean, heads, rms) in coverage(whole, windows, asked.seeds).items():
                lines.append(f"| {name} | {windows} | {of} | `{figure}` | {mean:.1%} | {heads:.1%} | {rms:.2f} |")
                print(lines[-1], flush=True)
    page = HEAD.format(seeds=asked.seeds, step=STEP) + "\n".join(lines) + "\n"
    if asked.output:
        (asked.output / "sampling.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
