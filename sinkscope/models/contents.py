"""What the files of a model's folder say about it, local or on the Hub, before any of them is opened."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from sinkscope.errors import ModelNotFoundError

_PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
_TALK = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
_TOKENIZERS = {
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
}


def chosen_gguf(names: Iterable[str], gguf_file: str | None, where: str) -> str | None:
    """The GGUF file that is meant: the one asked for, or the only one; None if there is none at all.

    Raises ModelNotFoundError when the one asked for is missing, or several would do.
    """
    present = sorted(name for name in names if name.endswith(".gguf"))
    listing = ", ".join(present[:8]) + (", …" if len(present) > 8 else "")
    if gguf_file is not None:
        if gguf_file not in present:
            raise ModelNotFoundError(f"{where} has no file {gguf_file}: its GGUF files are {listing or 'none'}")
        return gguf_file
    if len(present) > 1:
        raise ModelNotFoundError(f"{where} holds several GGUF files: choose one with --gguf-file: {listing}")
    return present[0] if present else None


def require_config(names: Iterable[str], where: str) -> None:
    """Raise ModelNotFoundError if there is no config.json among the names."""
    present = set(names)
    if "adapter_config.json" in present and "config.json" not in present:
        raise ModelNotFoundError(f"{where} is a PEFT adapter: merge it into its base model and give that")
    if "config.json" not in present:
        raise ModelNotFoundError(f"{where} without a config.json: give a model in the transformers format")


def require_safetensors(names: Iterable[str], where: str) -> None:
    """Raise ModelNotFoundError if the weights are missing, or pickled only."""
    top = [name for name in names if "/" not in name]
    if any(name.endswith(".safetensors") for name in top):
        return
    pickled = sorted(name for name in top if PurePosixPath(name).suffix in _PICKLED)
    if pickled:
        raise ModelNotFoundError(
            f"{where} has its weights only as {pickled[0]}, a pickle, which can run any code when it is opened: "
            "convert it to safetensors first"
        )
    raise ModelNotFoundError(f"{where} holds no weights: a .safetensors file is needed")


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether any of the names is a tokenizer's vocabulary."""
    return any(name in _TOKENIZERS or name.endswith(".tiktoken") for name in names)


def wanted(names: Iterable[str], *, code: bool) -> list[str]:
    """The files of a repository that loading it needs; its Python files only if its code may run."""
    return [
        name
        for name in names
        if (code and name.endswith(".py"))
        or ("/" not in name and (PurePosixPath(name).suffix in _TALK or _is_weights(name)))
    ]


def _is_weights(name: str) -> bool:
    # consolidated.* doubles the weights in Mistral's own format; model.fp16.safetensors is a variant.
    stem, dot, suffix = name.partition(".")
    return bool(dot) and suffix == "safetensors" and not stem.startswith(("consolidated", "adapter_model"))
