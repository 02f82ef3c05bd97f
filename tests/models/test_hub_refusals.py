"""What the Hub refuses, breaks off or answers wrongly: one line with the remedy, and nothing left to guess."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from builders import tiny
from hub import DEAD, commit_of, files_of, serving
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import find, load

ADAPTER = {"base_model_name_or_path": "lab/base", "peft_type": "LORA"}
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
NO_MODEL = json.dumps({"model_type": "llama"}).encode()


@pytest.fixture
def a_hub(tiny_llama, monkeypatch):
    """A Hub on this machine, most of whose repositories cannot be loaded."""
    files = files_of(tiny_llama)
    adapter = {"adapter_model.safetensors": b"", "adapter_config.json": json.dumps(ADAPTER).encode()}
    repositories = {
        "lab/tiny": files,
        "lab/gated": files,
        "lab/private": files,
        "lab/half-gated": {"params.json": b"{}"},
        "lab/half-gated-hf": files,
        "lab/gated-original": {"params.json": b"{}"},
        "lab/gated-original-hf": files,
        "lab/pickled": {"config.json": NO_MODEL, "pytorch_model.bin": b""},
        "lab/variant": {"config.json": NO_MODEL, "model.fp16.safetensors": b""},
        "lab/empty": {"README.md": b""},
        "lab/ggufs": {"a.gguf": b"GGUF", "b.gguf": b"GGUF"},
        "lab/adapter": adapter,
        "lab/nameless-adapter": adapter | {"adapter_config.json": b"[]"},
    }
    with serving(repositories) as hub:
        hub.gated |= {"lab/gated", "lab/half-gated-hf", "lab/gated-original"}
        hub.private["lab/private"] = "the-owner's"
        hub.within(monkeypatch)
        # The client waits longer and longer before it asks a broken server again.
        monkeypatch.setattr(_http.time, "sleep", lambda _: None)
        yield hub


def refused(match, *arguments, **keywords):
    with pytest.raises(ModelNotFoundError, match=match) as caught:
        load(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


REFUSALS = {
    "lab/none": "lab/none is not on the Hub, or is private: check the spelling, or set HF_TOKEN",
    "lab/private": "lab/private is not on the Hub, or is private",
    "lab/gated": "gated: accept its terms at https://huggingface.co/lab/gated, then set HF_TOKEN or run `hf auth",
    "lab/half-gated": "lab/half-gated-hf is gated: accept its terms at https://huggingface.co/lab/half-gated-hf, then",
    "lab/pickled": "only as pytorch_model.bin, a pickle.*--allow-pickle",
    "lab/variant": "lab/variant holds no weights: model.safetensors, or its shards with an index, is needed",
    "lab/empty": "is a repository without a config.json",
    "lab/ggufs": "choose one with --gguf-file: a.gguf, b.gguf",
    "lab/ggufs:c.gguf": "lab/ggufs has no file c.gguf: its GGUF files are a.gguf, b.gguf",
    "lab/adapter": "lab/adapter is a PEFT adapter of lab/base: merge it .*, or measure lab/base",
    "lab/nameless-adapter": "lab/nameless-adapter is a PEFT adapter: merge it into its base model and give that",
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("token", [None, "anyone's"])
def test_a_repository_that_cannot_be_loaded_is_refused(a_hub, tmp_path, name, token):
    refused(REFUSALS[name], name, cache_dir=tmp_path, token=token)
    assert not any(path.endswith((".safetensors", ".bin", ".gguf")) for path in a_hub.asked if "gated" not in path)


def test_a_private_repository_opens_with_its_token(a_hub, tmp_path):
    assert load("lab/private", cache_dir=tmp_path, token="the-owner's").origin["id"] == "lab/private"  # noqa: S106


def test_a_gated_original_does_not_close_its_open_sibling(a_hub, tmp_path):
    assert load("lab/gated-original", cache_dir=tmp_path).origin["id"] == "lab/gated-original-hf"


@pytest.mark.parametrize(("status", "name"), [(401, "lab/half-gated"), (403, "lab/half-gated-hf")])
def test_a_repository_gated_from_the_first_question_names_its_own_page(a_hub, tmp_path, status, name):
    a_hub.faults[f"/api/models/{name}"] = (status, b"", {"X-Error-Code": "GatedRepo"})
    if name == "lab/half-gated":
        refused("lab/half-gated is gated: accept its terms at https://huggingface.co/lab/half-gated, ", name)
    else:
        refused("accept its terms at https://huggingface.co/lab/half-gated-hf, ", "lab/half-gated", cache_dir=tmp_path)


def test_a_token_that_the_hub_does_not_take_is_told(a_hub, tmp_path):
    a_hub.faults["/api/"] = (401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
    refused("the Hub does not accept the token: get another one at", "lab/tiny", cache_dir=tmp_path, token="old")  # noqa: S106


@pytest.mark.parametrize("token", ["two words", "schl\u00fcssel", "a\x00b", "a\nb"])
def test_what_cannot_be_a_token_is_refused_without_being_repeated(a_hub, token):
    assert token not in refused("the token holds white space or characters that no token has", "lab/tiny", token=token)
    assert a_hub.asked == []


@pytest.mark.parametrize("token", [" a-token\n", "", "\n"])
def test_white_space_around_a_token_is_no_part_of_it(a_hub, tmp_path, token):
    load("lab/tiny", cache_dir=tmp_path, token=token)
    assert set(a_hub.tokens) == {f"Bearer {token.strip()}" if token.strip() else None}


@pytest.mark.parametrize("directory", [False, True])
def test_an_adapter_in_a_directory_names_its_base(tmp_path, directory):
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTER) if directory else "{")
    of = " of lab/base: .* or measure lab/base" if directory else ": merge it into its base model"
    with pytest.raises(ModelNotFoundError, match=f"{tmp_path} is a PEFT adapter{of}"):
        find(tmp_path)


ANSWERS = {
    "a broken server": ("/api/", (500, b"<html>oops", {}), "could not be fetched from the Hub: .*500.*try again later"),
    "a busy server": ("/api/", (429, b"", {}), "429 Too Many Requests.*try again later"),
    "a broken file server": ("model.safetensors", (500, b"", {}), "could not be fetched from the Hub: .*500"),
    "a login page": ("/api/", (200, b"<html>Welcome", {}), "what answers at http://127.0.0.1:.* is not the Hub"),
    "another program": ("/api/", (200, b"[]", {}), "what answers at http://127.0.0.1:.* is not the Hub"),
    "a circle": ("/api/", (307, b"", {"Location": "/api/models/lab/tiny"}), "could not be reached .*redirects"),
    "a way to nowhere": ("/api/", (307, b"", {"Location": DEAD}), "the Hub could not be reached"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_wrong_answer_is_one_line(a_hub, tmp_path, case):
    word, answer, match = ANSWERS[case]
    a_hub.faults[word] = answer
    refused(match, "lab/tiny", cache_dir=tmp_path)


def test_a_file_that_breaks_off_on_its_way_is_not_kept(a_hub, tmp_path):
    a_hub.cut = "model.safetensors"
    refused("lab/tiny is not on this disk and the Hub could not be reached", "lab/tiny", cache_dir=tmp_path)
    refused("only partly in the local Hub cache, which lacks", "lab/tiny", cache_dir=tmp_path, local_files_only=True)
    a_hub.cut = None
    assert load("lab/tiny", cache_dir=tmp_path).origin["id"] == "lab/tiny"


def test_without_the_hub_an_unknown_model_is_refused_at_once(a_hub, tmp_path, monkeypatch):
    a_hub.within(monkeypatch, DEAD)
    refused(r"the Hub could not be reached .*check the connection", "lab/tiny", cache_dir=tmp_path)


def test_offline_mode_needs_the_model_on_this_disk(a_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused("offline mode is on: unset HF_HUB_OFFLINE", "lab/tiny", cache_dir=tmp_path)
    refused("lab/tiny is not in the local Hub cache", "lab/tiny", cache_dir=tmp_path, local_files_only=True)
    assert a_hub.asked == []


def _snapshot(cache):
    return next(cache.glob("models--lab--tiny/snapshots/*"))


def _no_weights(cache):
    (_snapshot(cache) / "model.safetensors").unlink()


def _no_blob(cache):
    (_snapshot(cache) / "model.safetensors").resolve().unlink()


def _no_config(cache):
    (_snapshot(cache) / "config.json").unlink()


def _begun_only(cache):
    folder = cache / "models--lab--tiny"
    shutil.rmtree(folder)
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "abc.incomplete").write_bytes(b"half")


HALVES = {
    _no_weights: "its weights",
    _no_blob: "its weights",
    _no_config: "config.json",
    _begun_only: "most of its files",
}


@pytest.mark.parametrize("spoil", HALVES)
@pytest.mark.parametrize("way", ["local", "offline", "unplugged"])
def test_a_download_that_was_broken_off_is_told_and_taken_up_again(a_hub, tmp_path, monkeypatch, spoil, way):
    load("lab/tiny", cache_dir=tmp_path)
    spoil(tmp_path)
    with monkeypatch.context() as patched:
        if way == "offline":
            patched.setattr(constants, "HF_HUB_OFFLINE", True)
        if way == "unplugged":
            a_hub.within(patched, DEAD)
        match = (
            f"lab/tiny is only partly in the local Hub cache, which lacks {HALVES[spoil]}: run again with a connection"
        )
        refused(match, "lab/tiny", cache_dir=tmp_path, local_files_only=way == "local")
    assert load("lab/tiny", cache_dir=tmp_path).origin["id"] == "lab/tiny"


@pytest.mark.parametrize("missing", [SHARDS[1], "model.safetensors.index.json"])
def test_a_part_that_is_missing_is_named_in_the_cache_and_in_a_directory(a_hub, tmp_path, missing):
    tiny("llama").save_pretrained(tmp_path / "sharded", max_shard_size="80KB")
    a_hub.repositories["lab/tiny"] = files_of(tmp_path / "sharded")
    load("lab/tiny", cache_dir=tmp_path)
    (_snapshot(tmp_path) / missing).unlink()
    refused(f"which lacks {missing}: run again", "lab/tiny", cache_dir=tmp_path, local_files_only=True)
    (tmp_path / "sharded" / missing).unlink()
    refused(f"sharded lacks {missing}, a part of its weights: put it there", tmp_path / "sharded")


def test_damaged_weights_in_the_cache_are_told_with_the_folder_to_delete(a_hub, tmp_path):
    load("lab/tiny", cache_dir=tmp_path)
    blob = (_snapshot(tmp_path) / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1000])
    folder = tmp_path / "models--lab--tiny"
    for local in (False, True):
        match = rf"the weights of lab/tiny are damaged or cut short \(.*\): delete {folder} and run again"
        refused(match, "lab/tiny", cache_dir=tmp_path, local_files_only=local)
    shutil.rmtree(folder)
    load("lab/tiny", cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written_is_told(a_hub, tmp_path):
    (tmp_path / "a-file").write_text("")
    for place in (tmp_path / "a-file", tmp_path / "a-file" / "within"):
        message = refused("lab/tiny cannot be stored in .*--cache-dir or HF_HOME", "lab/tiny", cache_dir=place)
        assert str(place) in message


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_is_full_or_closed_is_told(a_hub, tmp_path, monkeypatch, number):
    def closed(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_download, "http_get", closed)
    refused(rf"cannot be stored in .*models--lab--tiny \({os.strerror(number)}\): make", "lab/tiny", cache_dir=tmp_path)


def test_a_cache_that_may_only_be_read_is_enough_for_what_is_in_it(a_hub, tmp_path, monkeypatch):
    load("lab/tiny", cache_dir=tmp_path)

    def closed(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(file_download, "_cache_commit_hash_for_specific_revision", closed)
    monkeypatch.setattr(Path, "mkdir", closed)
    assert load("lab/tiny", cache_dir=tmp_path).origin["revision"] == commit_of(a_hub.repositories["lab/tiny"])
