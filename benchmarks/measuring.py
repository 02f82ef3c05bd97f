"""What measuring costs beside not measuring, and beside keeping attention maps: ratios within one run.

    python benchmarks/measuring.py --lengths 512 2048 --repeats 5 --output benchmarks/measuring.md

The embedded model in fp32, one window of the built-in text. Repeats are interleaved and medians are taken, so that a
busy machine slows every row alike. A row whose first-token masses are more than 1e-4 from ours is void.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

import sinkscope
from sinkscope import corpus
from sinkscope.predictions import losses, predict
from sinkscope.study import Options, Swaps, compare_windows, measure_windows

HEAD = """\
One window of the built-in text through SmolLM2-135M. Everything that sinkscope reports, perplexity included, beside a
plain forward and beside ways that keep or build attention maps and reduce them to one figure, the first token's mass.
Medians of interleaved repeats, each divided by the plain forwards of the same repeat.
"""

Masses = torch.Tensor | None
CLOSE = 1e-4


class Bench:
    """One window of the embedded model, and the ways to go through it."""

    def __init__(self, length: int) -> None:
        self.model, self.tokenizer = sinkscope.load()
        self.windows = corpus.windows(self.tokenizer, corpus.read_documents([]), seq_len=length, count=1)
        self.ids, self.keep = self.windows.ids, self.windows.keep

    @torch.no_grad()
    def plain(self) -> Masses:
        """A forward with the logits of one token."""
        self.model(self.ids, use_cache=False, logits_to_keep=1)
        return None

    def scored(self) -> Masses:
        """A forward with the loss of every token, logits in chunks."""
        losses(predict(self.model, self.ids, self.keep, chunked=True), self.ids, self.keep)
        return None

    def measured(self) -> Masses:
        """Everything that `sinkscope measure` reports, perplexity included."""
        return self._masses(measure_windows(self.model, self.tokenizer, self.windows, Options()))

    def measured_dense(self) -> Masses:
        """The same by the plain path."""
        return self._masses(measure_windows(self.model, self.tokenizer, self.windows, Options(attention="dense")))

    def _masses(self, report: sinkscope.Report) -> Masses:
        return torch.tensor(report.first().heads["first_mass"].to_numpy())

    @torch.no_grad()
    def maps(self) -> Masses:
        """output_attentions=True under eager attention, reduced afterwards to the first token's mass."""
        self.model.set_attn_implementation("eager")
        found = self.model(self.ids, use_cache=False, logits_to_keep=1, output_attentions=True).attentions
        self.model.set_attn_implementation("sdpa")
        return torch.cat([each[0, :, 1:, 0].mean(-1) for each in found])

    @torch.no_grad()
    def hooks(self) -> Masses:
        """Forward hooks on eager attention that reduce each layer's map and drop it."""
        found = []

        def reduce(_module: object, _args: object, output: tuple) -> tuple:
            found.append(output[1][0, :, 1:, 0].mean(-1))
            return (output[0], None)

        handles = [layer.self_attn.register_forward_hook(reduce) for layer in self.model.model.layers]
        self.model.set_attn_implementation("eager")
        self.model(self.ids, use_cache=False, logits_to_keep=1)
        self.model.set_attn_implementation("sdpa")
        for handle in handles:
            handle.remove()
        return torch.cat(found)

    def patched(self, normalizer: str) -> Masses:
        """`sinkscope patch` with one normalizer: baseline, identity check and contender."""
        swaps = Swaps(normalizers=[normalizer])
        compare_windows(self.model, self.tokenizer, self.windows, swaps, Options())
        return None

    def ways(self) -> dict[str, Callable[[], Masses]]:
        """Every row by its name; the first two are what the others are divided by."""
        return {
            "plain forward, one token's logits": self.plain,
            "plain forward, loss of every token": self.scored,
            "sinkscope, all metrics": self.measured,
            "sinkscope, all metrics, dense path": self.measured_dense,
            "output_attentions, first-token mass": self.maps,
            "hooks on eager, first-token mass": self.hooks,
            "sinkscope patch softmax1 (two measured runs)": lambda: self.patched("softmax1"),
        }


def table(length: int, repeats: int) -> list[str]:
    """The rows for one length."""
    bench = Bench(length)
    ways = bench.ways()
    ours = bench.measured()
    masses = {name: way() for name, way in ways.items()}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            start, used = time.perf_counter(), time.process_time()
            way()
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - used)
    plain, scored = list(ways)[:2]
    lines = []
    for name in ways:
        first, second = (_ratio(wall[name], wall[of]) for of in (plain, scored))
        mass = masses[name]
        off = None if mass is None or ours is None else float((mass - ours).abs().max())
        void = " (void)" if off is not None and off > CLOSE else ""
        shown = "–" if off is None else f"{off:.0e}{void}"
        lines.append(
            f"| {length:,} | {name} | {first:.2f} | {second:.2f} | {statistics.median(cpu[name]):.1f} | {shown} |"
        )
    return lines


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    """Run the benchmark and print or write its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    lines = [
        "| tokens | what | ÷ plain | ÷ with loss | CPU s | off by |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for length in asked.lengths:
        lines += table(length, asked.repeats)
    threads, versions = torch.get_num_threads(), f"torch {torch.__version__}, transformers {transformers.__version__}"
    setting = f"SmolLM2-135M-Instruct, fp32, {threads} threads, {platform.machine()}, {versions}"
    lines += ["", f"{setting}; medians of {asked.repeats}."]
    text = "\n".join(lines) + "\n"
    if asked.output:
        lengths = " ".join(map(str, asked.lengths))
        command = f'make benchmark ARGS="--lengths {lengths} --repeats {asked.repeats}"'
        head = f"# What measuring costs\n\n{HEAD}\nWritten by `{command}`.\n\n"
        asked.output.write_text(head + text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
