"""Models from the Hub: which repository, revision and files are fetched, and what is told about them."""

import pytest
import torch
from builders import tiny
from hub import DEAD, commit_of, files_of, serving

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import find, load

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def a_hub(tiny_llama, monkeypatch):
    """A Hub on this machine that holds one tiny model, under several names."""
    files = files_of(tiny_llama)
    repositories = {
        "lab/tiny": files | {"pytorch_model.bin": b"never fetched"},
        "lab/original": {"params.json": b"{}", "consolidated.00.pth": b""},
        "lab/original-hf": files,
        "lab/ggufs": {"a.gguf": b"GGUF", "b.gguf": b"GGUF", "deep/c[1].gguf": b"GGUF"},
    }
    with serving(repositories) as hub:
        hub.within(monkeypatch)
        yield hub


@pytest.fixture
def sharded(tmp_path, tokenizer):
    """The files of a model whose weights are in three."""
    tiny("llama").save_pretrained(tmp_path / "sharded", max_shard_size="80KB")
    tokenizer.save_pretrained(tmp_path / "sharded")
    files = files_of(tmp_path / "sharded")
    assert [name for name in sorted(files) if "-of-" in name] == SHARDS
    return files


@pytest.fixture
def converted(monkeypatch):
    """The GGUF files that were read, none of which is opened."""
    read = []

    def note(name, path, notes, _):
        read.append(path)
        raise ModelNotFoundError(f"{name} was read from {path}")

    monkeypatch.setattr("sinkscope.models.loading._from_disk", note)
    return read


def test_a_repository_is_fetched_once_and_loaded(a_hub, tmp_path, capfd):
    stages = []
    loaded = load("lab/tiny", cache_dir=tmp_path, progress=lambda *call: stages.append(call))
    assert loaded.origin["id"] == loaded.origin["name"] == "lab/tiny"
    assert (loaded.origin["kind"], loaded.origin["revision"]) == ("hub", commit_of(a_hub.repositories["lab/tiny"]))
    assert not any("pytorch_model.bin" in path for path in a_hub.asked)
    names = [stage for stage, _, _ in stages]
    assert names.index("asking the Hub") < names.index("loading weights")
    assert any(stage.startswith("fetching") and done == total for stage, done, total in stages)
    assert capfd.readouterr() == ("", "")
    a_hub.asked.clear()
    load("lab/tiny", cache_dir=tmp_path)
    assert not any("/resolve/" in path for path in a_hub.asked)


