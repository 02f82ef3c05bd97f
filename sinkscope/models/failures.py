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
from sinkscope.models.redacting import without_secrets

AGAIN = "download them again"
"""What to do about damaged weights where nothing better is known."""

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
    (SafetensorError, "the weights of {name} are damaged or cut short ({message}): {again}"),
    (EOFError, "the weights of {name} are damaged or cut short: {again}"),
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
    (
        r"(?i)unsupported (global|class)|unrecognized function",
        ModelNotFoundError,
        "the pickle of {name} holds more than tensors and is refused even with --allow-pickle: use safetensors",
    ),
    (
        r"Weights only load failed|PytorchStreamReader|unexpected EOF",
        ModelNotFoundError,
        "the weights of {name} are damaged or cut short: {again}",
    ),
)


def first_line(error: BaseException, token: str | None = None) -> str:
    """What an error says, in one line and without secrets, of which `token` is one."""
    # Secrets go first: half of one, at a cut, would not be known any more.
    lines = [line.strip() for line in without_secrets(str(error), token).splitlines() if line.strip()]
    return lines[0][:300].rstrip(".:") if lines else type(error).__name__


def unavailable(error: BaseException) -> bool:
    """Whether the Hub could not be asked at all: out of reach, broken, or left alone in offline mode."""
    return out_of_reach(error) or isinstance(error, OfflineModeIsEnabled) or _status(error) >= 500


def out_of_reach(error: BaseException) -> bool:
    """Whether an error says that the Hub could not be reached."""
    # The Hub's client is built on httpx in one major version and on its fork in the next.
    transport = any(base.__name__ in {"TransportError", "TooManyRedirects"} for base in type(error).__mro__)
    broken = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, OfflineModeIsEnabled)
    return transport or broken


@contextmanager
def one_line(name: str, token: str | None = None, again: str = AGAIN) -> Iterator[None]:
    """Within, every error of a library becomes a SinkscopeError about the model `name`.

    `token` is kept out of it, and `again` is the remedy for damaged weights.
    """
    try:
        yield
    except SinkscopeError:
        raise
    except Exception as error:
        # The cause is shown in a traceback, where nothing can be taken out of it any more.
        if any(without_secrets(str(link), token) != str(link) for link in _chain(error)):
            raise refusal(error, name, token, again) from None
        raise refusal(error, name, token, again) from error


def refusal(error: BaseException, name: str, token: str | None = None, again: str = AGAIN) -> SinkscopeError:
    """The one line for an error, decided by the first in its chain that is known."""
    # What the cache lacks is known last: the client says so whatever it was that kept it from downloading.
    chain = sorted(_chain(error), key=lambda link: isinstance(link, LocalEntryNotFoundError))
    for link in filter(out_of_reach, chain):
        return ModelNotFoundError(
            f"{name} is not on this disk and the Hub could not be reached ({first_line(link, token)}): "
            "check the connection and HF_ENDPOINT, or give a local directory"
        )
    for link in chain:
        # The subclasses say more: a missing repository is a 401 too, for whoever is not logged in.
        if type(link) is HfHubHTTPError and _status(link) == 401:
            return ModelNotFoundError(
                f"{name} could not be fetched, because the Hub does not accept the token: get another one at "
                "https://huggingface.co/settings/tokens, or unset HF_TOKEN"
            )
        for kind, advice in _KNOWN:
            if isinstance(link, kind):
                return ModelNotFoundError(advice.format(name=name, message=first_line(link, token), again=again))
    for link in chain:
        for pattern, kind_of_refusal, advice in _BY_MESSAGE:
            found = re.search(pattern, str(link))
            if found:
                return kind_of_refusal(advice.format(name=name, found=found[1] if found.groups() else "", again=again))
    return ModelNotFoundError(f"{name} cannot be loaded: {first_line(error, token)} ({type(error).__name__})")


def _status(error: BaseException) -> int:
    """The HTTP status that an error of the Hub's client is about, else 0."""
    return int(error.response.status_code) if isinstance(error, HfHubHTTPError) else 0


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
