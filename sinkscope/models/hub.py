"""Brings a Hub repository onto this disk: what it holds is looked at first, so that refusals come before downloads."""

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from json import JSONDecodeError
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from sinkscope.errors import ModelNotFoundError
from sinkscope.models.bars import bar
from sinkscope.models.contents import ADAPTER, adapter_refusal, chosen_gguf, is_adapter, require_config, wanted
from sinkscope.models.failures import one_line, unavailable
from sinkscope.models.redacting import without_secrets
from sinkscope.models.snapshots import Request, Snapshot, cached_folder, of_sibling, on_disk, sibling
from sinkscope.models.weights import index_file, missing_shard, weight_files
from sinkscope.progress import Progress, silent

_SECONDS = 10.0
_NO_PLACE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EIO,
}


def fetch(request: Request, *, local_files_only: bool, progress: Progress) -> Snapshot:
    """The repository from the Hub, or from the Hub's cache on this disk if the Hub is out of reach.

    Raises ModelNotFoundError for a repository that cannot be fetched or loaded, and what huggingface_hub raises
    when it is asked about one.
    """
    if local_files_only:
        return _found(on_disk(request), LocalEntryNotFoundError(f"{request.id} is not in the cache"))
    api = HfApi(token=request.token)
    progress("asking the Hub", 0, None)
    try:
        asked, info = _ask(api, request)
    except Exception as error:
        if not unavailable(error):
            raise
        unasked = error
    else:
        snapshot = _download(api, asked, info, progress)
        return snapshot if asked is request else of_sibling(snapshot, request)
    snapshot = _found(on_disk(request), unasked)
    if isinstance(unasked, OfflineModeIsEnabled):
        return snapshot
    note = "the Hub could not be reached: what an earlier run had downloaded was used"
    return replace(snapshot, notes=(*snapshot.notes, note))


def _found(snapshot: Snapshot | None, otherwise: Exception) -> Snapshot:
    if snapshot is None:
        raise otherwise
    return snapshot


def _ask(api: HfApi, request: Request) -> tuple[Request, ModelInfo]:
    """What the Hub says about a repository, or about its sibling in the transformers format if only that can load."""
    info = _info(api, request)
    names = _names(info)
    if request.gguf_file is not None or "config.json" in names or is_adapter(names):
        return request, info
    other = sibling(request)
    try:
        found = _info(api, other)
    except GatedRepoError:
        with one_line(other.id, request.token):
            raise
    except RepositoryNotFoundError:
        return request, info
    return (other, found) if "config.json" in _names(found) else (request, info)


def _info(api: HfApi, request: Request) -> ModelInfo:
    try:
        # A request without the client's retries, which would hold up an unplugged machine for half a minute.
        return api.model_info(request.id, revision=request.revision, timeout=_SECONDS)
    except (JSONDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError):
        endpoint = without_secrets(str(api.endpoint), request.token)
    # A proxy's login page, most of the time.
    raise ModelNotFoundError(
        f"{request.id} could not be fetched: what answers at {endpoint} is not the Hub; check HF_ENDPOINT, and "
        "whether a proxy or a login page stands in between"
    )


def _download(api: HfApi, request: Request, info: ModelInfo, progress: Progress) -> Snapshot:
    # A refusal is about the repository that is fetched, which may be the sibling of the one that was named.
    with one_line(request.id, request.token), _stored(request):
        chosen, files = _meant(api, request, _names(info))
        folder = _snapshot(api, request, files, progress)
    return Snapshot(request.id, folder.name, folder, folder / chosen if chosen else None)


def _meant(api: HfApi, request: Request, names: list[str]) -> tuple[str | None, list[str]]:
    """The GGUF file that is meant, if one is, and all files that loading needs; refuses what cannot be loaded."""
    if request.gguf_file is None and is_adapter(names):
        raise adapter_refusal(_small(api, request, ADAPTER), request.id)
    if request.gguf_file is not None or "config.json" not in names:
        chosen = chosen_gguf(names, request.gguf_file, request.id)
        if chosen is not None:
            return chosen, [chosen]
    require_config(names, f"{request.id} is a repository")
    weights = weight_files(names, request.id, allow_pickle=request.allow_pickle)
    index = index_file(names, allow_pickle=request.allow_pickle)
    missing = None if index is None else missing_shard(_small(api, request, index), names, request.id)
    if missing is not None:
        raise ModelNotFoundError(f"{request.id} lacks {missing}, a part of its weights: use a complete checkpoint")
    return None, wanted(names, weights, code=request.trust_remote_code)


def _small(api: HfApi, request: Request, name: str) -> Path:
    """One file of a repository, ahead of the others."""
    return _snapshot(api, request, [name], silent) / name


def _snapshot(api: HfApi, request: Request, files: list[str], progress: Progress) -> Path:
    """The folder in the Hub's cache with these files of a repository in it."""
    path = api.snapshot_download(
        request.id,
        # By its own name, not by the commit it stands for: only then can the cache be asked for it later.
        revision=request.revision,
        # The client takes these for patterns, in which brackets and stars have a meaning.
        allow_patterns=[glob.escape(name) for name in files],
        cache_dir=request.cache_dir,
        tqdm_class=bar(progress),
    )
    return Path(path)


def _names(info: ModelInfo) -> list[str]:
    return [file.rfilename for file in info.siblings or []]


@contextmanager
def _stored(request: Request) -> Iterator[None]:
    """Within, an error about the disk is one about the Hub's cache."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        # Without what the error says itself, which may hold what was sent.
        raise ModelNotFoundError(
            f"{request.id} cannot be stored in {cached_folder(request)} ({os.strerror(error.errno)}): make room "
            "there, or choose another place with --cache-dir or HF_HOME"
        ) from None
