"""Where the time of `sinkscope measure` goes, stage by stage.

python benchmarks/spending.py --output benchmarks
"""

import argparse
import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from cells import keep, rounded, setting
from workload import Workload, embedded

from sinkscope.runs import observe
from sinkscope.runs.record import Record
from sinkscope.study.study import study

REST = "everything else"

STAGES = {
    "the model without its attention": [(observe, "predict")],
    "the model's own attention": [(torch.nn.functional, "scaled_dot_product_attention")],
    "reductions": [(observe, "reduce"), (observe, "attend_and_reduce")],
    "agreement of output and weights": [(observe, "agreement")],
    "metrics from reductions": [(Record, "add")],
    "head and loss": [(observe, "losses")],
    "handshake": [(study, "handshake")],
    "tables": [(study, "report")],
    REST: [],
}

HEAD = """\
# Where the time goes

`sinkscope measure` with its default metrics on one window of the built-in text, SmolLM2-135M-Instruct: the share of
each stage in the whole call, without what it calls of the others. Medians of {repeats}. *reductions* holds the layer's
own attention where one kernel does both.
"""


class Ledger:
    """The seconds of each stage without those of the stages within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open = [REST]
        self._since = time.perf_counter()

    @contextmanager
    def spending(self, stage: str) -> Iterator[None]:
        """Time goes to this stage while the block runs, and then again to the one around it."""
        self.settle()
        self._open.append(stage)
        try:
            yield
        finally:
            self.settle()
            self._open.pop()

    def settle(self) -> None:
        """Enter the time until now."""
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def watched(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time entered under the stage."""

        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> object:
            with self.spending(stage):
                return function(*arguments, **named)

        return watched


def spent(workload: Workload) -> dict[str, float]:
    """The seconds of each stage in one call."""
    with ExitStack() as stack:
        ledger = Ledger()
        for stage, places in STAGES.items():
            for home, name in places:
                stack.enter_context(patch.object(home, name, ledger.watched(stage, getattr(home, name))))
        runs.measure_windows(workload.model, workload.tokenizer, workload.windows, runs.Options())
        ledger.settle()
    return {stage: ledger.seconds[stage] for stage in STAGES}


def page(found: dict[int, list[dict[str, float]]]) -> str:
    """Stages by lengths."""
    lines = [f"| | {' | '.join(f'{length:,} tokens' for length in found)} |", f"| --- |{' ---: |' * len(found)}"]
    for stage in STAGES:
        shares = [statistics.median(each[stage] / sum(each.values()) for each in turns) for turns in found.values()]
        lines.append(f"| {stage} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    wholes = [statistics.median(sum(each.values()) for each in turns) for turns in found.values()]
    lines.append(f"| the whole call | {' | '.join(f'{whole:.2f} s' for whole in wholes)} |")
    return "\n".join([HEAD.format(repeats=len(next(iter(found.values())))), *lines, "", f"{setting()}.", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=(512, 2048), help="tokens in the window")
    parser.add_argument("--repeats", type=int, default=3, help="calls for each length")
    parser.add_argument("--output", type=Path, help="the folder for spending.md and raw/spending.json")
    asked = parser.parse_args(arguments)
    found = {}
    for length in asked.lengths:
        workload = embedded(length)
        spent(workload)
        found[length] = [spent(workload) for _ in range(asked.repeats)]
    if asked.output:
        rows = {
            f"{length} {stage}": rounded(each[stage] for each in turns)
            for length, turns in found.items()
            for stage in STAGES
        }
        keep(asked.output / "raw" / "spending.json", {"setting": setting()}, rows)
        (asked.output / "spending.md").write_text(page(found), encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
