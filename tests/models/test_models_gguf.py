import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from gguf_files import shapes, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as loader

from sinkscope.errors import ModelNotFoundError, UnknownNameError, UnsupportedModelError
from sinkscope.models import cache, converting, find, load
from sinkscope.progress import silent

IDS = torch.tensor([[5, 9, 70, 8, 33, 12, 200]])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf")


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(input_ids=ids).logits


def test_a_converted_model_gives_the_logits_of_the_file_to_the_last_bit(tiny):
    direct = AutoModelForCausalLM.from_pretrained(tiny.parent, gguf_file=tiny.name, dtype=torch.float32).eval()
    assert torch.equal(logits(load(tiny).model), logits(direct))
    assert torch.equal(logits(load(tiny).model), logits(direct))


def test_the_second_load_converts_nothing(tiny, monkeypatch):
    load(tiny)
    monkeypatch.setattr(converting, "read", lambda *_: pytest.fail("converted again"))
    stages = []
    load(tiny, progress=lambda stage, done, total: stages.append((stage, done, total)))
    size = tiny.stat().st_size
    assert ("hashing", size, size) in stages
    assert any(stage == "loading weights" and done == total for stage, done, total in stages)


def test_a_conversion_tells_of_its_progress(tiny):
    stages = []
    load(tiny, progress=lambda stage, done, total: stages.append((stage, done, total)))
    names = [stage for stage, _, _ in stages]
    assert names.index("hashing") < names.index("reading the GGUF header")
    tensors = [(done, total) for stage, done, total in stages if stage.startswith("converting and de-quantizing")]
    assert tensors[-1] == (len(shapes("llama", 1)), len(shapes("llama", 1)))
    assert "checking the converted model" in names


def test_a_converted_model_is_an_ordinary_one(tiny, tmp_path):
    loaded = load(tiny)
    assert not hasattr(loaded.model.config, "quantization_config")
    assert loaded.model.get_output_embeddings().weight is loaded.model.get_input_embeddings().weight
    loaded.model.save_pretrained(tmp_path / "again")
    assert loaded.origin["dtype"] == "float32"
    assert loaded.origin["sha256"] == cache.digest(tiny, silent)


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_what_the_tokenizer_puts_in_front_survives_the_conversion(arch, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", arch)
    direct = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    _, again = loaded = load(path)
    assert direct("").input_ids == again("").input_ids
    if arch == "gemma2":
        assert again("").input_ids == [2] or "BOS" in loaded.origin["notes"][0]
    assert direct("the  bath\n").input_ids == again("the  bath\n").input_ids


def test_a_soft_cap_that_transformers_loses_is_taken_from_the_file(tmp_path):
    capped = load(write_gguf(tmp_path / "capped.gguf", "gemma2", attn_logit_softcapping=2.0))
    plain = load(write_gguf(tmp_path / "plain.gguf", "gemma2"))
    assert capped.model.config.attn_logit_softcapping == 2.0
    assert plain.model.config.attn_logit_softcapping == 50.0
    assert capped.model.config._attn_implementation == "eager"
    assert (logits(capped.model) - logits(plain.model)).abs().max() > 1e-3
    assert any("attn_logit_softcapping is 2" in note for note in load(tmp_path / "capped.gguf").origin["notes"])


def test_a_dtype_can_be_asked_for(tiny):
    assert load(tiny, dtype="bfloat16").origin["dtype"] == "bfloat16"


@pytest.mark.parametrize("share", [0.03, 0.5, 0.999])
def test_a_gguf_file_cut_short_is_refused_in_one_line(tiny, share):
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelNotFoundError, match=r"damaged or cut short .*download it again") as caught:
        load(tiny)
    assert "\n" not in str(caught.value)
    assert cache.entries() == []


def test_an_architecture_that_transformers_cannot_read_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="architecture baichuan is not supported"):
        load(write_gguf(tmp_path / "model.gguf", "baichuan"))


@pytest.mark.parametrize(("content", "fault"), [(b"", "is empty"), (b"hello, world", "does not begin like one")])
def test_what_is_only_named_gguf_is_refused(tmp_path, content, fault):
    path = tmp_path / "notes.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=f"not a GGUF file: it {fault}"):
        find(path)


def test_a_directory_with_one_gguf_file_means_that_file(tiny):
    assert find(tiny.parent).path == tiny.resolve()


