"""The same rows on a CUDA device: Llama-2-7B's shape in bf16 with random weights, in about five minutes.

    python benchmarks/on_cuda.py

Without a CUDA device it says so and ends. Random ids have no text, so the classes are those that need none.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from processes import CARDS
from rows import OBSERVING
from timing import WHOLE, Clock, ratio
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from workload import Workload

from sinkscope.text import corpus

KEYS = ("plain", "scored", "few", "classes", "default", "sampled")
WARM_UP = 512


def llama(config: LlamaConfig, device: str) -> PreTrainedModel:
    """A model with random weights in bf16, which never exist anywhere but on the device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def window(model: PreTrainedModel, length: int) -> Workload:
    """One window of random ids."""
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    return Workload.of(model, None, corpus.from_ids(ids))


def rows(model: PreTrainedModel, length: int, turns: int, until: float) -> list[str]:
    """The table's rows for one length, by turns; none is begun after `until`."""
    workload, cuda = window(model, length), model.device.type == "cuda"
    clocks: dict[str, list[Clock]] = {key: [] for key in KEYS}
    peaks = dict.fromkeys(KEYS, 0)
    for _ in range(turns):
        for key in KEYS:
            if time.monotonic() > until:
                break
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            clocks[key].append(Clock(cuda))
            CARDS[key].way(workload, clocks[key][-1])
            if cuda:
                peaks[key] = max(peaks[key], torch.cuda.max_memory_allocated())
    return [_row(key, clocks, peaks, length) for key in KEYS if clocks[key]]


def _row(key: str, clocks: dict[str, list[Clock]], peaks: dict[str, int], length: int) -> str:
    row = CARDS[key]
    wall = {each: [clock.wall[WHOLE] for clock in clocks[each]] for each in (key, row.base, "plain")}
    alone = [clock.wall[OBSERVING] for clock in clocks[key] if OBSERVING in clock.wall]
    cells = [
        f"{statistics.median(wall[key]):.2f}",
        f"{ratio(wall[key], wall[row.base]):.2f}",
        f"{ratio(alone, wall['plain']):.2f}" if alone else "–",
        f"{peaks[key] / (1 << 30):.1f}",
    ]
    return f"| {length:,} | {row.label} | {row.base} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, where there is a device to make it on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=(4096, 16384, 32768), help="tokens in the window")
    parser.add_argument("--turns", type=int, default=3, help="of every row")
    parser.add_argument("--seconds", type=float, default=300, help="after which no turn is begun")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device, so there is nothing to measure.")
        return
    until = time.monotonic() + asked.seconds
    # The defaults of LlamaConfig are Llama-2-7B's shape, except for the length.
    model = llama(LlamaConfig(max_position_embeddings=max(asked.lengths)), "cuda")
    rows(model, WARM_UP, 1, until)
    print(
        "| tokens | what | ÷ | s | wall ÷ | observing ÷ plain | peak, GiB |",
        "| ---: | --- | --- |" + " ---: |" * 4,
        sep="\n",
    )
    for length in asked.lengths:
        print(*rows(model, length, asked.turns, until), sep="\n", flush=True)
    versions = f"torch {torch.__version__}, {torch.cuda.get_device_name()}"
    print(f"\nLlama-2-7B's shape with random weights, bf16; {versions}; medians of up to {asked.turns}.")


if __name__ == "__main__":
    main()
