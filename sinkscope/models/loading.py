"""Loads a causal language model with its tokenizer, ready to be measured, and says where it came from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from sinkscope.arguments.values import function, got
from sinkscope.errors import ModelNotFoundError, UnknownNameError, UnsupportedModelError
from sinkscope.models import cache, hub
from sinkscope.models.bars import heard
from sinkscope.models.contents import UNAPPLIED, left_out, require_content, wanted
from sinkscope.models.failures import AGAIN, one_line
from sinkscope.models.finding import find
from sinkscope.models.implementation import without_fused_attention
from sinkscope.models.snapshots import Request, cached_folder
from sinkscope.models.tokenizer import tokenizer_of
from sinkscope.models.weights import files_in, lacking, weight_files
from sinkscope.progress import Progress, silent

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""The number formats a model can be loaded in; auto is the checkpoint's own, and float32 for GGUF files."""

_Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase | None]


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, its tokenizer if it has one, and where both came from.

    `model, tokenizer = load(...)` works. `origin` holds name (`owner/name:file.gguf` for a file that was named
    within a repository), kind, path, id (of the repository that was used), revision (its commit), sha256 (of a GGUF
    file), architecture, model_type, dtype, device, parameters (a count), and notes for the reader.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    origin: dict[str, object]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))


@dataclass(frozen=True)
class _How:
    """The options of a load that reach transformers."""

    dtype: str
    device: str
    device_map: str | dict[str, Any] | None
    trust_remote_code: bool
    allow_pickle: bool
    local_files_only: bool


@dataclass(frozen=True)
class _Place:
    """A directory in the transformers format, or a model that could not be kept in one; and what is known of it.

    `again` is what to do if its files are damaged.
    """

    name: str
    again: str
    directory: Path | None
    converted: _Pair | None
    facts: dict[str, object]
    notes: tuple[str, ...]


def load(
    model: str | Path | None = None,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    local_files_only: bool = False,
    cache_dir: str | Path | None = None,
    token: str | None = None,
    gguf_file: str | None = None,
    progress: Progress = silent,
) -> Loaded:
    """The model that `model` means (see `find`), loaded; `cache_dir` is the Hub's cache, as in transformers.

    Code that comes with a model runs only with `trust_remote_code`. Weights are read from safetensors; pickles are
    opened only with `allow_pickle` and where there is nothing else, and nothing but tensors is taken from them.
    Raises ModelNotFoundError or UnsupportedModelError for every failure to load, with the remedy in one line, and
    UnknownNameError for a dtype or a device that there is not.
    """
    if model is not None and not isinstance(model, str | Path):
        raise TypeError(f"expected a model's name or path, got {got(model)}")
    function("progress", progress, "(stage, done, total)")
    dtype, device = str(dtype).removeprefix("torch."), str(device)
    _require_dtype(dtype)
    how = _How(dtype, _device(device, device_map), device_map, trust_remote_code, allow_pickle, local_files_only)
    source = find(model, gguf_file=gguf_file)
    secret = _token(token)
    with heard(progress), one_line(source.id or source.name, secret):
        if source.kind == "hub":
            where = str(Path(cache_dir).expanduser()) if cache_dir is not None else None
            request = Request(
                str(source.id), revision, source.gguf_file, trust_remote_code, allow_pickle, where, secret
            )
            place = _from_hub(request, local_files_only, progress)
        else:
            ignored = () if revision is None else (f"the revision {revision} is ignored: the model is local",)
            place = _from_disk(source.name, Path(str(source.path)), ignored, progress)
        with one_line(place.name, secret, place.again):
            pair, notes = _opened(place, how)
    facts = {"name": source.name, "kind": source.kind, "path": _text(source.path), "id": source.id}
    return Loaded(*pair, facts | place.facts | _description(pair[0]) | {"notes": [*place.notes, *notes]})


def _from_hub(request: Request, local_files_only: bool, progress: Progress) -> _Place:
    snapshot = hub.fetch(request, local_files_only=local_files_only, progress=progress)
    place = _from_disk(snapshot.id, snapshot.gguf or snapshot.directory, snapshot.notes, progress)
    # A file that is in the cache is never downloaded again, however damaged it is.
    again = f"delete {cached_folder(replace(request, id=snapshot.id))} and run again"
    return replace(place, again=again, facts=place.facts | {"id": snapshot.id, "revision": snapshot.revision})


def _from_disk(name: str, path: Path, notes: tuple[str, ...], progress: Progress) -> _Place:
    """A directory as it is, or the converted form of a GGUF file."""
    if path.is_dir():
        return _Place(name, AGAIN, path, None, {"revision": None, "sha256": None}, notes)
    require_content(path.parent, [path.name], name, "download it again")
    sha256 = cache.digest(path, progress)
    facts: dict[str, object] = {"revision": None, "sha256": sha256}
    made = cache.lookup(sha256)
    if made is None:
        # What reads GGUF files takes long to import, and is needed once a file.
        from sinkscope.models.converting import convert  # noqa: PLC0415

        converted = convert(path, sha256, progress)
        if not isinstance(converted, cache.Entry):
            pair = converted.model, converted.tokenizer
            return _Place(name, AGAIN, None, pair, facts, (*notes, *converted.notes))
        made = converted
    return _Place(name, AGAIN, made.path, None, facts, (*notes, *made.notes))