def test_a_directory_with_two_gguf_files_needs_a_choice(tiny):
    other = write_gguf(tiny.with_name("other.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"--gguf-file: other.gguf, tiny.gguf"):
        find(tiny.parent)
    assert find(tiny.parent, gguf_file="other.gguf").path == other.resolve()
    with pytest.raises(ModelNotFoundError, match=r"has no file third.gguf: its GGUF files are other.gguf"):
        find(tiny.parent, gguf_file="third.gguf")


def test_the_cache_is_shown_and_cleared(tiny):
    load(tiny)
    (entry,) = cache.entries()
    assert (entry.name, entry.source) == ("tiny", str(tiny.resolve()))
    assert entry.bytes > tiny.stat().st_size // 2
    with pytest.raises(UnknownNameError, match="no 'tinny': it holds tiny"):
        cache.clear("tinny")
    assert cache.clear("tiny") == [entry]
    assert cache.entries() == cache.clear() == []


def test_a_damaged_entry_is_made_again(tiny):
    before = logits(load(tiny).model)
    (entry,) = cache.entries()
    weights = entry.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert cache.entries() == []
    assert torch.equal(logits(load(tiny).model), before)
    assert len(cache.entries()) == 1


def test_a_conversion_that_breaks_off_leaves_no_entry(tiny, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(converting, "_logits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(tiny)
    assert cache.entries() == []
    assert [path.name for path in cache.directory().iterdir() if path.is_dir()] == []


def test_what_a_killed_run_left_is_swept(tiny):
    key = cache._key(cache.digest(tiny, silent))
    left = cache.directory() / f".building-{key}-dead"
    left.mkdir(parents=True)
    load(tiny)
    assert not left.exists()
    left.mkdir()
    cache.clear()
    assert not left.exists()


def test_without_a_writable_cache_the_file_is_read_directly(tiny, tmp_path, monkeypatch):
    expected = logits(load(tiny).model)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "file"))
    loaded = load(tiny)
    assert torch.equal(logits(loaded.model), expected)
    assert any("could not be cached" in note for note in loaded.origin["notes"])
    assert load(tiny, dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_copy_with_other_logits_is_not_kept(tiny, monkeypatch):
    monkeypatch.setattr(converting, "_logits", lambda _: torch.rand(3))
    assert any("other logits" in note for note in load(tiny).origin["notes"])
    assert cache.entries() == []


def test_the_libraries_are_left_as_they_were(tiny):
    before = gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm, transformers.logging.get_verbosity()
    load(tiny)
    tiny.write_bytes(tiny.read_bytes()[:3000])
    with pytest.raises(ModelNotFoundError):
        load(tiny)
    assert before == (gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm, transformers.logging.get_verbosity())


RACE = """
import json, sys
from sinkscope.models import load
stages = []
origin = load(sys.argv[1], progress=lambda stage, done, total: stages.append(stage)).origin
print(json.dumps({"stages": sorted(set(stages)), "parameters": origin["parameters"]}))
"""


@pytest.mark.slow
def test_two_runs_at_once_convert_once(tiny):
    command = [sys.executable, "-c", RACE, str(tiny)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    first, second = (subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2))
    told = [json.loads(run.communicate(timeout=120)[0]) for run in (first, second)]
    assert first.returncode == second.returncode == 0
    assert sum("reading the GGUF header" in run["stages"] for run in told) == 1
    assert told[0]["parameters"] == told[1]["parameters"]
    assert len(cache.entries()) == 1


def test_whoever_comes_second_waits_and_says_so(tiny):
    key = cache.digest(tiny, silent)
    waits = []

    class EnoughError(Exception):
        pass

    def listen(stage, done, total):
        waits.append((stage, done, total))
        raise EnoughError

    with cache.locked(key, silent), pytest.raises(EnoughError), cache.locked(key, listen):
        pytest.fail("two hold one lock")
    assert waits == [("waiting for another run to convert this file", 1, None)]


@pytest.mark.slow
def test_the_embedded_model_converts_without_a_difference():
    source = find(None)
    direct = AutoModelForCausalLM.from_pretrained(
        source.path.parent, gguf_file=source.path.name, dtype=torch.float32
    ).eval()
    loaded = load()
    assert torch.equal(logits(loaded.model), logits(direct))
    assert loaded.tokenizer("").input_ids == []
    assert loaded.origin["name"] == "SmolLM2-135M-Instruct (embedded)"
    assert loaded.origin["parameters"] == 134_515_008
