"""Keeps what was expensive to convert: one directory an entry, found by the contents of its source file."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from sinkscope.errors import UnknownNameError
from sinkscope.progress import Progress

VERSION = 2
"""Raised whenever the converter writes something else for the same file."""

_RECORD = "entry.json"
_BUILDING = ".building-"


@dataclass(frozen=True)
class Entry:
    """A converted model in the cache; `bytes` is its size on disk, `created` its time in ISO 8601, UTC."""

    name: str
    source: str
    sha256: str
    created: str
    bytes: int
    path: Path
    notes: tuple[str, ...] = ()


def directory() -> Path:
    """$SINKSCOPE_CACHE, else sinkscope's own place within the caches of this user."""
    own = os.environ.get("SINKSCOPE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    return Path(os.path.expanduser(shared)) / "sinkscope"  # noqa: PTH111 - never raises, unlike Path's


def digest(path: Path, progress: Progress) -> str:
    """The SHA-256 of a file, in hex."""
    total = path.stat().st_size
    sha, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 23):
            sha.update(block)
            done += len(block)
            progress("hashing", done, total)
    return sha.hexdigest()


def entries() -> list[Entry]:
    """All that is in the cache and whole, by name."""
    found = (_read(path) for path in _folders("*"))
    return sorted((entry for entry in found if entry is not None), key=lambda entry: (entry.name, entry.sha256))


def lookup(sha256: str) -> Entry | None:
    """The entry of the file with this hash, or None if there is none, or it is not whole."""
    return _read(directory() / _key(sha256))


def clear(name: str | None = None) -> list[Entry]:
    """Remove the entries of that name, or all; what was removed, with its sizes.

    Raises UnknownNameError when a name is given and nothing is called that.
    """
    there = entries()
    gone = [entry for entry in there if name in {None, entry.name}]
    if name is not None and not gone:
        names = ", ".join(entry.name for entry in there) or "nothing"
        raise UnknownNameError(f"the cache holds no {name!r}: it holds {names}")
    for entry in gone:
        shutil.rmtree(entry.path)
    if name is None:
        _sweep()
    return gone


@contextmanager
def locked(sha256: str, progress: Progress) -> Iterator[None]:
    """Hold the right to build the entry of this hash; whoever comes second waits, and says so.

    Raises OSError where the cache cannot be written.
    """
    directory().mkdir(parents=True, exist_ok=True)
    # The operating system drops the lock with its process, so a killed run leaves none behind.
    lock = FileLock(_lock(_key(sha256)))
    waited = 0
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except Timeout:
            waited += 1
            progress("waiting for another run to convert this file", waited, None)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def building(sha256: str, source: Path, notes: tuple[str, ...]) -> Iterator[Path]:
    """A directory to fill, which becomes the entry only if the block ends well; needs the lock.

    Raises OSError where the cache cannot be written.
    """
    key = _key(sha256)
    _remove_unfinished(key)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{key}-", dir=directory()))
    try:
        yield unfinished
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = Entry(source.stem, str(source), sha256, created, _size(unfinished), directory() / key, notes)
        (unfinished / _RECORD).write_text(json.dumps(asdict(entry) | {"path": None}, indent=2), encoding="utf-8")
        # mkdtemp's directory is for its owner only; an entry is as public as the cache it is in.
        unfinished.chmod(directory().stat().st_mode & 0o777)
        shutil.rmtree(entry.path, ignore_errors=True)
        unfinished.rename(entry.path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _key(sha256: str) -> str:
    return f"{sha256[:32]}-v{VERSION}"


def _lock(key: str) -> Path:
    return directory() / f"{key}.lock"


def _folders(pattern: str) -> list[Path]:
    root = directory()
    return [path for path in root.glob(pattern) if path.is_dir()] if root.is_dir() else []


def _read(path: Path) -> Entry | None:
    if path.name.startswith(_BUILDING):
        return None
    try:
        record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
        entry = Entry(**record | {"path": path, "notes": tuple(record["notes"])})
        # A cut or missing file changes the size: such an entry is built again, never used.
        return entry if _size(path) == entry.bytes else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _size(path: Path) -> int:
    """Bytes of the files in a directory, without its own record."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.name != _RECORD)


def _remove_unfinished(key: str) -> None:
    for path in _folders(f"{_BUILDING}{key}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _sweep() -> None:
    """Remove what killed runs left, but nothing that a run is working on right now."""
    for lock in directory().glob("*.lock"):
        try:
            with FileLock(lock, timeout=0):
                _remove_unfinished(lock.stem)
        except Timeout:
            continue
