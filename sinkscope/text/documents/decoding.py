"""Bytes to text: strictly, so that what is measured is the text that was meant, and no further than is needed."""

import codecs
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sinkscope.errors import TextError

ReadAt = Callable[[int, int], bytes]
"""From a start and a size to the bytes there; fewer than `size` only at the end."""

CHUNK = 1 << 18
"""Bytes that are read at once."""

# The UTF-32 marks come first: one of them begins with a UTF-16 mark.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}
_REMEDY = "convert it to UTF-8 text"


@dataclass(frozen=True)
class Reading:
    """What was read for a text: the first `size` bytes with this hash, or the `whole` of it."""

    size: int
    sha256: str
    whole: bool
    encoding: str
    line_endings_changed: bool


@dataclass(frozen=True)
class Excerpt:
    """A text or the beginning of it, with LF at the end of each line. Its reading can have gone further."""

    text: str
    reading: Reading


@dataclass(frozen=True)
class _Piece:
    content: bytes
    text: str
    encoding: str
    last: bool


def excerpt(name: str, read: ReadAt, characters: int | None = None) -> Excerpt:
    """The first characters of a text (None: all of them); reading ends soon after them.

    UTF-8, or UTF-16 and UTF-32 with a byte order mark, which is dropped. Raises TextError with the position of the
    first byte that is none of these, and for a NUL, which no text has.
    """
    texts: list[str] = []
    length = size = 0
    digest, ends = hashlib.sha256(), _to_line_feeds()
    for piece in _pieces(name, read):
        digest.update(piece.content)
        size += len(piece.content)
        texts.append(ends.decode(piece.text, piece.last))
        length += len(texts[-1])
        if characters is not None and length >= characters:
            break
    changed = ends.newlines not in {None, "\n"}
    reading = Reading(size, digest.hexdigest(), piece.last, piece.encoding, changed)
    return Excerpt("".join(texts)[:characters], reading)


def lines(name: str, read: ReadAt) -> Iterator[str]:
    """The lines of a text without their ends, one after the other; raises what `excerpt` raises."""
    ends = _to_line_feeds()
    begun: list[str] = []  # joined only at its end: a line can be as long as the file
    for piece in _pieces(name, read):
        first, *others = ends.decode(piece.text, piece.last).split("\n")
        begun.append(first)
        for line in others:
            yield "".join(begun)
            begun = [line]
    yield "".join(begun)


def _to_line_feeds() -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(None, translate=True)


def _pieces(name: str, read: ReadAt) -> Iterator[_Piece]:
    content = read(0, CHUNK)
    mark, encoding = next(((mark, name) for mark, name in _MARKS.items() if content.startswith(mark)), (b"", "utf-8"))
    decoder = codecs.getincrementaldecoder(encoding)()
    start, last = 0, False
    while not last:
        last = len(content) < CHUNK
        fresh = content if start else content.removeprefix(mark)
        # A character can begin in the bytes before: the decoder still holds those.
        begin = start + len(content) - len(fresh) - len(decoder.getstate()[0])
        text = _decoded(name, decoder, fresh, begin, encoding, last=last)
        yield _Piece(content, text, encoding, last)
        start += len(content)
        content = b"" if last else read(start, CHUNK)


def _decoded(
    name: str, decoder: codecs.IncrementalDecoder, content: bytes, begin: int, encoding: str, *, last: bool
) -> str:
    try:
        text = decoder.decode(content, last)
    except UnicodeDecodeError as error:
        wrong = f"{name} is not valid {encoding.upper()} at byte {begin + error.start}"
        raise TextError(f"{wrong}: {_REMEDY}") from None
    before, nul, _ = text.partition("\0")
    if nul:
        at = begin + len(before.encode(encoding))
        raise TextError(f"{name} has a NUL at byte {at}, so it is binary or UTF-16: {_REMEDY}")
    return text
