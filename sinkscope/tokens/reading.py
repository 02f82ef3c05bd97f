"""Reading windows of token ids with the tokenizer that made them."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.tokens.base import Tokens
from sinkscope.tokens.spelling import special_ids, speller


def read(
    tokenizer: Any,
    ids: Int[Tensor, "batch key"],
    keep: Bool[Tensor, "batch key"],
    initial: int,
    template: Bool[Tensor, "batch key"] | None = None,
) -> Tokens:
    """Everything that a class of positions may ask about these windows; what is `template` counts as special.

    Without a tokenizer (None) the tokens have no spelling. Raises ValueError when `initial` is below 1, and
    TextError when the tokenizer does not say what its tokens stand for.
    """
    if initial < 1:
        raise ValueError(f"expected initial >= 1, got {initial}")
    if tokenizer is None:
        return Tokens(ids, keep, torch.zeros_like(keep), spelling=None, initial=initial, bos=None)
    special = torch.isin(ids, torch.tensor(sorted(special_ids(tokenizer)), dtype=ids.dtype, device=ids.device))
    if template is not None:
        special |= template
    return Tokens(
        ids, keep, special & keep, spelling=_spelling(tokenizer, ids, keep), initial=initial, bos=tokenizer.bos_token_id
    )


def _spelling(
    tokenizer: Any, ids: Int[Tensor, "batch key"], keep: Bool[Tensor, "batch key"]
) -> tuple[tuple[bytes, ...], ...]:
    spell = speller(tokenizer, ids[keep].tolist())
    rows = []
    for window, real in zip(ids, keep, strict=True):
        spelled = iter(spell(window[real].tolist()))
        rows.append(tuple(next(spelled) if is_real else b"" for is_real in real.tolist()))
    return tuple(rows)
