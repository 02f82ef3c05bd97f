"""The tokenizer that a directory holds, as AutoTokenizer finds it, if there is one."""

from collections.abc import Collection
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sinkscope.models.failures import first_line

_NONE = "there is no tokenizer: only token ids can be measured, not text"
_VOCABULARIES = {
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
}
_SUFFIXES = (".tiktoken", "tiktoken.model")


def tokenizer_of(
    directory: Path, names: Collection[str], *, trust_remote_code: bool, local_files_only: bool
) -> tuple[PreTrainedTokenizerBase | None, list[str]]:
    """The tokenizer in a directory that holds files of these names, and what the reader should know about it.

    Raises what AutoTokenizer raises where there is a vocabulary, or code that may not run.
    """
    options = {"trust_remote_code": trust_remote_code, "local_files_only": local_files_only}
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, **options)
    except Exception as error:
        if _has_vocabulary(names) or "trust_remote_code" in str(error):
            raise
        configured = "tokenizer_config.json" in names
        return None, [f"{_NONE} ({first_line(error)})" if configured else _NONE]
    # Without its files, a tokenizer of most classes is made all the same, and knows no word.
    files = set(tokenizer.vocab_files_names.values())
    if files and files.isdisjoint(names) and not _has_vocabulary(names):
        return None, [_NONE]
    return tokenizer, []


def _has_vocabulary(names: Collection[str]) -> bool:
    return any(name in _VOCABULARIES or name.endswith(_SUFFIXES) for name in names)
