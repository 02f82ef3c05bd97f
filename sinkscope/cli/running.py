"""What `measure` and `patch` have in common: their options, and the way from them to a printed report."""

import inspect
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sinkscope.cli import options as o
from sinkscope.cli import stdout, texts
from sinkscope.cli.bars import watched
from sinkscope.cli.console import say
from sinkscope.cli.writing import put_out, tell, write
from sinkscope.errors import ModelNotFoundError, OutputError, SinkscopeError
from sinkscope.progress import Progress

Options = dict[str, Any]
"""Options by the names that a function of the library has for them."""

Study = Callable[..., Any]
"""A public function of the library that takes a model, its tokenizer and documents, and gives a report."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for, sorted by who needs it: the loader, the cutter, the protocols, the study, the writers."""

    model: str | None
    texts: list[str]
    prompts: list[str]
    column: str | None
    datasets: list[str]
    dataset_revision: str | None
    protocols: list[str] | None
    synthetic: str | None
    loading: Options
    given: Options
    """What a protocol may contradict."""
    measuring: Options
    outputs: list[Path]
    json: bool
    quiet: bool


def request(  # noqa: PLR0917 - typer reads a command's options from its arguments
    model: o.Model = None,
    model_option: o.ModelOption = None,
    dtype: o.DtypeOption = o.Dtype.auto,
    torch_dtype: o.TorchDtype = None,
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    allow_pickle: o.AllowPickle = False,
    local_files_only: o.LocalFilesOnly = False,
    cache_dir: o.CacheDir = None,
    token: o.Token = None,
    gguf_file: o.GgufFile = None,
    text: o.Text = None,
    column: o.Column = None,
    dataset: o.Dataset = None,
    dataset_revision: o.DatasetRevision = None,
    prompt: o.Prompt = None,
    synthetic: o.SyntheticOption = None,
    seq_len: o.SeqLen = None,
    windows: o.Windows = None,
    batch_size: o.BatchSize = "auto",
    bos: o.BosOption = None,
    chat: o.Chat = False,
    attention: o.AttentionOption = o.Attention.auto,
    only: o.Only = None,
    also: o.Also = None,
    classes: o.Classes = None,
    queries: o.Queries = None,
    seed: o.Seed = 0,
    initial: o.Initial = "4",
    epsilon: o.Epsilon = None,
    protocol: o.ProtocolOption = None,
    bootstrap: o.Bootstrap = None,
    gradients: o.Gradients = False,
    output: o.Output = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> Request:
    """The options that both commands take."""
    if model is not None and model_option is not None and model != model_option:
        raise typer.BadParameter(f"MODEL is given twice, as {model!r} and as {model_option!r}")
    if torch_dtype is not None:
        if dtype is not o.Dtype.auto:
            raise typer.BadParameter("--dtype and --torch-dtype are one option: give --dtype alone")
        say("warning: --torch-dtype is called --dtype now")
    if queries is not None and attention is o.Attention.flash:
        raise typer.BadParameter("--queries is answered by the dense path, so it does not go with --attention flash")
    if synthetic is not None and (text or prompt or dataset or chat):
        others = "--text, --prompt, --dataset and --chat"
        raise typer.BadParameter(f"--synthetic takes the place of a text: leave out {others}")
    if synthetic is not None and windows == "all":
        raise typer.BadParameter("--synthetic has no end: give --windows a number in place of all")
    if dataset_revision is not None and len(dataset or []) != 1:
        raise typer.BadParameter("--dataset-revision is for one dataset: give one --dataset")
    if dataset and local_files_only:
        raise typer.BadParameter("--dataset is read from the Hub, which --local-files-only forbids to ask")
    return Request(
        model=model if model is not None else model_option,
        texts=text or [],
        prompts=prompt or [],
        column=column,
        datasets=dataset or [],
        dataset_revision=dataset_revision,
        loading={
            "dtype": (torch_dtype or dtype).value,
            "device": device,
            "device_map": device_map,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
            "local_files_only": local_files_only,
            "cache_dir": cache_dir,
            "token": token,
            "gguf_file": gguf_file,
        },
        protocols=protocol,
        synthetic=None if synthetic is None else synthetic.value,
        given={
            "seq_len": seq_len,
            "windows": int(windows) if windows is not None and windows != "all" else windows,
            "bos": None if bos is None else bos.value,
            "chat": chat,
            "epsilon": epsilon,
            "queries": queries,
            "synthetic": synthetic is not None,
        },
        measuring={
            "batch_size": None if batch_size == "auto" else int(batch_size),
            "attention": attention.value,
            "only": _named(only),
            "also": _named(also),
            "classes": _named(classes),
            "queries": queries,
            "seed": seed,
            "initial": None if initial == "auto" else int(initial),
            "bootstrap": bootstrap,
            "gradients": gradients,
        },
        outputs=output or [],
        json=json,
        quiet=quiet,
    )


def _named(names: str | None) -> list[str] | None:
    """The names between commas; `masses` stands for what is measured in any case."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip() != "masses"]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A command that is handed a Request for the shared options, besides options of its own."""
    shared = inspect.signature(request).parameters
    own = {name: each for name, each in inspect.signature(function).parameters.items() if name != "asked"}

    def run(**given: Any) -> None:
        function(request(**{name: given.pop(name) for name in shared}), **given)

    run.__doc__, run.__name__ = function.__doc__, function.__name__
    parameters = [*shared.values(), *own.values()]
    # Typer reads a command's options from its signature.
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def carry_out(
    asked: Request,
    check: Callable[[], None],
    study: Study,
    show: Callable[[Any, Any], None],
    absent: Collection[str] = (),
) -> None:
    """Load, cut, study, write and print.

    `check` refuses what can be refused before a model is loaded; `study` is `sinkscope.measure`, or `sinkscope.compare`
    with its swaps; `show(report, console)` prints the report for people; `absent` are tables that it leaves empty.
    """
    if asked.json and stdout.is_closed():
        raise OutputError("cannot write the results: stdout is closed; open it, or write a file with -o run.json")
    with stdout.reserved(), watched(quiet=asked.quiet) as progress:
        documents = _checked(asked, _absent(asked) | set(absent))
        check()
        report = _studied(asked, documents, study, progress)
        failures = write(report, asked.outputs)
    if not asked.quiet:
        tell(report, asked.outputs, failures)
    put_out(report, show, json=asked.json)
    if failures:
        # Only now, with the figures printed: a full disk does not cost the run.
        raise OutputError("; ".join(failures.values()))


def _absent(asked: Request) -> set[str]:
    """The tables of hidden states, where it is clear that these are not watched."""
    only = asked.measuring["only"]
    watched = asked.measuring["gradients"] or only is None or "activations" in only
    return set() if watched else {"activations", "massive"}


def _checked(asked: Request, absent: set[str]) -> Any:
    """The documents to measure on, after everything that can be refused before a model is loaded."""
    if os.environ.get("WORLD_SIZE", "") not in {"", "0", "1"}:
        raise SinkscopeError("WORLD_SIZE says that this is one process of several: start sinkscope without a launcher")
    from sinkscope import exporters, models
    from sinkscope.text.documents import notes

    for path in asked.outputs:
        exporters.check(path, absent)
    models.find(asked.model, gguf_file=asked.loading["gguf_file"])
    _check_names(asked)
    documents = texts.documents(asked)
    if not asked.quiet:
        for note in notes(asked.texts):
            say(f"note: {note}")
    return documents


def _check_names(asked: Request) -> None:
    """Refuse names that are in no catalog; only where any are given, since it takes torch to know them."""
    measuring = asked.measuring
    if asked.protocols is not None:
        from sinkscope.protocols import chosen as followed
        from sinkscope.protocols import settled

        for card in followed(asked.protocols):
            settled(card, **asked.given)
    if measuring["only"] is not None or measuring["also"] is not None:
        from sinkscope.metrics.choosing import chosen

        chosen(measuring["only"], also=measuring["also"])
    if measuring["classes"] is not None:
        from sinkscope.tokens import TOKEN_CLASSES

        for name in measuring["classes"]:
            TOKEN_CLASSES[name]


def _studied(asked: Request, documents: Any, study: Study, progress: Progress) -> Any:
    """The report; only here is the library needed that takes seconds to import."""
    from sinkscope import models

    loaded = models.load(asked.model, **asked.loading, progress=progress)
    if loaded.tokenizer is None:
        raise ModelNotFoundError(
            f"{loaded.origin['name']} comes without a tokenizer: put its files beside the model, "
            "or call sinkscope.measure with input_ids"
        )
    return study(
        loaded.model,
        loaded.tokenizer,
        None if asked.synthetic is not None else documents,
        synthetic=asked.synthetic,
        protocol=asked.protocols,
        **{name: value for name, value in asked.given.items() if name not in {"queries", "synthetic"}},
        **asked.measuring,
        origin=loaded.origin,
        command=_without_secrets(["sinkscope", *sys.argv[1:]], asked.loading["token"]),
        progress=progress,
    )


def _without_secrets(words: list[str], token: str | None) -> list[str]:
    """The command line as it may be kept in a file."""
    from sinkscope.models.redacting import without_secrets

    hidden = (f"{word.partition('=')[0]}=…" if word.startswith("--token=") else word for word in words)
    kept = ("…" if before == "--token" else word for before, word in zip(["", *words], hidden, strict=False))
    return [without_secrets(word, token) for word in kept]
