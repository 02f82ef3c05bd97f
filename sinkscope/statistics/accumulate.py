"""Exact running sums: one (sum, count) per window and head, merged by bookkeeping rather than arithmetic.

A figure is the ratio Σsum/Σcount over windows. Because each window keeps its own pair, the order of batches cannot
change a digit, two processes merge by taking the union of their windows, and comparisons can be paired by window.
A metric costs 16 bytes per head and window.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Sums = tuple[Float[Tensor, "batch head ..."], Float[Tensor, "batch head ..."]]
"""What a metric returns: sum and count of each head in each window of the batch."""


class Tally:
    """The sums and counts of one metric in one layer, by window."""

    def __init__(self, windows: dict[int, tuple[Tensor, Tensor]] | None = None) -> None:
        self._windows = {} if windows is None else windows
        self._whole: tuple[Tensor, Tensor] | None = None

    def add(self, windows: Sequence[int], sums: Sums) -> None:
        """Take in a batch: `sums` holds the pairs of these windows, in their order."""
        if len(windows) != sums[0].shape[0]:
            raise ValueError(f"expected sums for {len(windows)} windows, got {sums[0].shape[0]}")
        self._refuse_known(windows)
        self._whole = None
        total, count = _exact(sums[0]), _exact(sums[1])
        for row, window in enumerate(windows):
            self._windows[window] = (total[row], count[row])

    def merge(self, other: "Tally") -> "Tally":
        """The tally of both, which must not share a window; neither is changed."""
        theirs = other._windows  # noqa: SLF001 - of the same class
        self._refuse_known(theirs)
        return Tally(self._windows | theirs)

    def over(self, other: "Tally") -> "Tally":
        """These windows, and those of the other that this one lacks; neither is changed."""
        return Tally(other._windows | self._windows)  # noqa: SLF001 - of the same class

    @property
    def windows(self) -> list[int]:
        """The windows counted so far, in order."""
        return sorted(self._windows)

    def by_window(self) -> tuple[Float[Tensor, "window head *axis"], Float[Tensor, "window head *axis"]]:
        """All sums and all counts in fp64 on the CPU, windows in order; not to be changed in place."""
        if self._whole is None:
            pairs = [self._windows[window] for window in self.windows]
            sums, counts = (torch.stack([pair[side] for pair in pairs]) for side in (0, 1))
            # Tables ask once a figure and class, and from a GPU every answer is a wait.
            self._whole = sums.cpu().double(), counts.cpu().double()
        return self._whole

    def _refuse_known(self, windows: Iterable[int]) -> None:
        shared = self._windows.keys() & windows
        if shared:
            raise ValueError(f"window {min(shared)} was already counted")


def ratio(sums: Float[Tensor, "window *head"], counts: Float[Tensor, "window *head"]) -> Float[Tensor, "*head"]:
    """Σsum/Σcount over windows; NaN where nothing was counted."""
    return sums.sum(0) / counts.sum(0)


def influences(
    sums: Float[Tensor, "window *head"], counts: Float[Tensor, "window *head"]
) -> Float[Tensor, "window *head"]:
    """How far each window pulls the ratio from where the others leave it: (sum - ratio·count) / Σcount.

    These are the linearised residuals of a ratio estimator; averaged over heads they give the error of a mean over
    heads, and subtracted between two runs that of a paired difference. Nothing was counted: NaN.
    """
    return (sums - ratio(sums, counts) * counts) / counts.sum(0)


LEAST_DOCUMENTS = 5
"""Documents from which errors are over documents: of fewer, how far they differ is hardly known."""

Blocks = Int[Tensor, "window"]
"""The document of each window, by number, where standard errors are over documents."""


def document_blocks(documents: Sequence[str]) -> Blocks | None:
    """The document of each window where there are LEAST_DOCUMENTS or more; None where errors are over windows."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    if len(numbers) < LEAST_DOCUMENTS:
        return None
    return torch.tensor([numbers[name] for name in documents])


def standard_error(
    influences: Float[Tensor, "window *head"],
    counts: Float[Tensor, "window *head"],
    blocks: Blocks | None = None,
) -> Float[Tensor, "*head"]:
    """The standard error √(B/(B-1)·Σ influence²) over the B blocks that count anything; NaN with fewer than two.

    A block is a window, or with `blocks` all windows of a document: its influence is the sum of theirs, so whatever
    windows of one document have in common is in the error.
    """
    number = contributing(counts, blocks)
    error: Tensor = (_by_block(influences, blocks).square().sum(0) * number / (number - 1)).sqrt()
    return error.masked_fill(number < 2, torch.nan)


def contributing(counts: Float[Tensor, "window *head"], blocks: Blocks | None = None) -> Float[Tensor, "*head"]:
    """How many windows or blocks count anything: the others say nothing of how far these differ."""
    number: Tensor = (_by_block(counts, blocks) > 0).sum(0).to(counts.dtype)
    return number


def _by_block(values: Float[Tensor, "window *head"], blocks: Blocks | None) -> Float[Tensor, "block *head"]:
    if blocks is None:
        return values
    return values.new_zeros(int(blocks.max()) + 1, *values.shape[1:]).index_add_(0, blocks, values)


def draws(windows: int, count: int, seed: int, blocks: Blocks | None = None) -> Float[Tensor, "resample window"]:
    """How often each window is in each of `count` bootstrap samples, drawn with replacement, whole blocks at a time."""
    number = windows if blocks is None else int(blocks.max()) + 1
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(number, (count, number), generator=generator)
    times = torch.zeros(count, number, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(times))
    return times if blocks is None else times[:, blocks]


def resampled(
    sums: Float[Tensor, "window *head"],
    counts: Float[Tensor, "window *head"],
    times: Float[Tensor, "resample window"],
) -> Float[Tensor, "resample *head"]:
    """The ratio over the windows of each bootstrap sample; NaN in one that counts nothing."""
    found: Tensor = torch.tensordot(times, sums, 1) / torch.tensordot(times, counts, 1)
    return found


def interval(values: Float[Tensor, "resample *head"]) -> tuple[Float[Tensor, "*head"], Float[Tensor, "*head"]]:
    """The 95 % percentile interval of what bootstrap samples gave: the 2.5th percentile and the 97.5th.

    Samples that gave nothing are left out. A single window resamples to itself, which says nothing: give it no draws.
    """
    ends = torch.tensor([0.025, 0.975], dtype=values.dtype)
    # torch refuses to look at more than 2^24 numbers at once.
    few = max(1, (1 << 23) // len(values))
    parts = torch.split(values.reshape(len(values), -1), few, dim=1)
    found = torch.cat([torch.nanquantile(part, ends, dim=0) for part in parts], dim=1)
    low, high = found.reshape(2, *values.shape[1:])
    return low, high


def _exact(tensor: Tensor) -> Tensor:
    # MPS has no fp64, so its sums leave the device at once.
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
