"""Brings a Hub repository onto this disk: what it holds is looked at first, so that refusals come before downloads."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

from sinkscope.models.bars import bar
from sinkscope.models.contents import chosen_gguf, require_config, require_safetensors, wanted
from sinkscope.models.failures import one_line, out_of_reach
from sinkscope.progress import Progress

_SECONDS = 10.0


@dataclass(frozen=True)
class Request:
    """A repository, and how it is asked for."""

    id: str
    revision: str | None
    gguf_file: str | None
    trust_remote_code: bool
    cache_dir: str | None
    token: str | None


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit on this disk; `gguf` is the file in it that is meant, if one is."""

    id: str
    revision: str
    directory: Path
    gguf: Path | None
    notes: tuple[str, ...] = ()


def fetch(request: Request, *, local_files_only: bool, progress: Progress) -> Snapshot:
    """The repository from the Hub, or from the Hub's cache on this disk if the Hub is out of reach.

    Raises ModelNotFoundError for a repository that cannot be fetched or loaded, and what huggingface_hub raises
    when it is asked about one.
    """
    if local_files_only:
        return _cached(request)
    api = HfApi(token=request.token)
    try:
        progress("asking the Hub", 0, None)
        asked, info = _ask(api, request)
    except Exception as error:
        offline = isinstance(error, OfflineModeIsEnabled)
        snapshot = next(_on_disk(request), None) if offline or out_of_reach(error) else None
        if snapshot is None:
            raise
        note = "the Hub could not be reached: what an earlier run had downloaded was used"
        return snapshot if offline else replace(snapshot, notes=(*snapshot.notes, note))
    snapshot = _download(api, asked, info, progress)
    return snapshot if asked is request else _noted(snapshot, request)


def _ask(api: HfApi, request: Request) -> tuple[Request, ModelInfo]:
    """What the Hub says about a repository, or about its sibling in the transformers format if only that can load."""
    # A request without the client's retries, which would hold up an unplugged machine for half a minute.
    info = api.model_info(request.id, revision=request.revision, timeout=_SECONDS)
    if request.gguf_file is not None or "config.json" in _names(info):
        return request, info
    sibling = _sibling(request)
    try:
        other = api.model_info(sibling.id, timeout=_SECONDS)
    except RepositoryNotFoundError:
        return request, info
    return (sibling, other) if "config.json" in _names(other) else (request, info)


def _download(api: HfApi, request: Request, info: ModelInfo, progress: Progress) -> Snapshot:
    names = _names(info)
    chosen = _meant(request, names)
    if chosen is None:
        require_config(names, f"{request.id} is a repository")
        require_safetensors(names, request.id)
    # A refusal is about the repository that is fetched, which may be the sibling of the one that was named.
    with one_line(request.id):
        path = api.snapshot_download(
            request.id,
            # By its own name, not by the commit it stands for: only then can the cache be asked for it later.
            revision=request.revision,
            allow_patterns=[chosen] if chosen else wanted(names, code=request.trust_remote_code),
            cache_dir=request.cache_dir,
            tqdm_class=bar(progress),
        )
    folder = Path(path)
    return Snapshot(request.id, folder.name, folder, folder / chosen if chosen else None)


def _meant(request: Request, names: list[str]) -> str | None:
    if request.gguf_file is None and "config.json" in names:
        return None
    return chosen_gguf(names, request.gguf_file, request.id)


def _names(info: ModelInfo) -> list[str]:
    return [file.rfilename for file in info.siblings or []]


def _sibling(request: Request) -> Request:
    """The same model in the transformers format, as meta-llama/Llama-2-7b has in meta-llama/Llama-2-7b-hf."""
    return replace(request, id=f"{request.id}-hf", revision=None)


def _noted(snapshot: Snapshot, request: Request) -> Snapshot:
    note = f"{request.id} is not in the transformers format: {snapshot.id} was used instead"
    return replace(snapshot, notes=(note, *snapshot.notes))


def _cached(request: Request) -> Snapshot:
    snapshot = next(_on_disk(request), None)
    if snapshot is None:
        raise LocalEntryNotFoundError(f"{request.id} is not in the cache")
    return snapshot


def _on_disk(request: Request) -> Iterator[Snapshot]:
    """What the Hub's cache on this disk holds of the repository or its transformers sibling."""
    key = request.gguf_file or "config.json"
    for candidate in (request, _sibling(request)):
        path = try_to_load_from_cache(candidate.id, key, cache_dir=candidate.cache_dir, revision=candidate.revision)
        if isinstance(path, str):
            folder = Path(path).parents[key.count("/")]
            found = Snapshot(candidate.id, folder.name, folder, Path(path) if request.gguf_file else None)
            yield found if candidate is request else _noted(found, request)
