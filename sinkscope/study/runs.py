"""A model on windows that are already cut: handshake, measurement or comparison in batches that fit, report."""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.activations.layers import decoder_layers
from sinkscope.attention import PROJECTED, Site
from sinkscope.attention.paths import Path
from sinkscope.attention.swap import PLAIN, Swap
from sinkscope.errors import SinkscopeError
from sinkscope.hooks.forward import embedding
from sinkscope.hooks.gradients import gradient_norms
from sinkscope.hooks.handshake import Handshake, handshake
from sinkscope.hooks.patch import Head, Plan, check_anchored, plan, swapped
from sinkscope.hooks.projections import find_projections
from sinkscope.normalizers import Modifier, Normalizer, resolve
from sinkscope.report import Report
from sinkscope.report.provenance import Setting
from sinkscope.report.reporting import compared, report
from sinkscope.runs.capacity import check_fit, warned_of_length
from sinkscope.runs.comparison import Contender, common_path, compare_records, needed
from sinkscope.runs.observe import Batches, observe
from sinkscope.runs.options import Options
from sinkscope.runs.record import Record
from sinkscope.text import corpus
from sinkscope.text.lengths import length_warnings
from sinkscope.tokens import read

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 16384, "mps": 4096}
"""Tokens in a batch when its size is left to us: enough to keep the device busy."""

Weighing = str | Normalizer | Callable[[Tensor], Tensor]
"""A normalizer by its name and settings, by its card, or as a bare function of scores."""


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """What to put in softmax's place: normalizers, one after the other, after `modifier` has changed the scores.

    `layers` and `heads` choose whole layers and single heads, by the model's own numbers; with neither, everything is
    swapped. With `sweep`, each normalizer is also put into one layer at a time.
    """

    normalizers: Sequence[Weighing] = ()
    modifier: Modifier | None = None
    layers: Collection[int] | None = None
    heads: Collection[Head] | None = None
    sweep: bool = False

    def contenders(self, sites: Sequence[Site]) -> list[Contender]:
        """Every way of weighing to hold against plain softmax; ValueError for none, or for two of one name."""
        if not self.normalizers and self.modifier is None:
            raise ValueError("expected a normalizer or a modifier to compare with softmax, got none")
        found = []
        for each in self.normalizers or ("softmax",):
            swap = Swap(resolve(each), self.modifier)
            label = {PLAIN.label: f"{PLAIN.label} ({'identity' if swap == PLAIN else 'given'})"}.get(
                swap.label, swap.label
            )
            found.append(Contender(label, plan(sites, swap, self.layers, self.heads)))
            if self.sweep:
                found += [Contender(label, part, layer) for layer, part in found[-1].plan.by_layer(sites)]
        labels = [each.label for each in found if each.layer is None]
        if len(set(labels)) < len(labels):
            raise ValueError(f"expected different normalizers, got {', '.join(labels)}")
        return found


def measure_windows(model: PreTrainedModel, tokenizer: Any, windows: corpus.Windows, options: Options) -> Report:
    """Measure a model on windows of tokens that are already cut."""
    shown = _shown(model, windows, options)
    setting, batches = _prepared(model, tokenizer, windows, options, shown=shown, path=Path(options.attention))

    def attempt(size: int) -> Report:
        record = observe(model, batches, shown, size, options.progress)
        _add_gradients(model, [(record, Plan({}))], setting)
        return report(record, setting)

    return _in_memory(attempt, model, windows, 1 if shown.alone else options.batch_size)


