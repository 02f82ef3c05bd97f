"""measure() and compare(): a model, a tokenizer and a text in, a report out."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope import corpus
from sinkscope.attention import Site
from sinkscope.attention.paths import Path
from sinkscope.attention.swap import PLAIN, Swap
from sinkscope.comparison import Contender, common_path, compare_records, needed
from sinkscope.errors import SinkscopeError
from sinkscope.forward import check_fit, embedding
from sinkscope.handshake import Handshake, handshake
from sinkscope.normalizers import Modifier, Normalizer, resolve
from sinkscope.observe import Batches, observe
from sinkscope.options import Options
from sinkscope.patch import Head, check_anchored, plan
from sinkscope.report import Report
from sinkscope.reporting import Setting, compared, report
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


def measure(
    model: PreTrainedModel,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    input_ids: Int[Tensor, "batch position"] | None = None,
    attention_mask: Tensor | None = None,
    seq_len: int = 512,
    windows: int | None = 4,
    bos: str = "auto",
    chat: bool = False,
    **options: Any,
) -> Report:
    """Measure where each head's attention goes.

    Text is cut into `windows` windows (None for all) of `seq_len` tokens; several texts are several documents. With
    `chat`, each is a user turn in the tokenizer's chat template. No text at all means the built-in sample. With
    `input_ids`, each row is one window, padded on either side where `attention_mask` is 0, and no tokenizer is needed;
    classes that depend on text are then undefined. `options` are the fields of `sinkscope.options.Options`. The model
    is left exactly as it was.

    Raises UnsupportedModelError for a model whose attention cannot be seen, TextError for a text that is too short.
    """
    cut = {"seq_len": seq_len, "count": windows, "bos": bos, "chat": chat}
    found = _windows(tokenizer, text, input_ids, attention_mask, **cut)
    return measure_windows(model, tokenizer, found, Options(**options))


def compare(
    model: PreTrainedModel,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    normalizers: Sequence[Weighing] = (),
    modifier: Modifier | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[Head] | None = None,
    sweep: bool = False,
    input_ids: Int[Tensor, "batch position"] | None = None,
    attention_mask: Tensor | None = None,
    seq_len: int = 512,
    windows: int | None = 4,
    bos: str = "auto",
    chat: bool = False,
    **options: Any,
) -> Report:
    """Measure the model under plain softmax and under each normalizer: sinks, loss, and the change, paired by window.

    The swap is described in `Swaps`; everything else is as in `measure`. Before and after take the same windows and
    the same code path, and the difference that our own softmax makes to the model's logits is in the metadata.

    Raises what `measure` raises, UnknownNameError for an unknown normalizer, layer or head, and ValueError where there
    is nothing to compare.
    """
    cut = {"seq_len": seq_len, "count": windows, "bos": bos, "chat": chat}
    found = _windows(tokenizer, text, input_ids, attention_mask, **cut)
    swaps = Swaps(normalizers=normalizers, modifier=modifier, layers=layers, heads=heads, sweep=sweep)
    return compare_windows(model, tokenizer, found, swaps, Options(**options))


def measure_windows(model: PreTrainedModel, tokenizer: Any, windows: corpus.Windows, options: Options) -> Report:
    """Measure a model on windows of tokens that are already cut."""
    shown = _shown(model, windows)
    setting, batches = _prepared(model, tokenizer, windows, options, shown=shown, path=Path(options.attention))

    def attempt(size: int) -> Report:
        return report(observe(model, batches, shown, size, options.progress), setting)

    return _in_memory(attempt, model, windows, options.batch_size)


def compare_windows(
    model: PreTrainedModel, tokenizer: Any, windows: corpus.Windows, swaps: Swaps, options: Options
) -> Report:
    """Compare normalizers on windows of tokens that are already cut."""
    shown = _shown(model, windows)
    contenders = swaps.contenders(shown.sites)
    for contender in contenders:
        check_anchored(model, shown, contender.plan)
    path = common_path(contenders, Path(options.attention))
    telling = needed(contenders)
    setting, batches = _prepared(model, tokenizer, windows, options, shown=shown, path=path, telling=telling)

    def attempt(size: int) -> Report:
        found = compare_records(model, batches, contenders, shown, size=size, progress=options.progress)
        return compared(found, contenders, setting)

    return _in_memory(attempt, model, windows, options.batch_size)


def _shown(model: PreTrainedModel, windows: corpus.Windows) -> Handshake:
    check_fit(model, windows.ids)
    return handshake(model, windows.ids[:1][:, windows.keep[0]])


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
    batches = options.batches(windows, tokens, path, telling)
    return Setting(model, tokenizer, _warned(model, windows), tokens, batches, shown, options), batches


def _warned(model: PreTrainedModel, windows: corpus.Windows) -> corpus.Windows:
    """The same windows, with a warning where they are longer than the model was made for."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = windows.ids.shape[1]
    if not isinstance(longest, int) or length <= longest:
        return windows
    warning = f"windows of {length} tokens are longer than the {longest} positions the model was made for"
    known = windows.provenance.get("warnings")
    warnings = [*(known if isinstance(known, list) else []), warning]
    return replace(windows, provenance=windows.provenance | {"warnings": warnings})


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


def _windows(
    tokenizer: Any,
    text: str | Sequence[str] | None,
    input_ids: Int[Tensor, "batch position"] | None,
    attention_mask: Tensor | None,
    **cut: Any,
) -> corpus.Windows:
    if input_ids is not None:
        if text is not None:
            raise ValueError("expected a text or input_ids, got both")
        return corpus.from_ids(input_ids, None if attention_mask is None else attention_mask.bool())
    if attention_mask is not None:
        raise ValueError("expected input_ids together with attention_mask, got none")
    if tokenizer is None:
        raise ValueError("expected a tokenizer for the text, got None: give input_ids instead")
    documents = corpus.read_documents([]) if text is None else _documents(text)
    return corpus.windows(tokenizer, documents, **cut)


def _documents(text: str | Sequence[str]) -> list[corpus.Document]:
    texts = [text] if isinstance(text, str) else list(text)
    return [corpus.Document(name=f"text {index}", text=each, prompt=True) for index, each in enumerate(texts, start=1)]
