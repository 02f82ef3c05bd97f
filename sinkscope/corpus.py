"""Text to windows of tokens: cut without crossing documents, begun as the tokenizer would, and told in full."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sinkscope.bos import Opening, bos_facts, doubts, opening
from sinkscope.documents import Document, read_documents
from sinkscope.errors import TextError

__all__ = ["Document", "Windows", "from_ids", "read_documents", "windows"]

_PIECE = 1 << 19
"""Characters: a text several times as long is not tokenised to its end for the sake of a few windows."""


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, padded to one length.

    documents: the name of each window's document. starts: the offset in its document, in tokens without BOS, of the
    window's first text token. provenance: all that is needed to cut the same windows again.
    """

    ids: Int[Tensor, "window position"]
    keep: Bool[Tensor, "window position"]
    documents: tuple[str, ...]
    starts: tuple[int, ...]
    provenance: dict[str, object]


@dataclass(frozen=True)
class _Tokens:
    """A document's tokens, to its end or as far as they are needed, and the (start, stop) of its windows."""

    document: Document
    ids: Int[Tensor, "token"]
    complete: bool
    spans: tuple[tuple[int, int], ...]


_Window = tuple[_Tokens, int, int]
"""A document's tokens and a window's (start, stop) in them."""


def windows(
    tokenizer: Any,
    documents: Sequence[Document],
    *,
    seq_len: int = 512,
    count: int | None = 4,
    explicit: bool = False,
    bos: str = "auto",
    whole: bool = False,
) -> Windows:
    """The first windows of each document, then the second of each, and so on until there are `count` (None: all).

    A window is `seq_len` tokens with BOS; a shorter prompt is one window of its own length, padded on the right.
    bos: "auto" begins as the tokenizer itself does, "always" with its BOS token, "never" with none.
    explicit: fewer than `count` windows are an error, not simply what there is.
    whole: tokenise very long documents to their end too, so that their length is known (BPE alone can stop early).
    Raises TextError where the text does not give what is asked for.
    """
    begun = opening(tokenizer, bos)
    room = _room(seq_len, count, len(begun.ids))
    if not documents:
        raise ValueError("expected at least one document, got none")
    needed = None if whole or count is None else count * room
    texts = [_tokens(tokenizer, document, room, needed) for document in documents]
    _check_supply(texts, seq_len, len(begun.ids), count if explicit else None)
    taken = _by_turns(texts, count)
    ids, keep = _batch(tokenizer, begun, taken)
    provenance = {
        "seq_len": seq_len,
        **_supply(texts, taken),
        **bos_facts(tokenizer, begun, ids, keep),
        "warnings": _unused(texts, taken) + doubts(tokenizer, begun, ids, keep),
    }
    names = tuple(text.document.name for text, _, _ in taken)
    return Windows(ids, keep, names, tuple(start for _, start, _ in taken), provenance)


def from_ids(ids: Tensor, keep: Tensor | None = None) -> Windows:
    """Windows from token ids [window, position] of one's own, with `keep` false at padding on the left or the right.

    Raises ValueError for anything else: it is the caller's data, so shapes are checked here and not by annotation.
    """
    if ids.ndim != 2 or 0 in ids.shape or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"expected integer ids [window, position], got {ids.dtype} {list(ids.shape)}")
    if keep is None:
        keep = torch.ones_like(ids, dtype=torch.bool)
    if keep.shape != ids.shape or keep.dtype != torch.bool:
        raise ValueError(f"expected a bool keep {list(ids.shape)}, got {keep.dtype} {list(keep.shape)}")
    if (ids < 0).any():
        raise ValueError(f"expected ids of at least 0, got {int(ids.min())}: pad with any id and say where in keep")
    if (keep.sum(dim=1) < 2).any():
        raise ValueError("expected at least 2 tokens to keep in every window, got fewer")
    if ((keep[:, 1:] != keep[:, :-1]).sum(dim=1) > 1).any():
        raise ValueError("expected padding on one side of each window, got gaps or both sides")
    number = len(ids)
    return Windows(
        ids=ids.long(),
        keep=keep,
        documents=("ids",) * number,
        starts=(0,) * number,
        provenance={"seq_len": ids.shape[1], "windows": number, "warnings": []},
    )


def _room(seq_len: int, count: int | None, begun: int) -> int:
    """How many tokens of text a window holds."""
    least = max(2, begun + 1)
    if seq_len < least:
        raise TextError(f"a window of {seq_len} tokens is too short: give --seq-len {least} or more")
    if count is not None and count < 1:
        raise TextError(f"{count} windows are nothing to measure: ask for 1 or more")
    return seq_len - begun


def _tokens(tokenizer: Any, document: Document, room: int, needed: int | None) -> _Tokens:
    ids, complete = _ids(tokenizer, document.text, needed)
    total = len(ids)
    if document.prompt and total <= room:
        return _Tokens(document, ids, complete, ((0, total),))
    spans = tuple((start, start + room) for start in range(0, total - room + 1, room))
    return _Tokens(document, ids, complete, spans)


