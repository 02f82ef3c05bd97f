"""What every row works on: a model, one window of tokens, and the classes of its tokens."""

import functools
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

import sinkscope
from sinkscope.text import corpus
from sinkscope.tokens import classify, read

INITIAL = 4


@dataclass(frozen=True, eq=False)
class Workload:
    """A model and one window; `marked` holds a bool tensor [window, position] per class."""

    model: PreTrainedModel
    tokenizer: Any
    windows: corpus.Windows
    marked: dict[str, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: Any, windows: corpus.Windows) -> "Workload":
        """The window with the classes that `sinkscope measure` knows by default."""
        return cls(model, tokenizer, windows, classify(read(tokenizer, windows.ids, windows.keep, INITIAL)))

    @property
    def ids(self) -> Tensor:
        """Token ids [window, position], where the model is."""
        return self.windows.ids.to(self.model.device)

    @property
    def length(self) -> int:
        """Tokens in the window."""
        return self.windows.ids.shape[1]


@functools.cache
def embedded_model() -> tuple[PreTrainedModel, Any]:
    """SmolLM2-135M-Instruct in fp32 from its converted copy, and its tokenizer."""
    model, tokenizer = sinkscope.load(device="cpu")
    return model, tokenizer


@functools.cache
def embedded(length: int) -> Workload:
    """The embedded model and the beginning of the built-in text."""
    model, tokenizer = embedded_model()
    windows = corpus.windows(tokenizer, corpus.read_documents([]), seq_len=length, count=1)
    return Workload.of(model, tokenizer, windows)
