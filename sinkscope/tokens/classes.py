"""The classes of positions themselves: from tokens to a mark on each key."""

import functools
import string
import unicodedata
from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from sinkscope.tokens.base import Tokens

LINE_BREAKS = frozenset("\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")


def first(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """The first real key of each window."""
    return _leading(tokens, 1)


def initial(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """The first K real keys of each window, K being `tokens.initial`."""
    return _leading(tokens, tokens.initial)


def bos(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """The first real key of each window in which it is the BOS token."""
    if tokens.bos is None:
        return torch.zeros_like(tokens.keep)
    return first(tokens) & (tokens.ids == tokens.bos)


def special(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """Every token that stands for no text, or comes from a chat template."""
    return tokens.special & tokens.keep


def punctuation(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """Tokens that hold a byte of a character of Unicode category P* or of ASCII punctuation.

    A character that the window's edge cuts cannot be known, and is not punctuation.
    """
    return _where(tokens, lambda text: any(map(_is_punctuation, text)))


def newline(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """Tokens of nothing but white space, with at least one line break."""
    return _where(tokens, lambda text: text.isspace() and not LINE_BREAKS.isdisjoint(text))


def other(tokens: Tokens) -> Bool[Tensor, "batch key"]:
    """Every real key: the classes before this one have taken theirs."""
    return tokens.keep


def _leading(tokens: Tokens, count: int) -> Bool[Tensor, "batch key"]:
    return tokens.keep & (tokens.keep.cumsum(-1) <= count)


@functools.cache
def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _where(tokens: Tokens, holds: Callable[[str], bool]) -> Bool[Tensor, "batch key"]:
    if tokens.characters is None:
        raise ValueError("expected tokens with a spelling, got none: read them with a tokenizer")
    answers = {text: holds(text) for text in set().union(*tokens.characters)}
    rows = [[answers[text] for text in row] for row in tokens.characters]
    marked = torch.tensor(rows, dtype=torch.bool, device=tokens.ids.device)
    return marked.reshape(tokens.ids.shape) & tokens.keep