def test_without_the_hub_what_was_fetched_is_used_and_told(a_hub, tmp_path, monkeypatch):
    online = load("lab/tiny", cache_dir=tmp_path)
    a_hub.asked.clear()
    local = load("lab/tiny", cache_dir=tmp_path, local_files_only=True)
    assert a_hub.asked == []
    a_hub.faults["/api/"] = (503, b"", {})
    broken = load("lab/tiny", cache_dir=tmp_path)
    a_hub.within(monkeypatch, DEAD)
    alone = load("lab/tiny", cache_dir=tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(online.model(ids).logits, alone.model(ids).logits)
    assert {each.origin["revision"] for each in (online, local, broken, alone)} == {online.origin["revision"]}
    assert local.origin["notes"] == []
    for each in (broken, alone):
        assert any("could not be reached" in note for note in each.origin["notes"])


@pytest.mark.parametrize("spelling", ["a-branch/with-a-slash", "v1", "commit"])
def test_a_branch_a_tag_and_a_commit_lead_to_their_own_files(a_hub, tiny_llama, tmp_path, spelling):
    old = files_of(tiny_llama) | {"README.md": b"as it was"}
    a_hub.revisions["lab/tiny", "a-branch/with-a-slash"] = a_hub.revisions["lab/tiny", "v1"] = old
    revision = commit_of(old) if spelling == "commit" else spelling
    loaded = load("lab/tiny", revision=revision, cache_dir=tmp_path)
    again = load("lab/tiny", revision=revision, cache_dir=tmp_path, local_files_only=True)
    assert loaded.origin["revision"] == again.origin["revision"] == commit_of(old)
    with pytest.raises(ModelNotFoundError, match="lab/tiny is not in the local Hub cache"):
        load("lab/tiny", cache_dir=tmp_path, local_files_only=True)


def test_a_revision_that_is_not_there_is_refused(a_hub, tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such revision"):
        load("lab/tiny", revision="v9", cache_dir=tmp_path)


def test_a_branch_that_has_moved_on_is_fetched_anew(a_hub, tmp_path):
    before = load("lab/tiny", cache_dir=tmp_path).origin["revision"]
    a_hub.repositories["lab/tiny"] |= {"tokenizer_config.json": b"{}"}
    after = load("lab/tiny", cache_dir=tmp_path).origin["revision"]
    assert before != after == commit_of(a_hub.repositories["lab/tiny"])


def test_a_model_in_its_makers_own_format_leads_to_its_sibling(a_hub, tmp_path):
    loaded = load("lab/original", cache_dir=tmp_path)
    note = "lab/original is not in the transformers format: lab/original-hf was used instead"
    again = load("lab/original", cache_dir=tmp_path, local_files_only=True)
    for each in (loaded, again):
        assert each.origin["id"] == "lab/original-hf"
        assert each.origin["revision"] == commit_of(a_hub.repositories["lab/original-hf"])
        assert each.origin["notes"] == [note]


def test_a_revision_of_the_original_is_told_not_to_be_one_of_the_sibling(a_hub, tmp_path):
    a_hub.revisions["lab/original", "v1"] = a_hub.repositories["lab/original"]
    for local in (False, True):
        loaded = load("lab/original", revision="v1", cache_dir=tmp_path, local_files_only=local)
        told = "at its default branch, since the revision v1 is one of lab/original"
        assert told in loaded.origin["notes"][0]
        assert loaded.origin["revision"] == commit_of(a_hub.repositories["lab/original-hf"])


def test_an_original_that_was_fetched_by_another_program_does_not_hide_the_sibling(a_hub, tmp_path):
    load("lab/original", cache_dir=tmp_path)
    commit = commit_of(a_hub.repositories["lab/original"])
    folder = tmp_path / "models--lab--original"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    assert load("lab/original", cache_dir=tmp_path, local_files_only=True).origin["id"] == "lab/original-hf"


def test_a_repository_that_was_renamed_is_followed(a_hub, tmp_path):
    a_hub.moved["lab/old-name"] = "lab/tiny"
    loaded = load("lab/old-name", cache_dir=tmp_path)
    assert loaded.origin["revision"] == commit_of(a_hub.repositories["lab/tiny"])


def test_large_files_come_from_elsewhere_without_the_token(a_hub, tmp_path):
    with serving({"lab/tiny": a_hub.repositories["lab/tiny"]}) as elsewhere:
        a_hub.elsewhere = elsewhere.endpoint
        load("lab/tiny", cache_dir=tmp_path, token="a secret".replace(" ", "-"))
        assert elsewhere.asked == [
            f"/lab/tiny/resolve/{commit_of(elsewhere.repositories['lab/tiny'])}/model.safetensors"
        ]
        assert elsewhere.tokens == [None]
    assert set(a_hub.tokens) == {"Bearer a-secret"}


def test_a_home_in_the_path_of_the_cache_is_understood(a_hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    load("lab/tiny", cache_dir="~/kept")
    assert (tmp_path / "kept" / "models--lab--tiny").is_dir()
    load("lab/tiny", cache_dir="~/kept", local_files_only=True)


def test_weights_in_several_files_are_fetched_whole(a_hub, sharded, tmp_path):
    a_hub.repositories["lab/sharded"] = sharded | {"pytorch_model-00001-of-00002.bin": b"never fetched"}
    whole = tiny("llama")
    ids = torch.tensor([[1, 2, 3]])
    for local in (False, True):
        loaded = load("lab/sharded", cache_dir=tmp_path, local_files_only=local, device="cpu")
        torch.testing.assert_close(loaded.model(ids).logits, whole(ids).logits)
    assert not any(".bin" in path for path in a_hub.asked)


def test_a_missing_part_is_named_before_the_others_are_fetched(a_hub, sharded, tmp_path):
    a_hub.repositories["lab/sharded"] = {name: data for name, data in sharded.items() if name != SHARDS[1]}
    with pytest.raises(ModelNotFoundError, match=f"lab/sharded lacks {SHARDS[1]}, a part of its weights"):
        load("lab/sharded", cache_dir=tmp_path)
    assert not any(name in path for path in a_hub.asked for name in SHARDS)


@pytest.mark.parametrize("file", ["a.gguf", "deep/c[1].gguf"])
@pytest.mark.parametrize("local", [False, True])
def test_a_gguf_file_behind_a_colon_is_the_one_that_gguf_file_names(a_hub, tmp_path, converted, file, local):
    a_hub.revisions["lab/ggufs", "v1"] = {file: b"GGUF of v1"}
    for word, options in (("lab/ggufs:" + file, {}), ("lab/ggufs", {"gguf_file": file})):
        for revision, content in ((None, b"GGUF"), ("v1", b"GGUF of v1")):
            keywords = options | {"revision": revision, "cache_dir": tmp_path}
            with pytest.raises(ModelNotFoundError, match="lab/ggufs was read from"):
                load(word, **keywords)
            if local:
                with pytest.raises(ModelNotFoundError, match="lab/ggufs was read from"):
                    load(word, **keywords, local_files_only=True)
            assert converted[-1].read_bytes() == content
            assert converted[-1].as_posix().endswith("/" + file)
    assert find("lab/ggufs:" + file) == find("lab/ggufs", gguf_file=file)
    assert not any("b.gguf" in path for path in a_hub.asked)


def test_the_only_gguf_file_is_found_again_without_the_hub(a_hub, tmp_path, converted):
    a_hub.repositories["lab/one"] = {"q4/only.gguf": b"GGUF"}
    for local in (False, True):
        with pytest.raises(ModelNotFoundError, match=r"only\.gguf"):
            load("lab/one", cache_dir=tmp_path, local_files_only=local)


def test_two_gguf_files_cannot_be_meant_at_once(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"two GGUF files are named, a\.gguf and --gguf-file b\.gguf"):
        find("lab/ggufs:a.gguf", gguf_file="b.gguf")
    assert find("lab/ggufs:a.gguf", gguf_file="a.gguf").gguf_file == "a.gguf"
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"two GGUF files are named, .*a\.gguf and --gguf-file b\.gguf"):
        find(tmp_path / "a.gguf", gguf_file="b.gguf")


@pytest.mark.parametrize("name", ["odd:name.gguf", "lab:a.gguf", "C:x.gguf"])
def test_a_file_with_a_colon_in_its_name_is_a_file_first(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"GGUF")
    assert find(name).path == tmp_path.resolve() / name


def test_a_directory_takes_a_file_behind_a_colon_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab" / "deep").mkdir(parents=True)
    (tmp_path / "lab" / "deep" / "a.gguf").write_bytes(b"GGUF")
    assert find("lab:deep/a.gguf").path == find(f"{tmp_path}/lab:deep/a.gguf").path
    with pytest.raises(ModelNotFoundError, match=r"has no file b\.gguf"):
        find("lab:b.gguf")


@pytest.mark.parametrize(
    "word", [r"C:\x.gguf", "C:/x.gguf", "C:x.gguf", "./lab:a.gguf", "lab/ggufs:/a.gguf", ":a.gguf"]
)
def test_what_looks_like_a_path_to_a_gguf_file_is_no_repository(word):
    with pytest.raises(ModelNotFoundError, match="no such file or directory"):
        find(word)
