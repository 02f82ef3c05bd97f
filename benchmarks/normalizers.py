"""What each normalizer costs beside softmax, in one attention layer.

python benchmarks/normalizers.py --output benchmarks
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import layer
import torch
from cells import keep, rounded, setting
from timing import interleaved, ratio

from sinkscope.attention import dense, flash
from sinkscope.attention.swap import Swap
from sinkscope.normalizers import NORMALIZERS, resolve

EXTRA = ("topk:k=8", "entmax:alpha=1.5")
SDPA = "sdpa"
DENSE, FAST = "{} dense", "{} fast"

HEAD = """\
# What a normalizer costs

One attention layer of SmolLM2-135M's shape, {length:,} tokens, random vectors, every normalizer of the catalog with its
default settings and some with others: the layer's output, medians of {repeats} interleaved turns. *dense* is the path
that takes any normalizer, ÷ softmax on it; *fast* is the path of softmax and its forms, where it serves, ÷ the layer's
own attention.
"""


def timed(length: int, repeats: int) -> dict[str, list[float]]:
    """The seconds of each normalizer on each path that serves it."""
    each = layer.call(length)
    ways = {SDPA: partial(layer.sdpa, each)}
    for spec in (*NORMALIZERS, *EXTRA):
        swap = Swap(resolve(spec))
        ways[DENSE.format(spec)] = partial(dense.attend, each, swap)
        if flash.serves(each, swap) is None:
            ways[FAST.format(spec)] = partial(flash.attend, each, swap)
    with torch.no_grad():
        return interleaved(ways, repeats)


def page(seconds: dict[str, list[float]], length: int, repeats: int) -> str:
    """The table, in the catalog's order."""
    softmax, own = seconds[DENSE.format("softmax")], seconds[SDPA]
    lines = ["| normalizer | dense ÷ softmax | fast ÷ own |", "| --- | ---: | ---: |"]
    for spec in (*NORMALIZERS, *EXTRA):
        slow, fast = seconds[DENSE.format(spec)], seconds.get(FAST.format(spec))
        lines.append(f"| `{spec}` | {ratio(slow, softmax):.2f} | {f'{ratio(fast, own):.2f}' if fast else '–'} |")
    took = (
        f"softmax on the dense path {statistics.median(softmax):.3f} s, the layer's own {statistics.median(own):.3f} s"
    )
    return "\n".join([HEAD.format(length=length, repeats=repeats), *lines, "", f"{took}; {setting()}.", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048, help="tokens")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every normalizer")
    parser.add_argument("--output", type=Path, help="the folder for normalizers.md and raw/normalizers.json")
    asked = parser.parse_args(arguments)
    seconds = timed(asked.length, asked.repeats)
    if asked.output:
        rows = {name: rounded(each) for name, each in seconds.items()}
        keep(asked.output / "raw" / "normalizers.json", {"tokens": asked.length, "setting": setting()}, rows)
        (asked.output / "normalizers.md").write_text(page(seconds, asked.length, asked.repeats), encoding="utf-8")
    print(page(seconds, asked.length, asked.repeats))


if __name__ == "__main__":
    main()