def _ids(tokenizer: Any, text: str, needed: int | None) -> tuple[Int[Tensor, "token"], bool]:
    """The ids of a text and True; or, of a very long one, the first `needed` and False.

    Where a text is cut changes the tokens near the cut. So two prefixes are tokenised, one twice as long, and taken
    only when they agree on twice the tokens needed: what is taken stays far from both cuts.
    """
    if needed is None or not _merges(tokenizer):
        return _encoded(tokenizer, text), True
    length = max(_PIECE, 8 * needed)
    shorter = None
    while 2 * length < len(text):
        if shorter is None:
            shorter = _encoded(tokenizer, text[:length])
        longer = _encoded(tokenizer, text[: 2 * length])
        if _agreed(shorter, longer) >= 2 * needed:
            return longer[:needed], False
        shorter, length = longer, 2 * length
    return _encoded(tokenizer, text), True


def _merges(tokenizer: Any) -> bool:
    """Whether it is BPE, where a merge looks at its neighbours only and a cut is felt only near it.

    Unigram weighs whole texts: in a repetitive one, prefixes can agree with each other and not with the whole.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and type(backend.model).__name__ == "BPE"


def _encoded(tokenizer: Any, text: str) -> Int[Tensor, "token"]:
    # Not verbose: the text is cut into windows afterwards, so a remark on its length would be wrong.
    encoding = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return torch.tensor(encoding.input_ids, dtype=torch.int64)


def _agreed(one: Int[Tensor, "_"], other: Int[Tensor, "_"]) -> int:
    """How many ids two sequences have in common before they first differ."""
    both = min(len(one), len(other))
    differ = (one[:both] != other[:both]).nonzero()
    return int(differ[0]) if len(differ) else both


def _check_supply(texts: list[_Tokens], seq_len: int, begun: int, asked: int | None) -> None:
    for text in sorted(texts, key=lambda text: len(text.ids)):
        length = len(text.ids) + begun
        has = f"{text.document.name} has {length} token{'s' * (length != 1)}{' with BOS' if begun else ''}"
        if length < 2:
            raise TextError(f"{has}, and at least 2 are needed: give more text")
        if not text.spans:
            advice = f"give more text or --seq-len {length}"
            raise TextError(f"{has}, fewer than one window of {seq_len}: {advice}")
    available = sum(len(text.spans) for text in texts)
    if asked is not None and available < asked:
        gives = f"the text gives {available} windows of {seq_len} tokens, fewer than the {asked} asked for"
        raise TextError(f"{gives}: give more text, a smaller --seq-len, or ask for {available}")


def _by_turns(texts: list[_Tokens], count: int | None) -> list[_Window]:
    """The first `count` windows, one of each document in turn."""
    turns = zip_longest(*([(text, *span) for span in text.spans] for text in texts))
    return list(islice((window for turn in turns for window in turn if window), count))


def _batch(
    tokenizer: Any, begun: Opening, taken: list[_Window]
) -> tuple[Int[Tensor, "window position"], Bool[Tensor, "window position"]]:
    """The windows' ids, each with its opening, padded on the right to the longest; and where they are no padding."""
    head = torch.tensor(begun.ids, dtype=torch.int64)
    rows = [torch.cat([head, text.ids[start:stop]]) for text, start, stop in taken]
    ids = pad_sequence(rows, batch_first=True, padding_value=_pad_id(tokenizer))
    return ids, torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]


def _pad_id(tokenizer: Any) -> int:
    """Any id would do, since padding is never looked at; an embedding has to exist for it."""
    return next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)


def _supply(texts: list[_Tokens], taken: list[_Window]) -> dict[str, object]:
    """What there was and what was taken of it; None where a text was not tokenised to its end."""
    known = all(text.complete for text in texts)
    changed = any(text.document.line_endings_changed for text in texts)
    return {
        "windows": len(taken),
        "windows_available": sum(len(text.spans) for text in texts) if known else None,
        "tokens_total": sum(len(text.ids) for text in texts) if known else None,
        "tokens_dropped": sum(_remainder(text) for text in texts) if known else None,
        "documents": [_document_supply(text, sum(of is text for of, _, _ in taken)) for text in texts],
        **({"line_endings": "normalised to LF"} if changed else {}),
    }


def _document_supply(text: _Tokens, windows: int) -> dict[str, object]:
    return {
        "name": text.document.name,
        "sha256": hashlib.sha256(text.document.text.encode()).hexdigest(),
        "tokens": len(text.ids) if text.complete else None,
        "tokens_dropped": _remainder(text) if text.complete else None,
        "windows": windows,
    }


def _remainder(text: _Tokens) -> int:
    """Tokens after the last whole window."""
    return len(text.ids) - text.spans[-1][1]


def _unused(texts: list[_Tokens], taken: list[_Window]) -> list[str]:
    # Turns go round: as soon as there are as many windows as documents, every document has one.
    left = len(texts) - len(taken)
    return [f"{left} of {len(texts)} documents gave no window: ask for {len(texts)} or more"] if left > 0 else []
