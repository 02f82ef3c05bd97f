"""How long a window a model can take: positions that come from a table end where the table ends."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import TextError
from sinkscope.hooks.forward import embedding, logits
from sinkscope.text.corpus import Windows, warned

USUAL = 512
"""A length that is tried where the configuration states fewer positions and no table of them is found."""

STATED = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
"""The names under which configurations state how many positions a model was made for."""


def stated_positions(model: PreTrainedModel) -> int | None:
    """How many positions the configuration says that the model was made for; None where it says nothing."""
    config = model.config.get_text_config()
    found = (getattr(config, name, None) for name in STATED)
    return next((each for each in found if isinstance(each, int) and each > 0), None)


def table_positions(model: PreTrainedModel) -> int | None:
    """How many positions the model has a table for, learned or fixed; None where it computes them.

    A table counts only if it has as many rows as the configuration states, those in front of position 0 aside: a tower
    for images has tables of its own.
    """
    stated = stated_positions(model)
    if stated is None:
        return None
    rows = [*_embedded(model, stated), *_fixed(model, stated)]
    return min(rows, default=None)


def _embedded(model: nn.Module, stated: int) -> list[int]:
    """The positions of learned tables, without the rows that stand before position 0."""
    found = []
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and ("pos" in leaf or leaf == "wpe"):
            offset = getattr(module, "offset", 0)
            if module.num_embeddings - offset == stated:
                # Position ids then start behind the one that stands for padding.
                before = 0 if module.padding_idx is None else module.padding_idx + 1
                found.append(stated - before)
    return found


def _fixed(model: nn.Module, stated: int) -> list[int]:
    """The positions of tables that are no parameters: [position, width], as buffers or plain attributes."""
    tables = (
        value
        for module in model.modules()
        for name, value in [*vars(module).items(), *module.named_buffers(recurse=False)]
        if "pos" in name and isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point()
    )
    return [len(table) for table in tables if len(table) == stated]


def longest_window(model: PreTrainedModel) -> int | None:
    """The longest window that the model has positions for; None where it can take any that is usual."""
    table, stated = table_positions(model), stated_positions(model)
    if table is not None or stated is None or stated >= USUAL:
        return table
    return stated if _runs(model, torch.zeros(1, USUAL, dtype=torch.int64)) is not None else None


def check_fit(
    model: PreTrainedModel, ids: Int[Tensor, "window position"], keep: Bool[Tensor, "window position"]
) -> None:
    """Raise TextError for ids or lengths that the model has no embedding for; on CUDA they would end the process."""
    vocabulary, largest = embedding(model).shape[0], int(ids[keep].max())
    if largest >= vocabulary:
        raise TextError(
            f"token id {largest} is not in the vocabulary of {type(model).__name__}, which has {vocabulary}: "
            "the tokenizer is another model's"
        )
    lengths = keep.sum(dim=1)
    window, table, stated = int(lengths.argmax()), table_positions(model), stated_positions(model)
    length, positions = int(lengths[window]), table or stated
    if positions is None or length <= positions:
        return
    fault = "" if table is not None else _runs(model, ids[window][keep[window]][None])
    if fault is not None:
        raise TextError(
            f"windows of {length} tokens are longer than the {positions} positions of {type(model).__name__}{fault}: "
            f"use --seq-len {positions} or less"
        )


def _runs(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> str | None:
    """None if the model's own code takes a window of this length; else what it raises."""
    if any(name.rpartition(".")[2].endswith("inv_freq") for name, _ in model.named_buffers()):
        return None  # rotary positions are computed for any length, so a trial would only cost time
    try:
        logits(model, ids)
    except (IndexError, ValueError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return f" ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def warned_of_length(model: PreTrainedModel, windows: Windows) -> Windows:
    """The same windows, with a warning where they are longer than the model was made for."""
    stated, length = stated_positions(model), int(windows.keep.sum(dim=1).max())
    if stated is None or length <= stated:
        return windows
    return warned(windows, f"windows of {length} tokens are longer than the {stated} positions the model was made for")
