"""Weights in safetensors, in one file or in several, and pickled ones, which are opened only on request."""

import json
import os
import pickle

import pytest
import torch
from builders import tiny
from hub import files_of, serving

from sinkscope.errors import ModelNotFoundError
from sinkscope.models import load
from sinkscope.models.weights import weight_files

IDS = torch.tensor([[1, 2, 3]])
INDEX = "pytorch_model.bin.index.json"


class Trap:
    """A pickle that leaves a file behind when it is opened as pickles are."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (os.mkdir, (str(self.place),))


@pytest.fixture
def folder(tmp_path):
    """A model without its weights."""
    path = tmp_path / "tiny"
    tiny("llama").save_pretrained(path)
    (path / "model.safetensors").unlink()
    return path


@pytest.fixture
def trap(tmp_path):
    return Trap(tmp_path / "sprung")


def pickled(folder):
    """Put the weights there in one pickle."""
    torch.save(tiny("llama").state_dict(), folder / "pytorch_model.bin")


def pickled_in_parts(folder):
    """Put the weights there in two pickles with an index."""
    weights, parts = tiny("llama").state_dict(), {}
    for number, name in enumerate(weights):
        parts.setdefault(f"pytorch_model-0000{1 + number % 2}-of-00002.bin", []).append(name)
    for part, names in parts.items():
        torch.save({name: weights[name] for name in names}, folder / part)
    weight_map = {name: part for part, names in parts.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def refused(match, *arguments, **keywords):
    with pytest.raises(ModelNotFoundError, match=match) as caught:
        load(*arguments, **keywords)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("put", [pickled, pickled_in_parts])
def test_pickled_weights_are_read_only_when_allowed(folder, put, monkeypatch):
    put(folder)
    opened, real = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *words, **options: opened.append(options) or real(*words, **options))
    refused(r"tiny has its weights only as pytorch_model.*\.bin, a pickle.*or pass --allow-pickle", folder)
    assert opened == []
    loaded = load(folder, allow_pickle=True, device="cpu")
    torch.testing.assert_close(loaded.model(IDS).logits, tiny("llama")(IDS).logits)
    assert loaded.origin["notes"][0].startswith("the weights are pickled (pytorch_model")
    assert opened
    assert all(options["weights_only"] is True for options in opened)


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_pickle_that_runs_code_is_refused_although_pickles_are_allowed(folder, trap, form, dtype):
    # Without a dtype in its configuration, a checkpoint is opened once more to find it out.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    path = folder / "pytorch_model.bin"
    if form == "bare":
        path.write_bytes(pickle.dumps(trap, protocol=2))
    else:
        torch.save({"model.norm.weight": trap}, path, _use_new_zipfile_serialization=form == "zip")
    refused("tiny holds more than tensors and is refused even with --allow-pickle", folder, allow_pickle=True)
    assert not trap.place.exists()


@pytest.mark.parametrize("allow", [False, True])
def test_beside_safetensors_a_pickle_is_not_even_opened(folder, trap, allow):
    tiny("llama").save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(trap))
    loaded = load(folder, allow_pickle=allow)
    assert not any("pickle" in note for note in loaded.origin["notes"])
    assert not trap.place.exists()


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../model.safetensors", "/model.safetensors", None])
def test_an_index_cannot_lead_to_anything_but_shards(folder, trap, shard):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(trap))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": shard}}))
    refused("has an? .*index.json (that names|: download)|damaged", folder, allow_pickle=True)
    assert not trap.place.exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"a": ["b"]}}'])
def test_a_damaged_index_is_told(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    refused("tiny has a damaged model.safetensors.index.json: download it again", folder)


@pytest.mark.parametrize("put", [pickled, pickled_in_parts])
def test_pickles_cut_short_are_told(folder, put):
    put(folder)
    path = min(folder.glob("*.bin"))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nonsense"):
        path.write_bytes(content)
        refused("weights of tiny are damaged or cut short: download them again", folder, allow_pickle=True)


def test_a_missing_pickle_is_named(folder):
    pickled_in_parts(folder)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    refused("tiny lacks pytorch_model-00002-of-00002.bin, a part of its weights", folder, allow_pickle=True)
    (folder / INDEX).unlink()
    refused(f"tiny lacks {INDEX}, a part of its weights", folder, allow_pickle=True)


@pytest.mark.parametrize("put", [pickled, pickled_in_parts])
def test_pickles_of_a_repository_are_fetched_only_when_allowed(folder, put, tmp_path, monkeypatch):
    put(folder)
    with serving({"lab/old": files_of(folder) | {"optimizer.bin": b"", "training_args.bin": b""}}) as hub:
        hub.within(monkeypatch)
        refused("only as pytorch_model.*--allow-pickle", "lab/old", cache_dir=tmp_path)
        assert not any(path.endswith(".bin") for path in hub.asked)
        for local in (False, True):
            loaded = load("lab/old", cache_dir=tmp_path, allow_pickle=True, local_files_only=local, device="cpu")
            torch.testing.assert_close(loaded.model(IDS).logits, tiny("llama")(IDS).logits)
        assert not any("optimizer" in path or "training" in path for path in hub.asked)
        refused("only as pytorch_model.*--allow-pickle", "lab/old", cache_dir=tmp_path, local_files_only=True)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("model.safetensors pytorch_model.bin", "model.safetensors"),
        ("model-00001-of-00002.safetensors model.fp16.safetensors", "model-00001-of-00002.safetensors"),
        ("pytorch_model.bin adapter_model.safetensors consolidated.safetensors", "pytorch_model.bin"),
        ("pytorch_model-00001-of-00002.bin deep/model.safetensors", "pytorch_model-00001-of-00002.bin"),
        ("model.safetensors.index.json pytorch_model.bin", ""),
    ],
)
def test_the_weights_among_other_files_are_known_by_their_names(names, expected):
    assert weight_files(names.split(), "x", allow_pickle=True) == expected.split()


@pytest.mark.parametrize("names", ["", "training_args.bin", "consolidated.00.pth", "model.fp16.safetensors", "x/y.bin"])
def test_what_is_no_weights_of_transformers_is_told(names):
    other = f"no weights but {names}, which" if names.startswith(("t", "c")) else "no weights:"
    with pytest.raises(ModelNotFoundError, match=f"x holds {other}.*is needed"):
        weight_files(names.split(), "x", allow_pickle=True)
