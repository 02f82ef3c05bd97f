"""Whatever goes wrong, a token or a password is sent to the Hub and shown to nobody."""

import errno
import json
import traceback
from urllib.parse import quote

import pytest
from hub import DEAD, Hub, files_of, serving
from huggingface_hub import HfApi, constants, file_download
from huggingface_hub.utils import _http, build_hf_headers

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import find, load
from sinkscope.models.redacting import without_secrets
from sinkscope.models.snapshots import Request

USUAL, UNUSUAL = "hf_AbCdEfGhIjKlMnOpQrStUvWx", "of-another+form/0123456789=="
ECHO = json.dumps({"error": "you sent {sent}"}).encode()
HEADER = {"X-Error-Message": "you sent {sent}"}


def _says(word, status, body=ECHO, headers=HEADER):
    def spoil(hub: Hub, monkeypatch):
        hub.faults[word] = (status, body, headers)

    return spoil


def _closes(hub: Hub, monkeypatch):
    hub.gated.add("lab/tiny")


def _hides(hub: Hub, monkeypatch):
    hub.private["lab/tiny"] = "somebody else's"


def _forgets(hub: Hub, monkeypatch):
    del hub.repositories["lab/tiny"]


def _damages(hub: Hub, monkeypatch):
    hub.repositories["lab/tiny"]["model.safetensors"] = b"not any weights at all"


def _breaks_off(hub: Hub, monkeypatch):
    hub.cut = "model.safetensors"


def _dies(hub: Hub, monkeypatch):
    hub.within(monkeypatch, DEAD)


def _loses_its_disk(hub: Hub, monkeypatch):
    def full(url, *_, headers, **__):
        raise OSError(errno.ENOSPC, f"no space for what came with {headers}")

    monkeypatch.setattr(file_download, "http_get", full)


def _has_a_bug(hub: Hub, monkeypatch):
    def fail(api, *_, **__):
        raise RuntimeError(f"{'long ' * 58}{api.token} {build_hf_headers(token=api.token)}")

    monkeypatch.setattr(HfApi, "model_info", fail)


WRONGS = {
    "gated": _closes,
    "private": _hides,
    "missing": _forgets,
    "damaged": _damages,
    "broken off": _breaks_off,
    "unreachable": _dies,
    "a full disk": _loses_its_disk,
    "a bug": _has_a_bug,
    "not accepted": _says("/api/", 401),
    "forbidden": _says("/api/", 403),
    "a bad question": _says("/api/", 400),
    "too many": _says("/api/", 429),
    "broken": _says("/api/", 500),
    "a file forbidden": _says("/resolve/", 403),
    "a file broken": _says("/resolve/", 500),
    "a login page": _says("/api/", 200, b"<html>{sent}", {}),
    "a circle": _says("/api/", 307, b"", {"Location": "/api/models?token={sent}"}),
    "a warning": _says("/api/", 500, b"{sent}", {"X-HF-Warning": "auth; you sent {sent}"}),
}


@pytest.fixture
def a_hub(tiny_llama, monkeypatch):
    """A Hub with one model, which repeats whatever it was sent when it refuses something."""
    with serving({"lab/tiny": files_of(tiny_llama)}) as hub:
        hub.echo = True
        hub.within(monkeypatch)
        monkeypatch.setattr(_http.time, "sleep", lambda _: None)
        yield hub


def given_as_two_words(token, monkeypatch, folder):
    return ["--token", token]


def given_as_one_word(token, monkeypatch, folder):
    return [f"--token={token}"]


def given_by_the_environment(token, monkeypatch, folder):
    monkeypatch.setenv("HF_TOKEN", f"{token}\n")
    return []


