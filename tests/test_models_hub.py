import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from transformers import LlamaConfig, LlamaForCausalLM

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import load

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Answer(BaseHTTPRequestHandler):
    """What the Hub answers about the repositories in `self.server.repositories`: file names and contents."""

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        self.server.asked.append(self.path)
        files = self.server.repositories.get(name)
        if files is None:
            self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif api and parts[4:5] == ["tree"]:
            tree = [{"type": "file", "path": path, "size": len(data), "oid": "0" * 40} for path, data in files.items()]
            self.reply(200, json.dumps(tree).encode())
        elif api:
            known = parts[4:] in ([], ["revision", "main"], ["revision", COMMIT])
            info = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
            self.reply(
                200 if known else 404, json.dumps(info).encode(), {} if known else {"X-Error-Code": "RevisionNotFound"}
            )
        elif name in self.server.gated:
            self.reply(403, b"", {"X-Error-Code": "GatedRepo"})
        else:
            data = files["/".join(parts[4:])]
            self.reply(200, data, {"ETag": f'"{len(data)}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET  # noqa: N815 - the server looks for this name

    def reply(self, status, data, headers=()):
        self.send_response(status)
        for key, value in dict(headers).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def a_hub(tmp_path, monkeypatch):
    """A Hub on this machine that holds one tiny model, under several names."""
    config = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.asked = []
    server.gated = {"lab/gated", "lab/locked-hf"}
    server.repositories = {
        "lab/tiny": files | {"pytorch_model.bin": b"never fetched"},
        "lab/gated": files,
        "lab/original": {"params.json": b"{}", "consolidated.00.pth": b""},
        "lab/original-hf": files,
        "lab/locked": {"params.json": b"{}"},
        "lab/locked-hf": files,
        "lab/pickled": {"config.json": files["config.json"], "pytorch_model.bin": b""},
        "lab/empty": {"README.md": b""},
        "lab/ggufs": {"a.gguf": b"GGUF", "b.gguf": b"GGUF"},
    }
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield SimpleNamespace(asked=server.asked, cache=tmp_path / "hub", stop=server.shutdown)
    server.shutdown()
    server.server_close()


def test_a_repository_is_fetched_once_and_loaded(a_hub, capfd):
    stages = []
    loaded = load("lab/tiny", cache_dir=a_hub.cache, progress=lambda *call: stages.append(call))
    assert loaded.origin["id"] == loaded.origin["name"] == "lab/tiny"
    assert (loaded.origin["kind"], loaded.origin["revision"]) == ("hub", COMMIT)
    assert not any("pytorch_model.bin" in path for path in a_hub.asked)
    names = [stage for stage, _, _ in stages]
    assert names.index("asking the Hub") < names.index("loading weights")
    assert any(stage.startswith("fetching") and done == total for stage, done, total in stages)
    assert capfd.readouterr() == ("", "")


def test_without_the_hub_what_was_fetched_is_used_and_told(a_hub, monkeypatch):
    online = load("lab/tiny", cache_dir=a_hub.cache)
    a_hub.asked.clear()
    local = load("lab/tiny", cache_dir=a_hub.cache, local_files_only=True)
    assert a_hub.asked == []
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    alone = load("lab/tiny", cache_dir=a_hub.cache)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(online.model(ids).logits, alone.model(ids).logits)
    assert (local.origin["revision"], alone.origin["revision"]) == (COMMIT, COMMIT)
    assert any("could not be reached" in note for note in alone.origin["notes"])


def test_without_the_hub_an_unknown_model_is_refused_at_once(a_hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match=r"the Hub could not be reached .*check the connection"):
        load("lab/tiny", cache_dir=a_hub.cache)


def test_offline_mode_needs_the_model_on_this_disk(a_hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="offline mode is on: unset HF_HUB_OFFLINE"):
        load("lab/tiny", cache_dir=a_hub.cache)
    with pytest.raises(ModelNotFoundError, match="lab/tiny is not in the local Hub cache"):
        load("lab/tiny", cache_dir=a_hub.cache, local_files_only=True)
    assert a_hub.asked == []


def test_a_model_in_its_makers_own_format_leads_to_its_sibling(a_hub):
    loaded = load("lab/original", cache_dir=a_hub.cache)
    assert loaded.origin["id"] == "lab/original-hf"
    assert (
        loaded.origin["notes"][0] == "lab/original is not in the transformers format: lab/original-hf was used instead"
    )
    again = load("lab/original", cache_dir=a_hub.cache, local_files_only=True)
    assert again.origin["id"] == "lab/original-hf"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("lab/none", "not on the Hub, or is private"),
        ("lab/gated", "gated: accept its terms at https://huggingface.co/lab/gated, then set HF_TOKEN"),
        ("lab/locked", "lab/locked-hf is gated: accept its terms at https://huggingface.co/lab/locked-hf, then"),
        ("lab/pickled", "only as pytorch_model.bin, a pickle"),
        ("lab/empty", "is a repository without a config.json"),
        ("lab/ggufs", "choose one with --gguf-file: a.gguf, b.gguf"),
    ],
)
def test_a_repository_that_cannot_be_loaded_is_refused(a_hub, name, match):
    with pytest.raises(ModelNotFoundError, match=match) as caught:
        load(name, cache_dir=a_hub.cache, token="hf_secretsecret")  # noqa: S106 - not one
    assert "\n" not in str(caught.value)
    assert "hf_secret" not in str(caught.value)


def test_a_revision_that_is_not_there_is_refused(a_hub):
    with pytest.raises(ModelNotFoundError, match="no such revision"):
        load("lab/tiny", revision="v9", cache_dir=a_hub.cache)
