"""`sinkscope measure`: where a model's attention goes."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from sinkscope.cli import options as o
from sinkscope.cli.bars import watched
from sinkscope.cli.console import results, say
from sinkscope.errors import ModelNotFoundError, OutputError, SinkscopeError
from sinkscope.progress import Progress

Options = dict[str, Any]
"""Options by the names that a function of the library has for them."""


def measure(  # noqa: PLR0917 - typer reads a command's options from its arguments
    model: o.Model = None,
    model_option: o.ModelOption = None,
    dtype: o.DtypeOption = o.Dtype.auto,
    torch_dtype: o.TorchDtype = None,
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    local_files_only: o.LocalFilesOnly = False,
    cache_dir: o.CacheDir = None,
    token: o.Token = None,
    gguf_file: o.GgufFile = None,
    text: o.Text = None,
    prompt: o.Prompt = None,
    seq_len: o.SeqLen = 512,
    windows: o.Windows = None,
    batch_size: o.BatchSize = "auto",
    bos: o.BosOption = o.Bos.auto,
    initial: o.Initial = 4,
    epsilon: o.Epsilon = 0.3,
    output: o.Output = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure where each head's attention goes, on MODEL or on the embedded default."""
    loading: Options = {
        "dtype": _dtype(dtype, torch_dtype),
        "device": device,
        "device_map": device_map,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": local_files_only,
        "cache_dir": cache_dir,
        "token": token,
        "gguf_file": gguf_file,
    }
    cutting: Options = {"seq_len": seq_len, "count": _count(windows), "explicit": windows is not None, "bos": bos.value}
    measuring: Options = {"batch_size": _batch_size(batch_size), "initial": initial, "epsilon": epsilon}
    name, outputs = _model(model, model_option), output or []
    with watched(quiet=quiet) as progress:
        documents = _checked(name, gguf_file, text or [], prompt or [], outputs)
        report = _measured(name, documents, progress, loading=loading, cutting=cutting, measuring=measuring)
        failures = _write(report, outputs)
    if not quiet:
        _notes(report, outputs, failures)
    _print(report, json=json)
    if failures:
        # Only now, with the figures printed: a full disk does not cost the run.
        raise OutputError("; ".join(failures.values()))


def _checked(name: str | None, gguf_file: str | None, texts: list[str], prompts: list[str], outputs: list[Path]) -> Any:
    """The documents to measure on, after everything that can be refused before a model is loaded."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise SinkscopeError("WORLD_SIZE says that this is one process of several: start sinkscope without a launcher")
    from sinkscope import exporters, models
    from sinkscope.documents import read_documents

    for path in outputs:
        exporters.check(path)
    models.find(name, gguf_file=gguf_file)
    return read_documents(texts, prompts)


def _measured(
    name: str | None, documents: Any, progress: Progress, *, loading: Options, cutting: Options, measuring: Options
) -> Any:
    """The report; only here is the library needed that takes seconds to import."""
    from sinkscope import corpus, models, study

    loaded = models.load(name, **loading, progress=progress)
    if loaded.tokenizer is None:
        raise ModelNotFoundError(
            f"{loaded.origin['name']} comes without a tokenizer: put its files beside the model, "
            "or call sinkscope.measure with input_ids"
        )
    progress("cutting the text into windows", 0, None)
    windows = corpus.windows(loaded.tokenizer, documents, **cutting)
    progress("checking that attention can be seen", 0, None)
    return study.measure_windows(
        loaded.model,
        loaded.tokenizer,
        windows,
        study.Options(
            **measuring,
            origin=loaded.origin,
            command=_without_secrets(["sinkscope", *sys.argv[1:]]),
            progress=progress,
        ),
    )


def _model(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"MODEL is given twice, as {argument!r} and as {option!r}")
    return argument if argument is not None else option


def _dtype(dtype: o.Dtype, torch_dtype: o.Dtype | None) -> str:
    if torch_dtype is None:
        return dtype.value
    say("warning: --torch-dtype is called --dtype now")
    return torch_dtype.value


def _count(windows: str | None) -> int | None:
    return o.WINDOWS if windows is None else None if windows == "all" else int(windows)


def _batch_size(batch_size: str) -> int | None:
    return None if batch_size == "auto" else int(batch_size)


def _write(report: Any, outputs: Iterable[Path]) -> dict[Path, str]:
    """Write every file that can be written; the others with the reason."""
    from sinkscope import exporters

    failures = {}
    for path in outputs:
        try:
            exporters.export(report, path)
        except OutputError as error:
            failures[path] = str(error)
    return failures


def _notes(report: Any, outputs: Iterable[Path], failures: dict[Path, str]) -> None:
    for note in report.metadata["model"].get("notes", []):
        say(f"note: {note}")
    for path in outputs:
        if path not in failures:
            say(f"wrote {path}")


def _print(report: Any, *, json: bool) -> None:
    if json:
        # Always UTF-8, as JSON has to be, whatever the terminal's encoding is.
        sys.stdout.flush()
        sys.stdout.buffer.write(report.to_json().encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    from sinkscope.cli.screen import show

    show(report, results())


def _without_secrets(words: list[str]) -> list[str]:
    """The command line as it may be kept in a file."""
    hidden = (f"{word.partition('=')[0]}=…" if word.startswith("--token=") else word for word in words)
    return ["…" if before == "--token" else word for before, word in zip(["", *words], hidden, strict=False)]
