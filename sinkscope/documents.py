"""Files, stdin and prompts to documents, read strictly: what is measured is the text that was meant, or nothing."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sinkscope.errors import TextError

# The UTF-32 marks come first: one of them begins with a UTF-16 mark.
_FOREIGN_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_REMEDY = "convert it to UTF-8 text"


@dataclass(frozen=True)
class Document:
    """A text and the name it goes by; a prompt need not fill a window."""

    name: str
    text: str
    prompt: bool = False
    line_endings_changed: bool = False


def read_documents(paths: Sequence[str | Path], prompts: Sequence[str] = ()) -> list[Document]:
    """Files, `-` for stdin, then prompts; with neither, the built-in sample.

    UTF-8 only. A byte order mark is dropped and line endings become LF on every platform. Anything that cannot be
    read, is not text or holds nothing but white space raises TextError.
    """
    if not paths and not prompts:
        sample = resources.files("sinkscope").joinpath("data/sample.txt").read_bytes()
        return [_document("built-in sample", sample)]
    files = [_document("stdin" if str(path) == "-" else shown(str(path)), _content(path)) for path in paths]
    # Arguments that were not UTF-8 arrive with surrogates in them: decoding refuses them as it does in a file.
    typed = [
        _document(f"prompt {number}", prompt.encode("utf-8", "surrogatepass"), prompt=True)
        for number, prompt in enumerate(prompts, 1)
    ]
    return files + typed


def shown(text: str) -> str:
    """Text that is safe on a terminal and in a file: what does not print is written as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _content(path: str | Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a path with a NUL in it, or a closed stdin, is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"cannot read {shown(str(path))}: {reason}: give a readable UTF-8 file") from None


def _document(name: str, content: bytes, *, prompt: bool = False) -> Document:
    text = _decoded(name, content)
    if not text.strip():
        raise TextError(f"{name} is empty or only white space: give some text")
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return Document(name, plain, prompt=prompt, line_endings_changed=plain != text)


def _decoded(name: str, content: bytes) -> str:
    for mark, encoding in _FOREIGN_MARKS.items():
        if content.startswith(mark):
            raise TextError(f"{name} is {encoding}: {_REMEDY}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{name} is not valid UTF-8 at byte {error.start}: {_REMEDY}") from None
    if "\0" in text:
        raise TextError(f"{name} has a NUL at byte {content.index(0)}, so it is binary or UTF-16: {_REMEDY}")
    return text.removeprefix("\ufeff")