def _opened(place: _Place, how: _How) -> tuple[_Pair, list[str]]:
    """The model and the tokenizer of a place, and what the reader should know about them."""
    if place.converted is not None:
        return _moved(place.converted, how)
    directory = Path(str(place.directory))
    names = files_in(directory)
    weights = weight_files(names, place.name, allow_pickle=how.allow_pickle)
    pull = f"run `git lfs pull` in {directory}"
    # A pointer in place of a file that is not opened, as pickles beside safetensors are, does no harm.
    needed = wanted(names, weights, code=how.trust_remote_code)
    require_content(directory, needed, place.name, pull if place.again == AGAIN else place.again)
    missing = lacking(directory, place.name, allow_pickle=how.allow_pickle)
    if missing is not None:
        raise ModelNotFoundError(
            f"{place.name} lacks {missing}, a part of its weights: put it there, or use a complete checkpoint"
        )
    pickled = [name for name in weights if name.endswith(".bin")]
    model, notes = _model(directory, place.name, how, pickled=bool(pickled))
    if pickled:
        notes.append(f"the weights are pickled ({pickled[0]}{', …' if pickled[1:] else ''}): tensors only were read")
    tokenizer, more = tokenizer_of(
        directory, names, trust_remote_code=how.trust_remote_code, local_files_only=how.local_files_only
    )
    return (model, tokenizer), [*left_out(names), *notes, *more]


def _model(directory: Path, name: str, how: _How, *, pickled: bool) -> tuple[PreTrainedModel, list[str]]:
    # A map of one device loads straight onto it, without a copy in main memory first.
    device_map = how.device_map or (None if how.device == "cpu" else how.device)
    options = {"trust_remote_code": how.trust_remote_code, "local_files_only": how.local_files_only}
    config, replaced = without_fused_attention(directory, options)
    model, info = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=how.dtype,
        device_map=device_map,
        **options,
        **({} if config is None else {"config": config}),
        adapter_kwargs=UNAPPLIED,
        use_safetensors=not pickled,
        weights_only=True,
        output_loading_info=True,
    )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelNotFoundError(
            f"{name} lacks {len(missing)} of its weights ({missing[0]}, …), which would be random numbers: "
            "use a complete checkpoint of this architecture"
        )
    unused = sorted(info["unexpected_keys"])
    notes = [f"{len(unused)} tensors of the checkpoint are not used ({unused[0]}, …)"] if unused else []
    return model.eval(), replaced + notes + _keep_cap(model)


def _keep_cap(model: PreTrainedModel) -> list[str]:
    """Leave sdpa where scores are soft-capped; what was done."""
    # sdpa drops the cap in silence, and transformers 5.17 picks it for Gemma 2 all the same.
    cap = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    if cap is None or model.config._attn_implementation != "sdpa":  # noqa: SLF001 - there is no public way to ask
        return []
    model.set_attn_implementation("eager")
    return [f"eager attention is used, because sdpa would leave out the soft cap of {cap:g}"]


def _moved(converted: _Pair, how: _How) -> tuple[_Pair, list[str]]:
    """A model that exists only in memory, on its device and in its dtype."""
    if how.device_map is not None:
        raise UnsupportedModelError(
            "--device-map needs the converted model on disk, and the cache cannot be written: "
            "set SINKSCOPE_CACHE to a directory that can"
        )
    dtype = torch.float32 if how.dtype == "auto" else getattr(torch, how.dtype)
    model = converted[0].to(device=how.device, dtype=dtype)
    return (model, converted[1]), _keep_cap(model)


def _description(model: PreTrainedModel) -> dict[str, object]:
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return {
        "architecture": type(model).__name__,
        "model_type": model.config.model_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": ",".join(devices),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _token(token: str | None) -> str | None:
    """The token as the Hub's client takes it: without white space around it, None for nothing.

    Raises ModelNotFoundError for what cannot be one, and would fail with itself in the message.
    """
    stripped = (token or "").strip()
    if not all("!" <= character <= "~" for character in stripped):
        raise ModelNotFoundError(
            "the token holds white space or characters that no token has: copy it again from "
            "https://huggingface.co/settings/tokens"
        )
    return stripped or None


def _require_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise UnknownNameError(f"there is no dtype named {dtype!r}: there are {', '.join(DTYPES)}")


def _device(device: str, device_map: object) -> str:
    """The device that is meant, which exists."""
    if device_map is not None and device != "auto":
        raise UnknownNameError(f"--device {device} and --device-map exclude each other: give one of them")
    there = _devices()
    if device == "auto":
        return there[0]
    if device not in there:
        raise UnknownNameError(f"there is no device named {device!r} here: there are {', '.join(there)}")
    return device


def _devices() -> list[str]:
    """The devices of this machine, the fastest first."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(["cuda"] if cuda else []), *cuda, *mps, "cpu"]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
