"""What `sinkscope measure` costs as a whole command beside the least that any script would: ratios within one run.

    python benchmarks/startup.py --repeats 5

The least is a script that imports torch and transformers, loads the embedded model from the same safetensors file, and
runs the same four windows of 512 tokens once, with the logits of every token. Repeats are interleaved and medians are
taken, so that a busy machine slows both rows alike.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MINIMAL = """
import sys
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    model(torch.load(sys.argv[2]))
"""

PREPARE = """
import sys
import torch
import sinkscope
from sinkscope.text import corpus
model, tokenizer = sinkscope.load()
torch.save(corpus.windows(tokenizer, corpus.read_documents([])).ids, sys.argv[1])
print(model.config._name_or_path)
"""
"""Converts the model if no earlier run has, and says where its safetensors file lies."""

Cost = tuple[float, float]
"""Seconds on the clock and of all processors."""


def cost(command: list[str]) -> Cost:
    """What a command costs from its start to its end."""
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - ours
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - start, used


def prepared(ids: Path) -> str:
    """The directory of the converted model; the windows' ids are put into a file."""
    command = [sys.executable, "-c", PREPARE, str(ids)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return told.stdout.strip()


def compared(repeats: int) -> dict[str, list[Cost]]:
    """Every command by its name with its costs, the least first."""
    with tempfile.TemporaryDirectory() as scratch:
        ids = Path(scratch) / "ids.pt"
        commands = {
            "minimal script": [sys.executable, "-c", MINIMAL, prepared(ids), str(ids)],
            "`sinkscope measure`": [sys.executable, "-m", "sinkscope", "measure"],
        }
        found: dict[str, list[Cost]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                found[name].append(cost(command))
    return found


def table(found: dict[str, list[Cost]]) -> list[str]:
    """One row a command: medians, and the median of its ratios to the first command of the same repeat."""
    least = next(iter(found.values()))
    lines = ["| what | s | ÷ | CPU s | ÷ |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, costs in found.items():
        cells = []
        for side in (0, 1):
            ratios = [one[side] / other[side] for one, other in zip(costs, least, strict=True)]
            cells += [f"{statistics.median(each[side] for each in costs):.1f}", f"{statistics.median(ratios):.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


HEAD = """\
# What a whole command costs

A second `sinkscope measure` on the embedded model at its default size, beside a script that imports torch and
transformers, loads the same safetensors, and runs the same four windows of 512 tokens once. Medians of {repeats}
interleaved repeats; ratios are those within a repeat. Written by `make benchmark`.
"""


def main() -> None:
    """Run the benchmark; print its table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="the folder for startup.md")
    asked = parser.parse_args()
    lines = "\n".join(table(compared(asked.repeats)))
    print(lines)
    if asked.output:
        text = f"{HEAD.format(repeats=asked.repeats)}\n{lines}\n"
        (asked.output / "startup.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
