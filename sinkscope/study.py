"""measure(): a model, a tokenizer and a text in, a report out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import find_executable_batch_size
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope import corpus
from sinkscope.errors import SinkscopeError
from sinkscope.handshake import Handshake, handshake
from sinkscope.metrics import Metric
from sinkscope.observe import Batches, observe
from sinkscope.progress import Progress, silent
from sinkscope.record import Record
from sinkscope.report import Report
from sinkscope.reporting import Setting, report
from sinkscope.tokens import classify, read

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 16384, "mps": 4096}
"""Tokens in a batch when its size is left to us: enough to keep the device busy."""


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
    **options: Any,
) -> Report:
    """Measure where each head's attention goes.

    Text is cut into `windows` windows (None for all) of `seq_len` tokens; several texts are several documents. With
    `input_ids`, each row is one window, padded on either side where `attention_mask` is 0, and no tokenizer is needed;
    classes that depend on text are then undefined. No text at all means the built-in sample. `options` are those of
    `measure_windows`. The model is left exactly as it was.

    Raises UnsupportedModelError for a model whose attention cannot be seen, TextError for a text that is too short.
    """
    if input_ids is not None:
        if text is not None:
            raise ValueError("expected a text or input_ids, got both")
        keep = None if attention_mask is None else attention_mask.bool()
        return measure_windows(model, tokenizer, corpus.from_ids(input_ids, keep), **options)
    if tokenizer is None:
        raise ValueError("expected a tokenizer for the text, got None: give input_ids instead")
    documents = corpus.read_documents([]) if text is None else _documents(text)
    found = corpus.windows(tokenizer, documents, seq_len=seq_len, count=windows, bos=bos)
    return measure_windows(model, tokenizer, found, **options)


def measure_windows(
    model: PreTrainedModel,
    tokenizer: Any,
    windows: corpus.Windows,
    *,
    batch_size: int | None = None,
    initial: int = 4,
    epsilon: float = 0.3,
    metrics: Sequence[Metric] = (),
    origin: Mapping[str, object] | None = None,
    command: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Report:
    """Measure a model on windows of tokens that are already cut.

    `batch_size` counts windows per forward (None: what fits), `initial` the leading keys that count as initial, and
    `epsilon` is the threshold of the sink rate. Cards in `metrics` are measured beside the catalog's. `origin` says
    where the model came from and `command` how the run was started; both go into the metadata only.
    """
    tokens = read(tokenizer, windows.ids, windows.keep, initial)
    shown = handshake(model, windows.ids[:1][:, windows.keep[0]])
    batches = Batches(windows.ids, windows.keep, classify(tokens), epsilon, metrics)
    record = _in_memory(model, batches, shown, batch_size, progress)
    setting = Setting(model, tokenizer, windows, tokens, epsilon, shown, origin, command)
    return report(record, setting)


def _in_memory(
    model: PreTrainedModel, batches: Batches, shown: Handshake, batch_size: int | None, progress: Progress
) -> Record:
    """Every window once, in batches of the given size or, without one, of the largest that fits."""
    count, length = batches.ids.shape
    device = model.get_input_embeddings().weight.device.type
    first = max(1, TOKENS_AT_ONCE.get(device, TOKENS_AT_ONCE["cpu"]) // length)

    def attempt(size: int) -> Record:
        return observe(model, batches, shown, size, progress)

    try:
        if batch_size is not None:
            return attempt(batch_size)
        record: Record = find_executable_batch_size(attempt, starting_batch_size=min(count, first))()
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(batch_size, length) from error
    except RuntimeError as error:  # accelerate has no class of its own for it
        if "No executable batch size" not in str(error):
            raise
        raise _out_of_memory(1, length) from error
    return record


def _documents(text: str | Sequence[str]) -> list[corpus.Document]:
    texts = [text] if isinstance(text, str) else list(text)
    return [corpus.Document(name=f"text {index}", text=each, prompt=True) for index, each in enumerate(texts, start=1)]


def _out_of_memory(batch_size: int | None, length: int) -> SinkscopeError:
    return SinkscopeError(
        f"out of memory with {batch_size} x {length} tokens: use a shorter --seq-len, a smaller --batch-size, "
        "or --dtype bfloat16"
    )
