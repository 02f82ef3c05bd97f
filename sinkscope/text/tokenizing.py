"""A document to its token ids, to its end or as far as a few windows need, with the same ids either way."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.text.chat import Chat, shared
from sinkscope.text.documents import Document, Reading

_PIECE = 1 << 16
"""Characters: a text more than twice as long is not tokenised to its end for the sake of a few windows."""

_SEAM = re.compile(r"[^\W_](?= )")
"""A letter or digit before a space: no usual token reaches over that."""

_OVER_A_SEAM = re.compile(r"[^\W_Ġ][ ▁Ġ]")


@dataclass(frozen=True)
class Encoded:
    """Token ids of a document or of its beginning, where they come from a chat template, and what was read for them."""

    ids: Int[Tensor, "token"]
    template: Bool[Tensor, "token"]
    complete: bool
    reading: Reading


def encode(tokenizer: Any, document: Document, needed: int | None = None, chat: Chat | None = None) -> Encoded:
    """All tokens of a document; or, of a very long one, the first of them, at least `needed`, and not complete.

    With a chat template, the tokens of the document in it.
    """
    if needed is not None:
        begun = _begun(tokenizer, document, needed, chat)
        if begun is not None:
            return begun
    read = document.beginning()
    ids = _ids(tokenizer, read.text if chat is None else chat.framed(read.text))
    return Encoded(ids, _template(chat, ids, whole=True), complete=True, reading=read.reading)


def _begun(tokenizer: Any, document: Document, needed: int, chat: Chat | None) -> Encoded | None:
    """The first tokens of a very long document; None where it has to be tokenised to its end.

    Where a text is cut changes the tokens near the cut. So two beginnings are tokenised, one twice as long. BPE merges
    neighbours, and a cut is felt only near it: the two have to agree on twice the tokens needed. Unigram and others
    weigh whole stretches, and in a repetitive text two beginnings can agree with each other and not with the whole:
    they are cut before a space, over which no token of the vocabulary reaches, and agree to the end of the shorter.
    """
    length = max(_PIECE, 8 * needed)
    read = document.beginning(2 * length + 1)
    merges = _merges(tokenizer)
    while len(read.text) > 2 * length and (merges or _keeps_to_words(tokenizer)):
        cut = _anywhere if merges else _at_a_seam
        ids = cut(tokenizer, read.text, length, needed, chat)
        if ids is not None:
            return Encoded(ids, _template(chat, ids, whole=False), complete=False, reading=read.reading)
        length *= 2
        read = document.beginning(2 * length + 1)
    return None


def _anywhere(tokenizer: Any, text: str, length: int, needed: int, chat: Chat | None) -> Int[Tensor, "token"] | None:
    shorter, longer = (_ids_of_part(tokenizer, text[:end], chat) for end in (length, 2 * length))
    half = shared(shorter, longer) // 2
    return longer[:half] if half >= needed else None


def _at_a_seam(tokenizer: Any, text: str, length: int, needed: int, chat: Chat | None) -> Int[Tensor, "token"] | None:
    ends = _seam(text, length), _seam(text, 2 * length)
    if not all(ends):
        return None
    shorter, longer = (_ids_of_part(tokenizer, text[:end], chat) for end in ends)
    return shorter if shared(shorter, longer) == len(shorter) >= needed else None


def _seam(text: str, length: int) -> int:
    """The last place in the second half of a length where a text can be cut between words; 0 where there is none."""
    seams = list(_SEAM.finditer(text, length // 2, length))
    return seams[-1].end() if seams else 0


def _merges(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and type(backend.model).__name__ == "BPE"


def _keeps_to_words(tokenizer: Any) -> bool:
    """Whether no token of the vocabulary reaches from a letter over a space."""
    return not any(_OVER_A_SEAM.search(piece) for piece in tokenizer.get_vocab() if isinstance(piece, str))


def _ids_of_part(tokenizer: Any, text: str, chat: Chat | None) -> Int[Tensor, "token"]:
    return _ids(tokenizer, text if chat is None else chat.framed(text, whole=False))


def _ids(tokenizer: Any, text: str) -> Int[Tensor, "token"]:
    # Not verbose: the text is cut into windows afterwards, so a remark on its length would be wrong.
    encoding = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return torch.tensor(encoding.input_ids, dtype=torch.int64)


def _template(chat: Chat | None, ids: Int[Tensor, "token"], *, whole: bool) -> Bool[Tensor, "token"]:
    return torch.zeros(len(ids), dtype=torch.bool) if chat is None else chat.marked(ids, whole=whole)
