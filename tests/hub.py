"""A Hub on this machine, which answers Hugging Face's own client as the real one does.

`with serving({"lab/tiny": files}) as hub` starts it; `files` are contents by name. What it holds and how it behaves can
be changed at any time through the attributes of `hub`, which also tell what was asked of it. A subprocess reaches it
through `hub.environment(home)`, the process of the test itself after `hub.within(monkeypatch)`.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from huggingface_hub import constants

Files = dict[str, bytes]
Made = TypeVar("Made")

DEAD = "http://127.0.0.1:9"
"""An address at which nobody answers."""


def files_of(folder: Path, **others: bytes) -> Files:
    """The files directly in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} | others


def commit_of(files: Files) -> str:
    """The commit that the Hub gives to these files: the same for the same contents."""
    # Each file by its own hash: this is asked for with every answer, and the text of large contents takes seconds.
    hashes = [(name, hashlib.sha1(content, usedforsecurity=False).digest()) for name, content in sorted(files.items())]
    return hashlib.sha1(repr(hashes).encode(), usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """What a Hub holds, how it behaves, and what was asked of it."""

    endpoint: str
    repositories: dict[str, Files]
    """The files at `main`, by the name of their repository."""
    revisions: dict[tuple[str, str], Files] = field(default_factory=dict)
    """The files at other branches and tags, by repository and revision."""
    gated: set[str] = field(default_factory=set)
    """What anybody may see, but not download."""
    private: dict[str, str] = field(default_factory=dict)
    """What only the owner of a token may see."""
    moved: dict[str, str] = field(default_factory=dict)
    """Where a repository is that has been renamed."""
    faults: dict[str, tuple[int, bytes, dict[str, str]]] = field(default_factory=dict)
    """Status, body and headers for every path that holds the word; {sent} in them becomes the token that was sent."""
    cut: str | None = None
    """Of files whose name ends so, only the first half is sent."""
    elsewhere: str | None = None
    """The endpoint from which large files are fetched, as from a content delivery network."""
    echo: bool = False
    """Whether a refusal repeats the header with the token, in its body and in its headers."""
    asked: list[str] = field(default_factory=list)
    """Paths, in the order of asking."""
    tokens: list[str | None] = field(default_factory=list)
    """What was sent as Authorization with each question about a repository, likewise."""

    def at(self, name: str, revision: str) -> Files | None:
        """The files of a repository at a branch, a tag or a commit."""
        here = {"main": self.repositories[name]}
        here |= {known: files for (owner, known), files in self.revisions.items() if owner == name}
        here |= {commit_of(files): files for files in list(here.values())}
        return here.get(revision)

    def environment(self, home: Path, **others: str | None) -> dict[str, str | None]:
        """The variables with which a fresh process uses this Hub, and nothing that this machine knows otherwise."""
        plain: dict[str, str | None] = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": None}
        return plain | {"HF_TOKEN": None, "HF_HUB_CACHE": None, "SINKSCOPE_MODEL": None} | others

    def within(self, monkeypatch, endpoint: str | None = None) -> None:
        """Have this process use this Hub, or another address."""
        address = endpoint or self.endpoint
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@contextmanager
def serving(repositories: dict[str, Files] | None = None) -> Iterator[Hub]:
    """A Hub with these repositories, for as long as the block is open."""
    with listening(_Answer, lambda endpoint: Hub(endpoint, repositories or {})) as hub:
        yield hub


@contextmanager
def listening(answer: type[BaseHTTPRequestHandler], made: Callable[[str], Made]) -> Iterator[Made]:
    """A server on this machine whose answers find what was `made` of its address as `self.server.hub`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), answer)
    server.hub = made(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answer(BaseHTTPRequestHandler):
    """The three questions that downloading asks: about a repository, about its files, and for one of them."""

    def do_GET(self) -> None:
        hub = self.server.hub
        parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        path = "/" + "/".join(parts)
        hub.asked.append(path)
        if path == "/api/agent-harnesses":
            # The client asks this for a header of its own, once a day and without a token.
            return self.reply(404, b"")
        hub.tokens.append(self.headers.get("Authorization"))
        fault = next((answer for word, answer in hub.faults.items() if word in path), None)
        if fault is not None:
            return self.reply(*fault)
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        if name in hub.moved:
            return self.reply(307, b"", {"Location": self.path.replace(name, hub.moved[name])})
        if name not in hub.repositories or not self.may_see(name):
            # Whoever is not logged in is not told whether it is there.
            return self.refuse(404 if hub.tokens[-1] else 401, "RepoNotFound")
        files = hub.at(name, rest[1] if len(rest) > 1 else "main")
        if files is None:
            return self.refuse(404, "RevisionNotFound")
        return self.tell(name, files, tree=rest[:1] == ["tree"]) if api else self.send(name, files, "/".join(rest[2:]))

    do_HEAD = do_GET  # noqa: N815 - the server looks for this name

    def may_see(self, name: str) -> bool:
        secret = self.server.hub.private.get(name)
        return secret is None or self.server.hub.tokens[-1] == f"Bearer {secret}"

    def tell(self, name: str, files: Files, *, tree: bool) -> None:
        if tree:
            told = [{"type": "file", "path": path, "size": len(data), "oid": "0" * 40} for path, data in files.items()]
        else:
            told = {"id": name, "sha": commit_of(files), "siblings": [{"rfilename": path} for path in files]}
        self.reply(200, json.dumps(told).encode())

    def send(self, name: str, files: Files, file: str) -> None:
        hub = self.server.hub
        if name in hub.gated:
            return self.refuse(403 if hub.tokens[-1] else 401, "GatedRepo")
        if file not in files:
            return self.refuse(404, "EntryNotFound")
        data, etag = files[file], hashlib.sha256(files[file]).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit_of(files)}
        if hub.elsewhere and file.endswith((".safetensors", ".gguf")):
            headers |= {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            return self.reply(302, b"", headers | {"Location": hub.elsewhere + self.path})
        return self.reply(200, data, headers, half=hub.cut is not None and file.endswith(hub.cut))

    def refuse(self, status: int, code: str) -> None:
        body = json.dumps({"error": "you sent {sent}"}).encode() if self.server.hub.echo else b""
        self.reply(status, body, {"X-Error-Code": code})

    def reply(self, status: int, data: bytes, headers: dict[str, str] | None = None, *, half: bool = False) -> None:
        echo = self.echo()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value.replace("{sent}", echo))
        data = data.replace(b"{sent}", echo.encode())
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if half else data)

    def echo(self) -> str:
        """The header with the secret, and the secret in it by itself."""
        sent = self.headers.get("Authorization") or ""
        secret = sent.partition(" ")[2]
        return f"{base64.b64decode(secret).decode()} in {sent}" if sent.startswith("Basic ") else f"{secret} in {sent}"

    def log_message(self, *_: object) -> None:
        pass
