"""Reads a GGUF file into an ordinary model, and keeps it in a form that loads in a tenth of the time."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_gguf_pytorch_utils,
)

from sinkscope.errors import ModelNotFoundError, UnsupportedModelError
from sinkscope.models import cache
from sinkscope.models.bars import bar
from sinkscope.models.contents import UNAPPLIED, split_refusal
from sinkscope.models.failures import first_line
from sinkscope.models.hyperparameters import set_hyperparameters
from sinkscope.models.rotary import FACTORS, set_rotary
from sinkscope.models.tensors import refuse_unused, require_used, set_by_tensors
from sinkscope.progress import Progress

_SAMPLE = "The 1st line,\n\n\t2. \u201cand\u201d  the next \u2014 \u00e9\u4e2d\U0001f600."


class UnfaithfulCopyError(Exception):
    """A converted copy does not behave as the file it was made from."""


@dataclass(frozen=True)
class Converted:
    """A model and a tokenizer as they are in a GGUF file, in float32 and without any trace of quantization."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    notes: tuple[str, ...]


def convert(path: Path, sha256: str, progress: Progress) -> cache.Entry | Converted:
    """The cache's copy of a GGUF file, made now if there is none; the model itself if none can be kept."""
    made: Converted | None = None
    try:
        with cache.locked(sha256, progress):
            found = cache.lookup(sha256)
            if found is not None:
                return found
            made = read(path, progress)
            with cache.building(sha256, path, made.notes) as folder:
                _store(made, folder, progress)
        return cache.lookup(sha256) or _kept_in_memory(made, "it vanished from there")
    except (OSError, SafetensorError, UnfaithfulCopyError) as error:
        return _kept_in_memory(made or read(path, progress), first_line(error))


def read(path: Path, progress: Progress) -> Converted:
    """The model in a GGUF file, through transformers' own loader; minutes for some hundred MB.

    Raises ModelNotFoundError for a damaged file, UnsupportedModelError for one that transformers cannot read.
    """
    with _parsed_once(), _told(progress):
        progress("reading the GGUF header", 0, None)
        metadata = _metadata(path)
        _require_whole(path, metadata)
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        try:
            config = AutoConfig.from_pretrained(**where)
            notes = _complete(config, metadata, path)
            tokenizer = AutoTokenizer.from_pretrained(**where)
            raw, info = AutoModelForCausalLM.from_pretrained(
                **where, config=config, dtype=torch.float32, output_loading_info=True, adapter_kwargs=UNAPPLIED
            )
        except (
            ValueError,
            KeyError,
            NotImplementedError,
            TypeError,
            AttributeError,
            StrictDataclassError,
        ) as error:
            raise UnsupportedModelError(
                f"{path} cannot be loaded by transformers: {first_line(error)}; use the original checkpoint"
            ) from error
    refuse_unused(config, info["unexpected_keys"])
    if info["missing_keys"]:
        raise ModelNotFoundError(f"{path} lacks the weights of {min(info['missing_keys'])}: use another file")
    if metadata.get("tokenizer.ggml.add_bos_token") and not tokenizer("").input_ids:
        notes.append("the file asks for BOS in front of a text, but transformers' tokenizer for it does not add it")
    return Converted(_without_quantization(raw), tokenizer, tuple(notes))


def _kept_in_memory(made: Converted, reason: str) -> Converted:
    note = f"the converted model could not be cached in {cache.directory()} ({reason}): the next run converts again"
    return Converted(made.model, made.tokenizer, (*made.notes, note))


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Within, a file's header and an architecture's name map are worked out once instead of once a module."""
    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = functools.cache(reader), functools.cache(name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


@contextmanager
def _told(progress: Progress) -> Iterator[None]:
    """Within, the bar of the GGUF loader tells `progress`: it is a tqdm of its own, which no hook reaches."""
    own = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = bar(progress)
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = own


def _metadata(path: Path) -> dict[str, Any]:
    """What the header says, without the lists that make up a vocabulary."""
    try:
        fields = gguf.GGUFReader(str(path)).fields
        return {
            name: field.contents()
            for name, field in fields.items()
            if len(field.data) == 1 or not name.startswith("tokenizer.")
        }
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise ModelNotFoundError(f"{path} is damaged or cut short ({first_line(error)}): download it again") from error


def _require_whole(path: Path, metadata: dict[str, Any]) -> None:
    """Raise ModelNotFoundError for one part of several, under whatever name."""
    parts = int(metadata.get("split.count", 1))
    if parts > 1:
        raise split_refusal(path.name, int(metadata.get("split.no", 0)) + 1, parts)


def _complete(config: Any, metadata: dict[str, Any], path: Path) -> list[str]:
    """Give a configuration all that its file says and that transformers' loader drops; what was changed.

    Raises UnsupportedModelError with what cannot be applied.
    """
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}
    factors = {
        name: torch.from_numpy(gguf.dequantize(tensors[name].data, tensors[name].tensor_type).copy())
        for name in FACTORS
        if name in tensors
    }
    notes = set_hyperparameters(config, metadata) + set_rotary(config, metadata, factors)
    notes += set_by_tensors(config, tensors)
    require_used(config, str(metadata.get("general.architecture")), tensors)
    return notes


def _without_quantization(raw: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that can be saved, moved and trained; the GGUF loader's refuses all that."""
    config = raw.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(raw.state_dict(), assign=True)
    plain.tie_weights()
    return plain.eval()


def _store(made: Converted, folder: Path, progress: Progress) -> None:
    """Save, load again, and accept only what behaves to the last bit as the original does."""
    progress("saving the converted model", 0, None)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder)
    # The empty text shows what the tokenizer puts in front; its add_bos_token does not survive reliably.
    for text in ("", _SAMPLE):
        if made.tokenizer(text).input_ids != again(text).input_ids:
            raise UnfaithfulCopyError(f"the tokenizer's copy reads {text!r} differently")
    progress("checking the converted model", 0, None)
    if not torch.equal(_logits(made.model), _logits(AutoModelForCausalLM.from_pretrained(folder))):
        raise UnfaithfulCopyError("the model's copy gives other logits")


def _logits(model: PreTrainedModel) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.linspace(0, vocabulary - 1, 16).long()[None]
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(input_ids=ids, use_cache=False).logits
    return logits
