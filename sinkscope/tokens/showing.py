"""A token's text made safe and readable for any terminal, table or figure."""

import re
import unicodedata

ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\"}

# Printable to Python, yet seen by nobody: joiners, fillers and variation selectors.
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

BYTE = re.compile(r"\\x[89a-f][0-9a-f]")
"""A byte as reports write it."""


def visible_text(text: bytes | str, *, ascii_only: bool = False) -> str:
    r"""The text on one line, with nothing in it that a terminal obeys, hides or reorders.

    A space is ␣ (\s with `ascii_only`). Line breaks and tabs are \n, \r and \t; other ASCII controls are \x1b,
    everything else that cannot be seen (zero width, bidi overrides, no-break spaces) is \u202e or \U000e0001,
    and a byte that is not UTF-8 is \xe3. A backslash is doubled, so no escape can be mistaken for text.
    A combining mark in front, which would fall on the cell before, sits on a dotted circle. With `ascii_only`
    every other character is escaped as well. Markup of any library is left as it is.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    return _on_a_circle("".join(_visible(character, ascii_only=ascii_only) for character in text))


def visible_token(text: str, *, ascii_only: bool = False) -> str:
    r"""A token as a report has it, as `visible_text` shows it.

    A byte that is no whole character stands as \xe3 in a report already, and is not escaped once more.
    """
    parts = re.split(f"({BYTE.pattern})", text)
    return _on_a_circle(
        "".join(
            part if index % 2 else "".join(_visible(character, ascii_only=ascii_only) for character in part)
            for index, part in enumerate(parts)
        )
    )


def _on_a_circle(shown: str) -> str:
    """With a circle under a mark in front; a circle of the text's own under one is escaped."""
    if _is_mark(shown[:1]):
        return f"◌{shown}"
    return f"\\u25cc{shown[1:]}" if shown[:1] == "◌" and _is_mark(shown[1:2]) else shown


def _is_mark(character: str) -> bool:
    return unicodedata.category(character or " ").startswith("M")


def _visible(character: str, *, ascii_only: bool) -> str:
    if character == " ":
        return r"\s" if ascii_only else "␣"
    if character in ESCAPES:
        return ESCAPES[character]
    if character.isascii() and character.isprintable():
        return character
    seen = character.isprintable() and character != "␣" and not INVISIBLE.match(character)
    return character if seen and not ascii_only else _escaped(ord(character))


def _escaped(point: int) -> str:
    if 0xDC80 <= point <= 0xDCFF:  # How Python carries a byte that it could not decode.
        return f"\\x{point - 0xDC00:02x}"
    if point < 0x80:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
