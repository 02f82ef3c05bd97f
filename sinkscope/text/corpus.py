"""Text to windows of tokens: cut without crossing documents, begun as the tokenizer would, and told in full."""

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sinkscope.errors import TextError
from sinkscope.text import chat as chats
from sinkscope.text.bos import Opening, bos_facts, doubts, opening, own_bos
from sinkscope.text.documents import Document, Rows, read_documents
from sinkscope.text.lengths import length_facts
from sinkscope.text.supply import Found, Text, Window, by_turns, check_supply, left_out, supply, unused
from sinkscope.text.tokenizing import encode

__all__ = ["Document", "Rows", "Windows", "from_ids", "read_documents", "warned", "windows"]


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, each from column 0 on; behind the end of a shorter one, `keep` is false.

    A model is never shown that padding: windows of one length are run together.

    documents: the name of each window's document; no two documents have the same. starts: the offset in its document,
    in tokens without BOS, of the window's first text token. provenance: all that is needed to cut the same windows
    again. template: true at tokens that a chat template has added, where there is one.
    """

    ids: Int[Tensor, "window position"]
    keep: Bool[Tensor, "window position"]
    documents: tuple[str, ...]
    starts: tuple[int, ...]
    provenance: dict[str, object]
    template: Bool[Tensor, "window position"] | None = None


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """How documents become windows."""

    tokenizer: Any
    begun: Opening
    chat: chats.Chat | None
    room: int
    needed: int | None


def windows(
    tokenizer: Any,
    documents: Sequence[Document | Rows],
    *,
    seq_len: int = 512,
    count: int | None = 4,
    explicit: bool = False,
    bos: str = "auto",
    whole: bool = False,
    chat: bool = False,
) -> Windows:
    """The first windows of each document, then the second of each, and so on until there are `count` (None: all).

    A window is `seq_len` tokens with BOS; a shorter prompt is one window of its own length, padded on the right.
    Documents are read and tokenised as far as these windows need: where as many as `count` give a window, no more.
    bos: "auto" begins as the tokenizer itself does, "always" with its BOS token, "never" with none.
    explicit: fewer than `count` windows are an error, not simply what there is.
    whole: tokenise very long documents to their end too, so that their length is known.
    chat: put each document as one user turn into the tokenizer's chat template. The BOS of the template's own gives
    way to the one that the windows begin with, and to "never".
    Raises TextError where the text does not give what is asked for.
    """
    begun = opening(tokenizer, bos)
    template = chats.chat(tokenizer) if chat else None
    room = room_for_text(seq_len, count, len(begun.ids))
    if not documents:
        raise ValueError("expected at least one document, got none")
    # One more than the windows hold: a BOS can be taken away.
    needed = None if whole or count is None else count * room + 1
    cut = _Cut(tokenizer=tokenizer, begun=begun, chat=template, room=room, needed=needed)
    found = _texts(cut, documents, count)
    check_supply(found, seq_len, len(begun.ids), count if explicit else None)
    taken = by_turns(found.texts, count)
    ids, keep, added = _batch(cut, taken)
    provenance = {
        **length_facts(keep, seq_len),
        **supply(found, taken),
        "datasets": [dict(each.facts) for each in documents if isinstance(each, Rows) and each.facts],
        **({"chat": chats.chat_facts(tokenizer) | {"template_tokens": int(added.sum())}} if chat else {}),
        **bos_facts(tokenizer, begun, ids, keep, within="chat template" if chat else "text"),
        "warnings": [
            *unused(found.unread, len(documents)),
            *left_out(found, seq_len),
            *doubts(tokenizer, begun, ids, keep),
        ],
    }
    names = tuple(text.name for text, _, _ in taken)
    starts = tuple(start for _, start, _ in taken)
    return Windows(ids, keep, names, starts, provenance, template=added if chat else None)


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
    if (ids[keep] < 0).any():
        raise ValueError(f"expected ids of at least 0, got {int(ids.min())}: pad with any id and say where in keep")
    if (keep.sum(dim=1) < 2).any():
        raise ValueError("expected at least 2 tokens to keep in every window, got fewer")
    if ((keep[:, 1:] != keep[:, :-1]).sum(dim=1) > 1).any():
        raise ValueError("expected padding on one side of each window, got gaps or both sides")
    ids, keep = _from_column_0(ids.long(), keep)
    number = len(ids)
    document = {"name": "ids", "windows": number, "tokens_measured": int(keep.sum())}
    return Windows(
        ids=ids,
        keep=keep,
        documents=("ids",) * number,
        starts=(0,) * number,
        provenance=length_facts(keep) | {"windows": number, "documents": [document], "warnings": []},
    )


def _from_column_0(
    ids: Int[Tensor, "window position"], keep: Bool[Tensor, "window position"]
) -> tuple[Int[Tensor, "window longest"], Bool[Tensor, "window longest"]]:
    """The same windows without padding on the left, so that a column is a position in the text."""
    order = keep.long().sort(dim=1, descending=True, stable=True).indices
    longest = int(keep.sum(dim=1).max())
    return ids.gather(1, order)[:, :longest], keep.gather(1, order)[:, :longest]


def warned(windows: Windows, *more: str) -> Windows:
    """The same windows with some warnings more."""
    known = windows.provenance.get("warnings")
    warnings = [*(known if isinstance(known, list) else []), *more]
    return replace(windows, provenance=windows.provenance | {"warnings": warnings})


def room_for_text(seq_len: int, count: int | None, begun: int) -> int:
    """How many tokens of text a window holds."""
    least = max(2, begun + 1)
    if seq_len < least:
        raise TextError(f"a window of {seq_len} tokens is too short: give --seq-len {least} or more")
    if count is not None and count < 1:
        raise TextError(f"{count} windows are nothing to measure: ask for 1 or more")
    return seq_len - begun


def _texts(cut: _Cut, sources: Sequence[Document | Rows], count: int | None) -> Found:
    """Documents, up to the last of `count` that give a window."""
    texts: list[Text] = []
    names: set[str] = set()
    giving = blank = 0
    for unread, document in _walk(sources):
        if giving == count:
            return Found(texts, unread, blank)
        if _is_blank(document):
            blank += 1
            continue
        texts.append(_text(cut, document, _unlike(names, document.name)))
        names.add(texts[-1].name)
        giving += bool(texts[-1].spans)
    return Found(texts, None, blank)


def _walk(sources: Sequence[Document | Rows]) -> Iterator[tuple[int, Document]]:
    """Every document, with the number of sources of which nothing has been read before it."""
    for left, source in zip(range(len(sources), 0, -1), sources, strict=True):
        for place, document in enumerate([source] if isinstance(source, Document) else source):
            yield left - (place > 0), document


def _is_blank(document: Document) -> bool:
    """Whether it is a row with nothing in it, as tables of texts can have between paragraphs."""
    return document.many and isinstance(document.text, str) and not document.text.strip()


def _unlike(names: Container[str], name: str) -> str:
    """The name, with a number where another document has it: the same file can be given twice."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in names)


