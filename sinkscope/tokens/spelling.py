"""Which bytes of the text a token stands for, asked of the tokenizer itself and never of its offsets."""

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sinkscope.errors import TextError

Speller = Callable[[Sequence[int]], list[bytes]]

UNKNOWN = "\ufffd"
LONGEST_CHARACTER = 4


def spell(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The UTF-8 bytes that each token stands for; a window may begin or end with a part of a character.

    What the tokenizer makes of the text stays: a space in front of it, lower case, lost white space. Where only
    decoding tells, a token that leaves a character open gets one byte of it, whatever its share: enough to know
    in which characters a token has a part.
    Raises TextError when the tokenizer does not say what its tokens stand for.
    """
    return speller(tokenizer, ids)(ids)


def speller(tokenizer: Any, ids: Iterable[int]) -> Speller:
    """How to spell any window made of these ids: token by token where an alphabet explains all, else by decoding."""
    distinct = sorted(set(ids))
    named = zip(distinct, tokenizer.convert_ids_to_tokens(distinct), strict=True)
    # An id beyond the vocabulary has no piece; one that is no str cannot be read in an alphabet.
    pieces = {i: piece if isinstance(piece, str) else "" for i, piece in named}
    special = special_ids(tokenizer)
    known = {i: piece.encode() for i, piece in pieces.items() if i in special}
    plain = {i: piece for i, piece in pieces.items() if i not in special}
    for alphabet in (byte_level, sentence_piece):
        spelled = _spell_pieces(tokenizer, plain, alphabet)
        if spelled is not None:
            spelling = known | spelled
            return lambda window: [spelling[i] for i in window]
    return lambda window: _spell_window(tokenizer, window, known)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The tokens that stand for no text: flagged special when added, or among the tokenizer's special ids."""
    added = _added_tokens(tokenizer)
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def characters(spelling: Sequence[bytes]) -> tuple[str, ...]:
    """For each token the whole characters of which it holds at least one byte, given the bytes of a window."""
    owners = [token for token, part in enumerate(spelling) for _ in part]
    held = [""] * len(spelling)
    start = 0
    for character in b"".join(spelling).decode(errors="surrogateescape"):
        end = start + len(character.encode(errors="surrogateescape"))
        if not "\udc80" <= character <= "\udcff":
            for token in sorted(set(owners[start:end])):
                held[token] += character
        start = end
    return tuple(held)


def byte_level(piece: str) -> bytes:
    """A piece in the alphabet that GPT-2 gave to bytes; added tokens, outside of it, are themselves."""
    try:
        return bytes(BYTES[sign] for sign in piece)
    except KeyError:
        return piece.encode()


def sentence_piece(piece: str) -> bytes:
    """A piece with ▁ for the space, or one byte of a character without a piece of its own, as <0xE3>."""
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def _byte_signs() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(rest)}


BYTES = _byte_signs()


def _added_tokens(tokenizer: Any) -> dict[int, Any]:
    try:
        return dict(tokenizer.added_tokens_decoder)
    except NotImplementedError:
        # Mistral's own tokenizers do not tell; their special ids do.
        return {}


def _spell_pieces(tokenizer: Any, pieces: dict[int, str], alphabet: Callable[[str], bytes]) -> dict[int, bytes] | None:
    """What the alphabet makes of each piece, or None at the first one that the tokenizer decodes differently."""
    spelled = {i: alphabet(piece) for i, piece in pieces.items()}
    agreed = all(_agrees(tokenizer, i, piece, spelled[i]) for i, piece in pieces.items())
    return spelled if agreed else None


def _agrees(tokenizer: Any, token: int, piece: str, spelled: bytes) -> bool:
    """Whether the tokenizer decodes a token to these bytes, white space that it adds or strips aside.

    It is decoded twice in a row, because only the second shows how it reads inside of a text: the first keeps the
    mark of a piece that continues a word.
    """
    if UNKNOWN in piece:
        return False  # The piece has been decoded already, and what part of a character it is got lost.
    return _bare(_decode(tokenizer, [token, token]).encode()) == _bare(spelled * 2)


def _bare(text: bytes) -> str:
    return re.sub(f"{UNKNOWN}+", UNKNOWN, text.decode(errors="replace").replace(" ", ""))


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def _spell_window(tokenizer: Any, window: Sequence[int], known: dict[int, bytes]) -> list[bytes]:
    spelled: list[bytes] = []
    for is_known, grouped in itertools.groupby(window, known.__contains__):
        run = list(grouped)
        spelled += [known[i] for i in run] if is_known else _spell_by_decoding(tokenizer, run)
    decoded = [part for i, part in zip(window, spelled, strict=True) if i not in known]
    if decoded and not any(decoded):
        name = type(tokenizer).__name__
        raise TextError(f"{name} decodes tokens to nothing: repair it, or give token ids without a tokenizer")
    return spelled


def _spell_by_decoding(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """What each further token adds to the decoded text; where it leaves a character open, one byte of that.

    Only the tokens since the last addition but one are decoded, so the work grows linearly.
    """
    spelled: list[bytes] = []
    ends: list[int] = []
    context = done = 0
    for end in range(1, len(ids) + 1):
        before, after = _decode(tokenizer, ids[context:done]), _decode(tokenizer, ids[context:end])
        unchanged = sum(itertools.takewhile(bool, map(operator.eq, before, after)))
        added = after[unchanged:]
        waits = not added or added.endswith(UNKNOWN)
        if waits and end < len(ids) and end - done < LONGEST_CHARACTER:
            reached = ends[-1] if ends else 0
            ends.append(max(reached, len(added.rstrip(UNKNOWN).encode())) + 1 if added else reached)
            continue
        text = added.encode()
        spelled += [text[slice(*bounds)] for bounds in itertools.pairwise([0, *ends, len(text)])]
        context, done, ends = done, end, []
    return spelled
