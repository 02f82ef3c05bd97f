"""Which files of a model hold its weights, whether all of them are there, and whether they may be opened."""

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sinkscope.errors import ModelNotFoundError

_SAFE = "model.safetensors"
_PICKLE = "pytorch_model.bin"
_INDEX = ".index.json"
# model.fp16.safetensors is a variant; consolidated.* doubles the weights in Mistral's own format.
_SAFE_FILE = re.compile(r"(?!consolidated|adapter_model)[^./]+\.safetensors")
_PICKLE_FILE = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_PICKLED = {".bin", ".pt", ".pth", ".ckpt"}


def weight_files(names: Iterable[str], where: str, *, allow_pickle: bool) -> list[str]:
    """The files among the names that hold the weights: safetensors, else pickles where those are allowed.

    Raises ModelNotFoundError if there are none, or pickles that are not allowed.
    """
    present = sorted(names)
    safe = [name for name in present if _SAFE_FILE.fullmatch(name)]
    if safe or _SAFE + _INDEX in present:
        return safe
    pickles = [name for name in present if _PICKLE_FILE.fullmatch(name)]
    if pickles and allow_pickle:
        return pickles
    if pickles:
        raise ModelNotFoundError(
            f"{where} has its weights only as {pickles[0]}, a pickle, which can run any code when it is opened: "
            "convert it to safetensors first, or pass --allow-pickle (allow_pickle=True) to read its tensors and "
            "refuse anything else in it"
        )
    other = next((name for name in present if PurePosixPath(name).suffix in _PICKLED and "/" not in name), None)
    found = f"no weights but {other}, which transformers does not load" if other else "no weights"
    raise ModelNotFoundError(f"{where} holds {found}: {_SAFE}, or its shards with an index, is needed")


def index_file(names: Iterable[str], *, allow_pickle: bool) -> str | None:
    """The index that tells which shards make up the weights; None if they are in one file."""
    present = set(names)
    for single in (_SAFE, _PICKLE) if allow_pickle else (_SAFE,):
        if single in present:
            return None
        if single + _INDEX in present:
            return single + _INDEX
    return None


def missing_shard(index: Path, names: Iterable[str], where: str) -> str | None:
    """The first shard that an index names and that is not among the names; None if all are.

    Raises ModelNotFoundError if the index is damaged, or names what is no file of weights.
    """
    present = set(names)
    return next((shard for shard in _shards(index, where) if shard not in present), None)


def lacking(directory: Path, where: str, *, allow_pickle: bool) -> str | None:
    """What a directory in the transformers format lacks of its weights; None if nothing.

    Raises ModelNotFoundError if it has pickles only, and those are not allowed.
    """
    names = files_in(directory)
    index = index_file(names, allow_pickle=allow_pickle)
    if index is not None:
        return missing_shard(directory / index, names, where)
    if not any(_SAFE_FILE.fullmatch(name) or _PICKLE_FILE.fullmatch(name) for name in names):
        return "its weights"
    weights = weight_files(names, where, allow_pickle=allow_pickle)
    if all("-of-" in name for name in weights):
        return (_SAFE if weights[0].endswith(".safetensors") else _PICKLE) + _INDEX
    return None


def files_in(directory: Path) -> list[str]:
    """The names of what a directory holds, without links that lead nowhere."""
    return [entry.name for entry in directory.iterdir() if entry.exists()]


def _shards(index: Path, where: str) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFoundError(f"{where} has a damaged {index.name}: download it again") from error
    pattern = _SAFE_FILE if index.name.startswith(_SAFE) else _PICKLE_FILE
    for shard in shards:
        # A shard of another name could be a pickle behind an index of safetensors, or lie outside the folder.
        if not pattern.fullmatch(str(shard)):
            raise ModelNotFoundError(f"{where} has an {index.name} that names {shard!r}, which is no file of weights")
    return shards
