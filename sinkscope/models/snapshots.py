"""What lies of a repository in the Hub's cache on this disk, and whether it is whole."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from sinkscope.errors import ModelNotFoundError
from sinkscope.models.contents import chosen_gguf
from sinkscope.models.weights import lacking


@dataclass(frozen=True)
class Request:
    """A repository, and how it is asked for."""

    id: str
    revision: str | None
    gguf_file: str | None
    trust_remote_code: bool
    allow_pickle: bool
    cache_dir: str | None
    token: str | None = field(repr=False)


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit on this disk; `gguf` is the file in it that is meant, if one is."""

    id: str
    revision: str
    directory: Path
    gguf: Path | None
    notes: tuple[str, ...] = ()


def sibling(request: Request) -> Request:
    """The same model in the transformers format, as meta-llama/Llama-2-7b has in meta-llama/Llama-2-7b-hf."""
    return replace(request, id=f"{request.id}-hf", revision=None)


def of_sibling(snapshot: Snapshot, request: Request) -> Snapshot:
    """The sibling's snapshot, with a note that tells what was used in place of what was asked for."""
    note = f"{request.id} is not in the transformers format: {snapshot.id} was used instead"
    if request.revision is not None:
        note += f", at its default branch, since the revision {request.revision} is one of {request.id}"
    return replace(snapshot, notes=(note, *snapshot.notes))


def on_disk(request: Request) -> Snapshot | None:
    """What the Hub's cache holds of the repository or its transformers sibling; None if nothing.

    Raises ModelNotFoundError, with what is missing, if an earlier download was broken off.
    """
    broken_off: ModelNotFoundError | None = None
    for candidate in (request, sibling(request)):
        try:
            found = _whole(candidate)
        except ModelNotFoundError as error:
            broken_off = broken_off or error
            continue
        if found is not None:
            return found if candidate is request else of_sibling(found, request)
    if broken_off is not None:
        raise broken_off
    return None


def cached_folder(request: Request) -> Path:
    """Where the Hub's cache keeps a repository, in all its revisions."""
    root = Path(constants.HF_HUB_CACHE if request.cache_dir is None else request.cache_dir).expanduser()
    return root / f"models--{request.id.replace('/', '--')}"


def _whole(request: Request) -> Snapshot | None:
    try:
        # Without the pattern, a snapshot would have to hold every file of its repository.
        path = snapshot_download(
            request.id,
            revision=request.revision,
            cache_dir=request.cache_dir,
            local_files_only=True,
            allow_patterns=[],
        )
    except LocalEntryNotFoundError:
        if any(cached_folder(request).glob("blobs/*.incomplete")):
            raise _half(request, "most of its files") from None
        return None
    folder = Path(path)
    present = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    chosen = _gguf(request, present)
    if chosen is None:
        missing: str | None = "config.json"
        if missing in present:
            missing = lacking(folder, request.id, allow_pickle=request.allow_pickle)
        if missing is not None:
            raise _half(request, missing)
    return Snapshot(request.id, folder.name, folder, folder / chosen if chosen else None)


def _gguf(request: Request, present: list[str]) -> str | None:
    if request.gguf_file is not None and request.gguf_file not in present:
        raise _half(request, request.gguf_file)
    if request.gguf_file is None and "config.json" in present:
        return None
    return chosen_gguf(present, request.gguf_file, request.id)


def _half(request: Request, missing: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{request.id} is only partly in the local Hub cache, which lacks {missing}: run again with a connection, "
        "without --local-files-only and HF_HUB_OFFLINE, to download the rest"
    )
