"""What the files of a model's folder say about it, local or on the Hub, before any of them is opened."""

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sinkscope.errors import ModelNotFoundError

ADAPTER = "adapter_config.json"
"""What makes a folder without a config.json an adapter."""

UNAPPLIED = {"subfolder": ADAPTER}
"""Where transformers is told to look for an adapter: below a file, where there is none.

Otherwise it applies one that lies beside a model's weights where `peft` is installed, and none where it is not.
"""

_TALK = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
_POINTER = b"version https://git-lfs.github.com/spec/"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def chosen_gguf(names: Iterable[str], gguf_file: str | None, where: str) -> str | None:
    """The GGUF file that is meant: the one asked for, or the only one; None if there is none at all.

    Raises ModelNotFoundError when the one asked for is missing or a part of a model, or several would do.
    """
    present = sorted(name for name in names if name.endswith(".gguf"))
    listing = ", ".join(present[:8]) + (", …" if len(present) > 8 else "")
    if gguf_file is not None:
        if gguf_file not in present:
            raise ModelNotFoundError(f"{where} has no file {gguf_file}: its GGUF files are {listing or 'none'}")
        require_unsplit(gguf_file)
        return gguf_file
    if present and len({_PART.sub("", name) for name in present}) == 1:
        require_unsplit(present[0])
    if len(present) > 1:
        raise ModelNotFoundError(f"{where} holds several GGUF files: choose one with --gguf-file: {listing}")
    return present[0] if present else None


def split_refusal(name: str, part: int, parts: int) -> ModelNotFoundError:
    """The refusal of one part of a model that was split, with the command that puts the parts together."""
    first = PurePosixPath(_PART.sub(f"-00001-of-{parts:05}.gguf", name)).name
    return ModelNotFoundError(
        f"{name} is part {part} of {parts} of a model: merge the parts with llama.cpp's "
        f"`llama-gguf-split --merge {first} whole.gguf` and give whole.gguf"
    )


def require_unsplit(name: str) -> None:
    """Raise ModelNotFoundError if the name is that of one part of a model."""
    part = _PART.search(name)
    if part is not None and int(part[2]) > 1:
        raise split_refusal(name, int(part[1]), int(part[2]))


def is_adapter(names: Iterable[str]) -> bool:
    """Whether the names are those of a PEFT adapter, which is no model without its base."""
    present = set(names)
    return ADAPTER in present and "config.json" not in present


def adapter_refusal(adapter_config: Path, name: str) -> ModelNotFoundError:
    """The refusal of an adapter, which names the base model that its adapter_config.json states."""
    try:
        base = json.loads(adapter_config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    if not isinstance(base, str) or not base.strip():
        return ModelNotFoundError(f"{name} is a PEFT adapter: merge it into its base model and give that")
    return ModelNotFoundError(
        f"{name} is a PEFT adapter of {base}: merge it into that (merge_and_unload, save_pretrained) and give the "
        f"result, or measure {base}"
    )


def require_config(names: Iterable[str], where: str) -> None:
    """Raise ModelNotFoundError if there is no config.json among the names."""
    if "config.json" not in set(names):
        raise ModelNotFoundError(f"{where} without a config.json: give a model in the transformers format")


def left_out(names: Iterable[str]) -> list[str]:
    """The note about an adapter beside the weights of a whole model, which many have already been merged into."""
    if ADAPTER not in set(names):
        return []
    note = (
        f"the adapter of {ADAPTER} is not applied to the weights beside it: merge it (merge_and_unload) to measure it"
    )
    return [note]


def require_content(directory: Path, names: Iterable[str], where: str, remedy: str) -> None:
    """Raise ModelNotFoundError if one of the files is the pointer that Git LFS puts in a file's place."""
    pointer = next((name for name in sorted(names) if is_pointer(directory / name)), None)
    if pointer is not None:
        raise ModelNotFoundError(f"{where}: {pointer} is a Git LFS pointer and not the file itself: {remedy}")


def is_pointer(path: Path) -> bool:
    """Whether a file holds a few lines about a large file instead of its content."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def wanted(names: Iterable[str], weights: Iterable[str], *, code: bool) -> list[str]:
    """The files of a repository that loading it needs beside its weights; its Python files only if they may run."""
    kept = set(weights)
    return [
        name
        for name in names
        if name in kept or (code and name.endswith(".py")) or ("/" not in name and PurePosixPath(name).suffix in _TALK)
    ]
