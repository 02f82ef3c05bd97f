"""Turns what goes wrong inside the libraries that load models into one line with the remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError

from sinkscope.errors import ModelNotFoundError, SinkscopeError, UnsupportedModelError

_SECRET = re.compile(r"hf_\w{8,}")

_KNOWN: tuple[tuple[type[BaseException], str], ...] = (
    (
        GatedRepoError,
        "{name} is gated: accept its terms at https://huggingface.co/{name}, then set HF_TOKEN or run `hf auth login`",
    ),
    (
        RepositoryNotFoundError,
        "{name} is not on the Hub, or is private: check the spelling, or set HF_TOKEN if it is yours",
    ),
    (RevisionNotFoundError, "{name} has no such revision: give a branch, a tag or a commit of it"),
    (
        OfflineModeIsEnabled,
        "{name} is not on this disk and offline mode is on: unset HF_HUB_OFFLINE, or download it beforehand",
    ),
    (
        LocalEntryNotFoundError,
        "{name} is not in the local Hub cache: allow it to be downloaded, or give a directory",
    ),
    (HFValidationError, "{name} is not a Hub id: an id looks like owner/name"),
    (EntryNotFoundError, "{name} lacks a file that is needed to load it: {message}"),
    (HfHubHTTPError, "{name} could not be fetched from the Hub: {message}; try again later"),
    (SafetensorError, "the weights of {name} are damaged or cut short ({message}): download them again"),
    (
        torch.OutOfMemoryError,
        "{name} does not fit into the memory of the device: try --dtype bfloat16 or --device-map auto",
    ),
)

_BY_MESSAGE: tuple[tuple[str, type[SinkscopeError], str], ...] = (
    (
        r"trust_remote_code",
        ModelNotFoundError,
        "{name} runs code of its own: read that code, then pass --trust-remote-code (trust_remote_code=True)",
    ),
    (
        r"model type `([^`]+)` but Transformers does not recognize",
        UnsupportedModelError,
        "{name} is of type {found}, which this transformers does not know: try `pip install -U transformers`",
    ),
    (
        r"Unrecognized model in|Should have a `model_type` key",
        ModelNotFoundError,
        "the config.json of {name} names no known model_type: it is not a model in the transformers format",
    ),
    (
        r"Unrecognized configuration class <class '(?:[\w.]*\.)?(\w+)'>",
        UnsupportedModelError,
        "{name} is no causal language model ({found}): give a model that predicts the next token",
    ),
    (
        r"not a valid JSON file",
        ModelNotFoundError,
        "{name} has a config.json that is not valid JSON: download it again",
    ),
    (
        r"mismatched sizes|size mismatch|ignore_mismatched_sizes",
        ModelNotFoundError,
        "the weights of {name} have other shapes than its config.json says: the two do not belong together",
    ),
)


def first_line(error: BaseException) -> str:
    """What an error says, in one line and without secrets."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _SECRET.sub("hf_…", lines[0][:300].rstrip(".:") if lines else type(error).__name__)


def out_of_reach(error: BaseException) -> bool:
    """Whether an error says that the Hub could not be reached at all."""
    # The Hub's client is built on httpx in one major version and on its fork in the next.
    transport = any(base.__name__ == "TransportError" for base in type(error).__mro__)
    broken = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, OfflineModeIsEnabled)
    return transport or broken


@contextmanager
def one_line(name: str) -> Iterator[None]:
    """Within, every error of a library becomes a SinkscopeError about the model `name`."""
    try:
        yield
    except SinkscopeError:
        raise
    except Exception as error:
        raise refusal(error, name) from error


def refusal(error: BaseException, name: str) -> SinkscopeError:
    """The one line for an error, decided by the first in its chain that is known."""
    chain = list(_chain(error))
    # A lost connection goes first: the Hub's client wraps it in an error about its cache.
    for link in filter(out_of_reach, chain):
        return ModelNotFoundError(
            f"{name} is not on this disk and the Hub could not be reached ({first_line(link)}): "
            "check the connection, or give a local directory"
        )
    for link in chain:
        for kind, advice in _KNOWN:
            if isinstance(link, kind):
                return ModelNotFoundError(advice.format(name=name, message=first_line(link)))
    for link in chain:
        for pattern, kind_of_refusal, advice in _BY_MESSAGE:
            found = re.search(pattern, str(link))
            if found:
                return kind_of_refusal(advice.format(name=name, found=found[1] if found.groups() else ""))
    return ModelNotFoundError(f"{name} cannot be loaded: {first_line(error)} ({type(error).__name__})")


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
