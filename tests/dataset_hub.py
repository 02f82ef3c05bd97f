"""The part of a Hub that holds datasets, on this machine, as Hugging Face's own clients ask for them.

`with serving({"lab/texts": files}) as hub` starts it; `files` are contents by path. The attributes of `hub` change what
it does at any time, and tell what was asked of it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote

from hub import Files, commit_of, listening


@dataclass
class DatasetHub:
    """What the Hub holds, how it behaves, and what was asked of it."""

    endpoint: str
    repositories: dict[str, Files]
    """The files at `main`, by the name of their repository."""
    tags: dict[str, dict[str, Files]] = field(default_factory=dict)
    """The files at other revisions, by repository."""
    gated: set[str] = field(default_factory=set)
    """What anybody may see, but only with a token download."""
    moved: dict[str, str] = field(default_factory=dict)
    """Where a repository is that has been renamed."""
    broken: set[str] = field(default_factory=set)
    """Words in the paths for which the connection is closed without an answer."""
    asked: list[str] = field(default_factory=list)
    """What was asked for, as `METHOD /path`."""
    sent: int = 0
    """Bytes of data files."""

    def at(self, name: str, revision: str) -> Files | None:
        """The files of a repository at a branch, a tag or a commit."""
        known = {"main": self.repositories[name]} | self.tags.get(name, {})
        return (known | {commit_of(files): files for files in known.values()}).get(revision)


@contextmanager
def serving(repositories: dict[str, Files]) -> Iterator[DatasetHub]:
    """A Hub with these datasets, for as long as the block is open."""
    with listening(_Answer, lambda endpoint: DatasetHub(endpoint, repositories)) as hub:
        yield hub


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        hub = self.server.hub
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        hub.asked.append(f"{self.command} {path}")
        if any(word in path for word in hub.broken):
            self.close_connection = True
            return None
        api, _, place = (
            path.rpartition("/datasets/") if path.startswith("/api/") else ("", "", path[len("/datasets/") :])
        )
        old, *parts = place.split("/")
        if old in hub.moved:
            return self.reply(307, b"", {"Location": self.path.replace(old, hub.moved[old])})
        name, rest = f"{old}/{parts[0]}" if parts else old, parts[1:]
        if name not in hub.repositories:
            return self.refuse(404, "RepoNotFound")
        if name in hub.gated and "Authorization" not in self.headers and rest and rest[0] != "revision":
            return self.refuse(401, "GatedRepo")
        files = hub.at(name, rest[1] if len(rest) > 1 else "main")
        if files is None:
            return self.refuse(404, "RevisionNotFound")
        return self.tell(name, files, rest) if api else self.send(files, "/".join(rest[2:]))

    do_HEAD = do_POST = do_GET  # noqa: N815 - the server looks for these names

    def tell(self, name: str, files: Files, rest: list[str]) -> None:
        if rest[:1] == ["tree"]:
            return self.reply_json(_tree(files, "/".join(rest[2:])))
        if rest[:1] == ["paths-info"]:
            asked = parse_qs(self.body.decode()).get("paths") or json.loads(self.body)["paths"]
            return self.reply_json([entry for entry in _tree(files) if entry["path"] in asked])
        siblings = [{"rfilename": path} for path in files]
        gated = "manual" if name in self.server.hub.gated else False
        return self.reply_json({"id": name, "sha": commit_of(files), "siblings": siblings, "gated": gated})

    def send(self, files: Files, file: str) -> None:
        if file not in files:
            return self.refuse(404, "EntryNotFound")
        whole = files[file]
        headers = {"ETag": f'"{hashlib.sha256(whole).hexdigest()}"', "X-Repo-Commit": commit_of(files)}
        headers["Accept-Ranges"] = "bytes"
        wanted = self.headers.get("Range")
        if wanted is None:
            return self.reply(200, whole, headers, counted=file != "README.md")
        begin, _, end = wanted.removeprefix("bytes=").partition("-")
        part = whole[int(begin) : int(end) + 1 if end else None]
        headers["Content-Range"] = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(whole)}"
        return self.reply(206, part, headers, counted=True)

    def refuse(self, status: int, code: str) -> None:
        self.reply(status, b"", {"X-Error-Code": code})

    def reply_json(self, answer: object) -> None:
        self.reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, data: bytes, headers: dict[str, str], *, counted: bool = False) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.server.hub.sent += len(data) * counted
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _tree(files: Files, under: str = "") -> list[dict[str, object]]:
    """Every file and folder below a path, however deep."""
    folders = {path.rsplit("/", depth)[0] for path in files for depth in range(1, path.count("/") + 1)}
    found = [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
    found += [{"type": "file", "path": path, "oid": "0" * 40, "size": len(data)} for path, data in files.items()]
    return [entry for entry in found if not under or str(entry["path"]).startswith(f"{under}/")]