def compare_windows(
    model: PreTrainedModel, tokenizer: Any, windows: corpus.Windows, options: Options, *, swaps: Swaps
) -> Report:
    """Compare normalizers on windows of tokens that are already cut."""
    if swaps.modifier is not None and swaps.modifier.initial is None:
        swaps = replace(swaps, modifier=replace(swaps.modifier, initial=options.initial))
    shown = _shown(model, windows, options)
    contenders = swaps.contenders(shown.sites)
    for contender in contenders:
        check_anchored(model, shown, contender.plan)
    path = common_path(contenders, Path(options.attention))
    telling = needed(contenders)
    setting, batches = _prepared(model, tokenizer, windows, options, shown=shown, path=path, telling=telling)

    def attempt(size: int) -> Report:
        found = compare_records(model, batches, contenders, shown, size=size, progress=options.progress)
        whole = [
            (record, each.plan) for record, each in zip(found.records, contenders, strict=True) if each.layer is None
        ]
        _add_gradients(model, [(found.baseline, Plan({})), *whole], setting)
        return compared(found, contenders, setting)

    return _in_memory(attempt, model, windows, 1 if shown.alone else options.batch_size)


def _shown(model: PreTrainedModel, windows: corpus.Windows, options: Options) -> Handshake:
    options.progress("checking that attention can be seen", 0, None)
    check_fit(model, windows.ids, windows.keep)
    longest = int(windows.keep.sum(dim=1).argmax())
    return handshake(model, windows.ids[longest][windows.keep[longest]][None])


def _prepared(
    model: PreTrainedModel,
    tokenizer: Any,
    windows: corpus.Windows,
    options: Options,
    *,
    shown: Handshake,
    path: Path,
    telling: Sequence[str] = (),
) -> tuple[Setting, Batches]:
    tokens = read(tokenizer, windows.ids, windows.keep, options.initial, windows.template)
    if tokenizer is None:
        tokens = replace(tokens, bos=_configured_bos(model))
        known = {"bos_token_id": tokens.bos, "bos_known_from": None if tokens.bos is None else "configuration"}
        windows = replace(windows, provenance=windows.provenance | known)
    batches = options.batches(windows, tokens, path, telling)
    if batches.activations:
        batches = replace(batches, layers=decoder_layers(model, shown.sites))
    if any(metric.needs & PROJECTED for metric in batches.metrics):
        batches = replace(batches, projections=find_projections(model, windows.ids[:1][:, windows.keep[0]], shown))
    told = warned_of_length(model, corpus.warned(windows, *length_warnings(windows.keep)))
    return Setting(model, tokenizer, told, tokens, batches, shown, options), batches


def _configured_bos(model: PreTrainedModel) -> int | None:
    """The id of the BOS token by the model's configuration, for ids that come without a tokenizer."""
    found = getattr(model.config.get_text_config(), "bos_token_id", None)
    return found if isinstance(found, int) else None


def _add_gradients(model: PreTrainedModel, records: Sequence[tuple[Record, Plan]], setting: Setting) -> None:
    """The gradient norms of every window under each plan, where they are asked for: a pass of their own."""
    if not setting.options.gradients:
        return
    ids, keep = setting.windows.ids, setting.windows.keep
    for done, (record, swaps) in enumerate(records):
        setting.options.progress("going back through the model", done, len(records))
        with swapped(model, setting.shown, swaps) if swaps.swaps else nullcontext():
            record.gradients = gradient_norms(model, ids, keep)


Found = TypeVar("Found")


def _in_memory(
    attempt: Callable[[int], Found], model: PreTrainedModel, windows: corpus.Windows, batch_size: int | None
) -> Found:
    """Every window once, in batches of the given size or, without one, of the largest that fits."""
    count, length = windows.ids.shape
    device = embedding(model).device.type
    room = max(1, TOKENS_AT_ONCE.get(device, TOKENS_AT_ONCE["cpu"]) // length)
    size = min(count, room) if batch_size is None else batch_size
    while True:
        try:
            return attempt(size)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if size == 1 or batch_size is not None:
                raise SinkscopeError(
                    f"out of memory with {size} x {length} tokens: use a shorter --seq-len, a smaller --batch-size, "
                    "or --dtype bfloat16"
                ) from error
        # Only here, with the failed attempt's frames gone, is its memory free again.
        size //= 2


def _is_out_of_memory(error: BaseException) -> bool:
    """On the CPU torch raises a RuntimeError like any other, and only its words tell."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
