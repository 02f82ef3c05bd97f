"""Takes tokens and passwords out of whatever is about to be shown or kept."""

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{11,}")
_HEADER = re.compile(r"(authorization\W{1,5}(?:Bearer|Basic))\s+[^\s'\",;}]+", re.IGNORECASE)
# Elsewhere "basic" may be a word like any other: what follows has to look like a key.
_KEY = re.compile(r"\b(Bearer|Basic)\s+(?=[^\s'\",;}]*[0-9+/=_-])[^\s'\",;}]{12,}", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s'\"]+@")
_SHORTEST = 4
"""Characters of the shortest secret: whatever is shorter stands in every sentence by chance."""


def without_secrets(text: str, token: str | None = None) -> str:
    """The text with … for `token`, for the tokens of this user, for what looks like one, and for users in addresses."""
    for value in sorted(set(_values(token)), key=len, reverse=True):
        text = text.replace(value, "…")
    for header in (_HEADER, _KEY):
        text = header.sub(r"\1 …", text)
    return _USER.sub("…@", _TOKEN.sub("hf_…", text))


def _values(token: str | None) -> Iterator[str]:
    """Every secret that is known here, in the spellings that a message can have it in."""
    from huggingface_hub import constants  # noqa: PLC0415 - only who has something to say has to wait for this

    for secret in (token, os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")):
        yield from _spellings(secret)
    yield from _spellings(_content(Path(constants.HF_TOKEN_PATH)))
    address = urlsplit(constants.ENDPOINT)
    user, password = unquote(address.username or ""), unquote(address.password or "")
    yield from _spellings(password)
    if user or password:
        # What the client makes of them in a header.
        yield from _spellings(base64.b64encode(f"{user}:{password}".encode()).decode())


def _spellings(secret: str | None) -> Iterator[str]:
    plain = (secret or "").strip()
    if len(plain) >= _SHORTEST:
        yield plain
        yield quote(plain, safe="")


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
