"""What stands at position 0 of every window and who put it there: sinks live there, so a report has to say it."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.errors import TextError
from sinkscope.text.documents import shown

_SANE_LENGTH = 10**9
"""Tokenizers that know no maximum name one above this."""


@dataclass(frozen=True)
class Opening:
    """What windows begin with (`ids`), beside what the tokenizer would put there (`native`)."""

    mode: str
    ids: tuple[int, ...]
    native: tuple[int, ...]


def opening(tokenizer: Any, mode: str) -> Opening:
    """The opening of every window: "auto" as the tokenizer does, "always" its BOS token, "never" none.

    Raises TextError where "always" meets a tokenizer that has no BOS token.
    """
    native = _native(tokenizer)
    if mode == "auto":
        return Opening(mode, native, native)
    if mode == "never":
        return Opening(mode, (), native)
    if mode != "always":
        raise ValueError(f"expected bos to be auto, always or never, got {mode!r}")
    if tokenizer.bos_token_id is None:
        raise TextError("the tokenizer has no BOS token: use --bos auto or --bos never")
    return Opening(mode, (tokenizer.bos_token_id,), native)


def _native(tokenizer: Any) -> tuple[int, ...]:
    """What the tokenizer itself puts in front of a text; what it appends (EOS, SEP) is no part of it."""
    # `add_bos_token` is not asked: after saving and loading it can say no while BOS is still added.
    plain = tokenizer("a", add_special_tokens=False).input_ids
    dressed = tokenizer("a").input_ids
    found = (at for at in range(len(dressed)) if dressed[at : at + len(plain)] == plain)
    return tuple(dressed[: next(found, 0)])


def own_bos(tokenizer: Any, begun: Opening) -> tuple[int, ...]:
    """What a chat template that begins like this leaves to the windows' opening, so that no window has BOS twice.

    That is the opening itself or, where windows shall have no BOS, the BOS token.
    """
    bos_id = tokenizer.bos_token_id
    unwanted = begun.mode == "never" and bos_id is not None
    return (bos_id,) if unwanted else begun.ids


def bos_facts(
    tokenizer: Any,
    begun: Opening,
    ids: Int[Tensor, "window position"],
    keep: Bool[Tensor, "window position"],
    *,
    within: str = "text",
) -> dict[str, object]:
    """For the report: what token 0 is, who put it there, and what the tokenizer is called.

    `within` names what a BOS belongs to that follows the opening.
    """
    bos_id = _bos_id(tokenizer, begun)
    leading = _leading(bos_id, ids, keep)
    ours = "tokenizer" if begun.ids == begun.native else "sinkscope"
    theirs = within if leading[0] > 0 else None
    return {
        "bos": begun.mode,
        "bos_token": None if bos_id is None else shown(tokenizer.convert_ids_to_tokens(bos_id)),
        "bos_added_by": ours if begun.ids else theirs,
        "first_token": shown(tokenizer.decode([int(ids[0, 0])])),
        "n_leading_bos": int(leading.max()),
        "tokenizer": type(tokenizer).__name__,
        "tokenizer_name": getattr(tokenizer, "name_or_path", None),
    }


def doubts(
    tokenizer: Any, begun: Opening, ids: Int[Tensor, "window position"], keep: Bool[Tensor, "window position"]
) -> list[str]:
    """Warnings, a line each: BOS twice, BOS missing, windows longer than the tokenizer says its model can take."""
    leading = _leading(_bos_id(tokenizer, begun), ids, keep)
    found = []
    if leading.max() > 1:
        remedy = "take the literal BOS out of the text, or use --bos never"
        found.append(f"a window begins with {int(leading.max())} BOS tokens: {remedy}")
    if begun.native and (ids[:, 0] != begun.native[0]).any():
        found.append("the tokenizer would put BOS in front, but windows of this run begin without it: use --bos auto")
    length, limit = ids.shape[1], tokenizer.model_max_length
    if limit < _SANE_LENGTH and length > limit:
        found.append(f"windows of {length} tokens exceed the tokenizer's maximum of {limit}: give a smaller --seq-len")
    return found


def _bos_id(tokenizer: Any, begun: Opening) -> int | None:
    return begun.ids[0] if begun.ids else tokenizer.bos_token_id


def _leading(
    bos_id: int | None, ids: Int[Tensor, "window position"], keep: Bool[Tensor, "window position"]
) -> Int[Tensor, "window"]:
    """How many BOS tokens each window begins with."""
    # A BOS that doubles as padding must not be counted in the padding: `keep` ends the run.
    return ((ids == (-1 if bos_id is None else bos_id)) & keep).long().cumprod(dim=1).sum(dim=1)
