"""What lies beside a model's weights: an adapter, a pointer, a tokenizer of any kind, and an attention of its own."""

import base64
import json
import shutil

import pytest
import torch
from builders import tiny
from gguf_files import gguf_of
from hub import files_of, serving
from transformers import AttentionInterface, AutoTokenizer
from transformers.integrations import peft
from transformers.models.auto import auto_factory

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import find, load

IDS = torch.tensor([[1, 2, 3, 4]])
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"
PARTS = [f"model-Q8-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture
def folder(tiny_llama, tmp_path):
    """A copy of a whole model, to be spoilt."""
    return shutil.copytree(tiny_llama, tmp_path / "tiny")


def rewrite(path, **changes):
    record = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(record | changes))


@pytest.mark.parametrize("peft_is_there", [False, True])
def test_an_adapter_beside_whole_weights_is_never_applied_and_told(folder, monkeypatch, peft_is_there):
    plain = load(folder)
    rewrite(folder / "adapter_config.json", base_model_name_or_path="lab/base", peft_type="LORA")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    for module in (peft, auto_factory):
        monkeypatch.setattr(module, "is_peft_available", lambda: peft_is_there)
    loaded = load(folder)
    assert torch.equal(loaded.model(IDS).logits, plain.model(IDS).logits)
    assert [note for note in loaded.origin["notes"] if "adapter_config.json is not applied" in note]
    assert plain.origin["notes"] == []


def test_an_adapter_beside_a_gguf_file_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    for module in (peft, auto_factory):
        monkeypatch.setattr(module, "is_peft_available", lambda: True)
    rewrite(tmp_path / "adapter_config.json", base_model_name_or_path="lab/base", peft_type="LORA")
    assert load(gguf_of(tiny("llama", vocab_size=264), tmp_path / "model.gguf")).origin["kind"] == "gguf"


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize(
    "name", ["flash_attention_2", "flash_attention_3", "flex_attention", "paged|sdpa", "kernels-community/flash-attn"]
)
def test_a_fused_attention_in_the_configuration_gives_way_to_a_plain_one(folder, key, name):
    plain = load(folder)
    rewrite(folder / "config.json", **{key: name})
    loaded = load(folder)
    assert loaded.model.config._attn_implementation == plain.model.config._attn_implementation == "sdpa"
    assert torch.equal(loaded.model(IDS).logits, plain.model(IDS).logits)
    assert [note for note in loaded.origin["notes"] if name in note and "sdpa or eager" in note]


def test_a_model_without_sdpa_is_put_on_eager_instead(tmp_path):
    tiny("gpt_oss").save_pretrained(tmp_path / "oss")
    rewrite(tmp_path / "oss" / "config.json", attn_implementation="flash_attention_2")
    assert load(tmp_path / "oss").model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["eager", "sdpa", "my_own"])
def test_a_plain_attention_in_the_configuration_is_kept(folder, name, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "my_own", AttentionInterface._global_mapping["sdpa"])
    rewrite(folder / "config.json", attn_implementation=name)
    loaded = load(folder)
    assert (loaded.model.config._attn_implementation, loaded.origin["notes"]) == (name, [])


def without_tokenizer(folder):
    for path in (*folder.glob("tokenizer*"), *folder.glob("special*")):
        path.unlink()


def test_a_tokenizer_without_files_is_taken(folder):
    without_tokenizer(folder)
    rewrite(folder / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    loaded = load(folder)
    assert loaded.tokenizer("ab").input_ids == [100, 101, 1]
    assert loaded.origin["notes"] == []


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "gemma2", "gpt_neox", "cohere2"])
def test_a_tokenizer_that_would_know_no_word_is_not_taken(model_type, tmp_path):
    # AutoTokenizer makes one of a handful of tokens for most of these.
    tiny(model_type).save_pretrained(tmp_path / "bare")
    loaded = load(tmp_path / "bare")
    assert loaded.tokenizer is None
    assert any("only token ids" in note for note in loaded.origin["notes"])


def test_a_vocabulary_of_mistrals_own_is_read(tmp_path):
    tiny("mistral").save_pretrained(tmp_path / "mistral")
    entries = [{"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode()} for rank in range(256)]
    special = [{"rank": rank, "token_str": f"<{rank}>", "is_control": True} for rank in range(4)]
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 260, "default_num_special_tokens": 4, "version": "v3"}
    tekken = {"config": config, "vocab": entries, "special_tokens": special}
    (tmp_path / "mistral" / "tekken.json").write_text(json.dumps(tekken))
    tokenizer = load(tmp_path / "mistral").tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer("ab", add_special_tokens=False).input_ids) == "ab"


