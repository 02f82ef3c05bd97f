"""What is measured, and on what: a model, its tokenizer, texts, token ids."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.arguments.values import got

LOAD = "load it first with model, tokenizer = sinkscope.load(...)"

LARGEST = torch.iinfo(torch.int64).max


def checked_model(model: Any) -> None:
    """TypeError for what is no model that could be measured; one that wraps a model passes where it acts like it."""
    if isinstance(model, PreTrainedModel) or _acts_like_one(model):
        return
    if isinstance(model, str | os.PathLike):
        raise TypeError(f"expected a model, got the name {str(model)!r}: {LOAD}")
    if hasattr(model, "model") and hasattr(model, "tokenizer"):
        raise TypeError(
            f"expected a model, got a {type(model).__name__} that holds one: give its .model and .tokenizer"
        )
    if _is_a_tokenizer(model):
        raise TypeError(f"expected a model, got the tokenizer {type(model).__name__}: the model comes first")
    raise TypeError(f"expected a transformers model (PreTrainedModel), got {_named(model)}: {LOAD}")


def checked_tokenizer(tokenizer: Any) -> None:
    """TypeError for what is neither None nor a tokenizer of transformers' kind."""
    if tokenizer is None or _is_a_tokenizer(tokenizer):
        return
    if isinstance(tokenizer, str | os.PathLike):
        raise TypeError(
            f"expected a tokenizer, got {got(str(tokenizer))}: write measure(model, tokenizer, text); "
            "sinkscope.load gives both"
        )
    if hasattr(tokenizer, "tokenizer"):
        raise TypeError(f"expected a tokenizer, got a {type(tokenizer).__name__} that holds one: give its .tokenizer")
    if isinstance(tokenizer, Tensor | list):
        raise TypeError(f"expected a tokenizer, got {_named(tokenizer)}: give token ids as input_ids=")
    raise TypeError(f"expected a tokenizer of transformers, got {_named(tokenizer)}: sinkscope.load gives one")


def texts(text: Any) -> str | list[str] | None:
    """A text or a list of texts; TypeError for a path, a table and everything else, ValueError for an empty list."""
    if text is None or isinstance(text, str):
        return text
    if isinstance(text, os.PathLike):
        raise TypeError(f"expected a text, got the path {str(text)!r}: give Path(...).read_text(encoding='utf-8')")
    if isinstance(text, bytes | bytearray):
        raise TypeError("expected a text, got bytes: give data.decode('utf-8')")
    if hasattr(text, "columns"):
        raise TypeError(f"expected a text or a list of texts, got {_named(text)}: give one column, list(table['text'])")
    if isinstance(text, dict | set | frozenset | Tensor) or not isinstance(text, Iterable):
        raise TypeError(f"expected a text or a list of texts, got {_named(text)}")
    found = list(text)
    for place, each in enumerate(found):
        if not isinstance(each, str):
            raise TypeError(f"expected a list of texts, got {_named(each)} at place {place}")
    if not found:
        raise ValueError("expected at least one text, got an empty list")
    return found


def token_ids(ids: Any) -> Tensor | None:
    """Token ids as a tensor [window, position]; one window may come alone. TypeError for what holds no ids."""
    if ids is None:
        return None
    found = _tensor("input_ids", ids)
    return found[None] if found.ndim == 1 else found


def attention_mask(mask: Any) -> Tensor | None:
    """Where tokens are, as a tensor of bools [window, position]; ValueError for a mask of other values than 0 and 1."""
    if mask is None:
        return None
    found = _tensor("attention_mask", mask)
    if found.dtype != torch.bool and not bool(((found == 0) | (found == 1)).all()):
        wrong = found[(found != 0) & (found != 1)].flatten()[0].item()
        raise ValueError(f"expected attention_mask to hold 1 at tokens and 0 at padding, got {wrong}")
    return (found[None] if found.ndim == 1 else found).bool()


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "input_ids") or isinstance(values, dict):
        raise TypeError(f"expected {name} to be token ids, got what a tokenizer returned: give **encoded instead")
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"expected {name} to be a tensor [window, position], got {got(values)}")
    rows = values.tolist() if hasattr(values, "tolist") else list(values)
    lengths = {len(row) if isinstance(row, list | tuple) else None for row in rows}
    if len(lengths) > 1 and None not in lengths:
        found = " and ".join(map(str, sorted(length for length in lengths if length is not None)[:2]))
        raise ValueError(f"expected {name} to hold windows of one length, got {found}: pad and give attention_mask")
    try:
        return torch.tensor(rows)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise TypeError(f"expected {name} to hold whole numbers up to {LARGEST}, got {got(values)}") from None


def _acts_like_one(model: Any) -> bool:
    """Whether it is a module with the parts of a transformers model: an adapter's wrapper, or a compiled model."""
    parts = ("config", "get_input_embeddings", "set_attn_implementation")
    return isinstance(model, torch.nn.Module) and all(hasattr(model, part) for part in parts)


def _is_a_tokenizer(found: Any) -> bool:
    parts = ("convert_ids_to_tokens", "convert_tokens_to_ids", "decode")
    return callable(found) and all(hasattr(found, part) for part in parts)


def _named(value: object) -> str:
    return f"a {type(value).__name__}"