def given_by_logging_in(token, monkeypatch, folder):
    (folder / "token").write_text(f"{token}\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    return []


WAYS = [given_as_two_words, given_as_one_word, given_by_the_environment, given_by_logging_in]


def absent(token, text):
    assert token not in text
    assert token[:12] not in text
    assert quote(token, safe="") not in text


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_refusal_does_not_hold_the_token(a_hub, run, tmp_path, monkeypatch, wrong):
    WRONGS[wrong](a_hub, monkeypatch)
    for way in WAYS:
        with monkeypatch.context() as patched:
            words = way(UNUSUAL, patched, tmp_path)
            ended = run("measure", "lab/tiny", "--cache-dir", tmp_path / "cache", *words)
        assert ended.status == 1
        assert len([line for line in ended.err.splitlines() if line.startswith("sinkscope: ")]) == 1
        assert "Traceback" not in ended.err
        absent(UNUSUAL, ended.out + ended.err)
    if wrong not in {"unreachable", "a bug"}:
        assert f"Bearer {UNUSUAL}" in a_hub.tokens


@pytest.mark.parametrize("wrong", WRONGS)
def test_nor_does_its_traceback(a_hub, tmp_path, monkeypatch, wrong):
    WRONGS[wrong](a_hub, monkeypatch)
    for token in (USUAL, UNUSUAL):
        with pytest.raises(ModelNotFoundError) as caught:
            load("lab/tiny", cache_dir=tmp_path, token=token)
        absent(token, "".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_ends_well_holds_no_token(a_hub, run, tmp_path, monkeypatch, way):
    words = way(UNUSUAL, monkeypatch, tmp_path)
    path = tmp_path / "run.json"
    quick = ["--seq-len", "40", "--windows", "2", "--json", "-o", path]
    ended = run("measure", "lab/tiny", "--cache-dir", tmp_path / "cache", *quick, *words)
    assert ended.status == 0
    assert set(a_hub.tokens) == {f"Bearer {UNUSUAL}"}
    for text in (ended.out, ended.err, path.read_text(encoding="utf-8")):
        absent(UNUSUAL, text)
    a_hub.asked.clear()
    again = run("measure", "lab/tiny", "--cache-dir", tmp_path / "cache", *quick, *words, "--local-files-only")
    assert (again.status, a_hub.asked) == (0, [])


@pytest.mark.parametrize("password", ["s3cr3t", "s/3 c+r@3t"])
@pytest.mark.parametrize(
    "wrong", ["broken", "forbidden", "a file broken", "missing", "gated", "a login page", "a circle", "dead"]
)
def test_a_password_in_the_address_of_the_hub_is_not_shown(a_hub, tmp_path, monkeypatch, password, wrong):
    user = f"somebody:{quote(password, safe='')}@"
    if wrong != "dead":
        WRONGS[wrong](a_hub, monkeypatch)
    address = DEAD if wrong == "dead" else a_hub.endpoint
    a_hub.within(monkeypatch, address.replace("://", f"://{user}"))
    with pytest.raises(ModelNotFoundError) as caught:
        load("lab/tiny", cache_dir=tmp_path)
    shown = "".join(traceback.format_exception(caught.value))
    sent = {token for token in a_hub.tokens if token is not None}
    for secret in (password, user, quote(password, safe=""), *(token.removeprefix("Basic ") for token in sent)):
        assert secret not in shown
    assert bool(sent) == (wrong != "dead")


@pytest.mark.parametrize(
    "word", ["https://somebody:s3cr3t@example.org/a/b", "hf_AbCdEfGhIjKl no id", "./hf_AbCdEfGhIjKl"]
)
def test_a_word_that_means_no_model_is_repeated_without_its_secret(word):
    with pytest.raises(ModelNotFoundError) as caught:
        find(word)
    assert "s3cr3t" not in str(caught.value)
    assert "AbCd" not in str(caught.value)


def test_a_request_can_be_shown():
    request = Request("lab/tiny", None, None, False, False, None, UNUSUAL)
    absent(UNUSUAL, repr(request))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing to hide", "nothing to hide"),
        ("hf_AbCdEfGhIjKl!", "hf_…!"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer …"),
        ("{'authorization': 'Basic YTpi'}", "{'authorization': 'Basic …'}"),
        ("at https://me:word@host/x and http://host:80/@y", "at https://…@host/x and http://host:80/@y"),
        ("a secret of mine, a%20secret%20of%20mine", "…, …"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_a_text(text, expected):
    assert without_secrets(text, "a secret of mine") == expected


@pytest.mark.parametrize(
    "words",
    [
        "./hf_llama_tuned and data/hf_datasets_old/x.txt",
        "pip install hf_transfer; hf_hub_download() failed",
        "Basic training for soldiers, and a bearer of bad news",
    ],
)
def test_ordinary_words_are_no_secrets(words):
    assert without_secrets(words) == words


def test_what_is_too_short_for_a_secret_is_not_taken_for_one():
    assert without_secrets("a cat sat", "a") == "a cat sat"
