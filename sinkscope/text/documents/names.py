"""Names of files and places as messages show them, safe on any terminal."""


def shown(text: str) -> str:
    """Text that is safe on a terminal and in a file: what does not print is written as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
