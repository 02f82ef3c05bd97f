"""What documents gave: which windows were taken of them, what was left over, and what has to be said of it."""

import itertools
from collections import Counter
from dataclasses import dataclass

from sinkscope.errors import TextError
from sinkscope.text.tokenizing import Encoded


@dataclass(frozen=True)
class Text:
    """A document's tokens, to its end or as far as they are needed, and the (start, stop) of its windows."""

    name: str
    many: bool
    encoded: Encoded
    spans: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        """How many tokens of it are known, without BOS."""
        return len(self.encoded.ids)


Window = tuple[Text, int, int]
"""A document's tokens and a window's (start, stop) in them."""


@dataclass(frozen=True)
class Found:
    """The texts that were read, how many sources were not (None: all to their ends), and how many rows were blank."""

    texts: list[Text]
    unread: int | None
    blank: int


def check_supply(found: Found, seq_len: int, begun: int, asked: int | None) -> None:
    """Raise TextError where texts are too short for a window, or give fewer than `asked` (None: any number will do)."""
    texts = found.texts
    if not texts:
        raise TextError(f"all {found.blank} rows hold nothing but white space: give a table with some text")
    named = sorted((text for text in texts if not text.many), key=lambda text: text.length)
    # Of many documents some may be too short, but not all.
    longest = max(texts, key=lambda text: text.length)
    for text in [*named, *([] if any(text.spans for text in texts) else [longest])]:
        length = text.length + begun
        has = f"{text.name} has {length} token{'s' * (length != 1)}{' with BOS' if begun else ''}"
        if text is longest and text.many:
            has = f"the longest of {len(texts)} document{'s' * (len(texts) != 1)}, {has}"
        if length < 2:
            raise TextError(f"{has}, and at least 2 are needed: give more text")
        if not text.spans:
            advice = f"give more text or --seq-len {length}"
            raise TextError(f"{has}, fewer than one window of {seq_len}: {advice}")
    available = sum(len(text.spans) for text in texts)
    if asked is not None and available < asked:
        gives = f"the text gives {available} windows of {seq_len} tokens, fewer than the {asked} asked for"
        raise TextError(f"{gives}: give more text, a smaller --seq-len, or ask for {available}")


def by_turns(texts: list[Text], count: int | None) -> list[Window]:
    """The first `count` windows, one of each document in turn."""
    turns = itertools.zip_longest(*([(text, *span) for span in text.spans] for text in texts))
    return list(itertools.islice((window for turn in turns for window in turn if window), count))


def supply(found: Found, taken: list[Window]) -> dict[str, object]:
    """What there was and what was taken of it; None where not everything was read and tokenised."""
    texts = found.texts
    known = found.unread is None and all(text.encoded.complete for text in texts)
    changed = any(text.encoded.reading.line_endings_changed for text in texts)
    used = Counter(text.name for text, _, _ in taken)
    return {
        "windows": len(taken),
        "windows_available": sum(len(text.spans) for text in texts) if known else None,
        "tokens_total": sum(text.length for text in texts) if known else None,
        "tokens_dropped": sum(_remainder(text) for text in texts) if known else None,
        "documents_read": len(texts),
        "documents_too_short": sum(not text.spans for text in texts),
        "rows_blank": found.blank,
        "documents": [_document_supply(text, used[text.name]) for text in texts if text.name in used],
        "line_endings": "normalised to LF" if changed else "LF, as given",
    }


def _document_supply(text: Text, windows: int) -> dict[str, object]:
    reading, complete = text.encoded.reading, text.encoded.complete
    return {
        "name": text.name,
        "sha256": reading.sha256,
        "sha256_of": f"all {reading.size} bytes" if reading.whole else f"the first {reading.size} bytes",
        "encoding": reading.encoding,
        "tokens": text.length if complete else None,
        "tokens_dropped": _remainder(text) if complete else None,
        "windows": windows,
        "tokens_measured": windows * (text.spans[0][1] - text.spans[0][0]),
    }


def _remainder(text: Text) -> int:
    """Tokens after the last whole window."""
    return text.length - (text.spans[-1][1] if text.spans else 0)


def left_out(found: Found, seq_len: int) -> list[str]:
    """The warning that documents gave no window; a file or prompt that gives none is refused instead."""
    short = sum(not text.spans for text in found.texts)
    if not short:
        return []
    what = f"{short:,} of {len(found.texts):,} documents {'is' if short == 1 else 'are'} shorter than"
    return [f"{what} one window of {seq_len:,} tokens and {'was' if short == 1 else 'were'} left out"]


def unused(unread: int | None, number: int) -> list[str]:
    """The warning that texts were not read, because those before them gave all the windows."""
    # The rows of a table are there to choose from, but a file or prompt was meant.
    return [f"{unread} of {number} texts were not read: ask for more windows"] if unread else []
