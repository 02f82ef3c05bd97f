"""What every test may ask for; nothing here touches a network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from builders import byte_tokenizer, tiny
from fixtures_cli import call
from transformers import PreTrainedTokenizerFast

torch.set_num_threads(1)  # the models are too small to share out


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A token for every byte."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory, tokenizer):
    """A directory with a tiny llama and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny("llama", max_position_embeddings=512).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def ids() -> torch.Tensor:
    """Three rows of random tokens."""
    return torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run(capfd, monkeypatch):
    """The command line as a function, without a model of the user's and a hundred columns wide."""
    monkeypatch.delenv("SINKSCOPE_MODEL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: call(capfd, monkeypatch, *words)