def _text(cut: _Cut, document: Document, name: str) -> Text:
    encoded = encode(cut.tokenizer, document, cut.needed, cut.chat)
    own = own_bos(cut.tokenizer, cut.begun)
    if cut.chat is not None and own and encoded.ids[: len(own)].tolist() == list(own):
        encoded = replace(encoded, ids=encoded.ids[len(own) :], template=encoded.template[len(own) :])
    total = len(encoded.ids)
    if document.prompt and total <= cut.room:
        spans: tuple[tuple[int, int], ...] = ((0, total),)
    else:
        spans = tuple((start, start + cut.room) for start in range(0, total - cut.room + 1, cut.room))
    return Text(name, document.many, encoded, spans)


def _batch(
    cut: _Cut, taken: list[Window]
) -> tuple[Int[Tensor, "window position"], Bool[Tensor, "window position"], Bool[Tensor, "window position"]]:
    """The windows' ids with their openings, padded on the right; where they are no padding; where a template's."""
    head = torch.tensor(cut.begun.ids, dtype=torch.int64)
    rows = [torch.cat([head, text.encoded.ids[start:stop]]) for text, start, stop in taken]
    ids = pad_sequence(rows, batch_first=True)
    keep = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    none = torch.zeros(len(head), dtype=torch.bool)
    added = [torch.cat([none, text.encoded.template[start:stop]]) for text, start, stop in taken]
    return ids, keep, pad_sequence(added, batch_first=True)