def test_a_vocabulary_whose_reader_is_missing_names_the_package(folder, monkeypatch):
    without_tokenizer(folder)
    (folder / "tiktoken.model").write_text("YQ== 0\n")

    def missing(*_, **__):
        raise ValueError("`tiktoken` is required to read a `tiktoken` file. Install it with `pip install tiktoken`.")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", missing)
    with pytest.raises(ModelNotFoundError, match="Install it with `pip install tiktoken`"):
        load(folder)


def test_code_of_a_tokenizer_runs_only_when_allowed(folder):
    without_tokenizer(folder)
    (folder / "own.py").write_text("raise SystemExit\n")
    rewrite(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    with pytest.raises(ModelNotFoundError, match=r"runs code of its own.*--trust-remote-code"):
        load(folder)


def test_a_damaged_vocabulary_is_an_error_and_not_a_missing_one(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelNotFoundError):
        load(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
def test_a_pointer_in_place_of_a_file_names_it_and_the_remedy(folder, file):
    (folder / file).write_bytes(POINTER)
    with pytest.raises(ModelNotFoundError, match=rf"tiny: {file} is a Git LFS pointer .*`git lfs pull` in {folder}$"):
        load(folder)


def test_a_pointer_that_is_not_needed_does_no_harm(folder):
    (folder / "pytorch_model.bin").write_bytes(POINTER)
    assert load(folder).origin["kind"] == "directory"


def test_a_pointer_in_place_of_a_gguf_file_names_the_remedy(tmp_path):
    (tmp_path / "model.gguf").write_bytes(POINTER)
    for word in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(
            ModelNotFoundError, match=rf"model\.gguf is a Git LFS pointer .*`git lfs pull` in {tmp_path}"
        ):
            find(word)


def test_a_pointer_in_a_repository_is_told_with_what_to_delete(folder, tmp_path, monkeypatch):
    with serving({"lab/tiny": files_of(folder) | {"tokenizer.json": POINTER}, "lab/gguf": {"a.gguf": POINTER}}) as hub:
        hub.within(monkeypatch)
        with pytest.raises(
            ModelNotFoundError, match=r"tokenizer\.json is a Git LFS pointer .*: delete .*lab--tiny and"
        ):
            load("lab/tiny", cache_dir=tmp_path)
        with pytest.raises(ModelNotFoundError, match=r"a\.gguf is a Git LFS pointer"):
            load("lab/gguf", cache_dir=tmp_path)


def merge_of(name, part=1):
    command = rf"`llama-gguf-split --merge {PARTS[0]} whole\.gguf`"
    return f"{name} is part {part} of 3 of a model: merge the parts with .*{command}"


def test_the_parts_of_a_gguf_file_are_to_be_merged(tmp_path):
    for name in PARTS:
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=merge_of(PARTS[0])):
        find(tmp_path)
    with pytest.raises(ModelNotFoundError, match=merge_of(PARTS[1], 2)):
        find(tmp_path / PARTS[1])
    with pytest.raises(ModelNotFoundError, match=merge_of(PARTS[2], 3)):
        find(tmp_path, gguf_file=PARTS[2])
    (tmp_path / "whole.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match="holds several GGUF files: choose one"):
        find(tmp_path)
    assert find(tmp_path / "whole.gguf").kind == "gguf"


def test_the_parts_of_a_gguf_file_in_a_repository_are_not_even_fetched(tmp_path, monkeypatch):
    files = dict.fromkeys((f"deep/{name}" for name in PARTS), b"GGUF")
    with serving({"lab/parts": files, "lab/both": files | {"small.gguf": b"GGUF"}}) as hub:
        hub.within(monkeypatch)
        for word in ("lab/parts", f"lab/parts:deep/{PARTS[0]}", f"lab/both:deep/{PARTS[0]}"):
            with pytest.raises(ModelNotFoundError, match=merge_of(f"deep/{PARTS[0]}")):
                load(word, cache_dir=tmp_path)
        assert not any(path.endswith(".gguf") for path in hub.asked)
