"""`sinkscope measure`: where a model's attention goes."""

import sys
from pathlib import Path

import typer

from sinkscope.cli import options as o
from sinkscope.cli.bars import shown
from sinkscope.cli.console import escaped, results, talk


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
    outputs = output or []
    name = _model(model, model_option)
    with shown(quiet=quiet) as progress:
        progress("starting", 0, None)
        _check(outputs)
        # The library takes seconds to import, so it is asked for only when the command is known to be sound.
        from sinkscope import corpus, models, study

        models.find(name, gguf_file=gguf_file)
        documents = corpus.read_documents(text or [], prompt or [])
        loaded = models.load(
            name,
            dtype=_dtype(dtype, torch_dtype),
            device=device,
            device_map=device_map,
            revision=revision,
            trust_remote_code=trust_remote_code,
            local_files_only=local_files_only,
            cache_dir=cache_dir,
            token=token,
            gguf_file=gguf_file,
            progress=progress,
        )
        found = corpus.windows(
            loaded.tokenizer,
            documents,
            seq_len=seq_len,
            count=_count(windows),
            explicit=windows is not None,
            bos=bos.value,
        )
        report = study.measure_windows(
            loaded.model,
            loaded.tokenizer,
            found,
            batch_size=None if batch_size == "auto" else int(batch_size),
            initial=initial,
            epsilon=epsilon,
            origin=loaded.origin,
            command=_command(),
            progress=progress,
        )
        _write(report, outputs)
    if not quiet:
        _notes(loaded.origin, outputs)
    if json:
        sys.stdout.write(report.to_json())
        return
    from sinkscope.cli.screen import show

    show(report, results())


def _model(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"MODEL is given twice, as {argument!r} and as {option!r}")
    return argument if argument is not None else option


def _dtype(dtype: o.Dtype, torch_dtype: o.Dtype | None) -> str:
    if torch_dtype is None:
        return dtype.value
    talk().print("warning: --torch-dtype is called --dtype now")
    return torch_dtype.value


def _count(windows: str | None) -> int | None:
    return 4 if windows is None else None if windows == "all" else int(windows)


def _check(outputs: list[Path]) -> None:
    from sinkscope import exporters

    for path in outputs:
        exporters.check(path)


def _write(report: "Report", outputs: list[Path]) -> None:
    from sinkscope import exporters

    for path in outputs:
        exporters.export(report, path)


def _notes(origin: dict[str, object], outputs: list[Path]) -> None:
    console = talk()
    for note in origin.get("notes", []):
        console.print(f"note: {escaped(str(note))}", soft_wrap=True)
    for path in outputs:
        console.print(f"wrote {escaped(str(path))}", soft_wrap=True)


def _command() -> list[str]:
    """How the program was called, without secrets."""
    words = ["sinkscope", *sys.argv[1:]]
    hidden = [index for index, word in enumerate(words) if index and words[index - 1] == "--token"]
    for index in hidden:
        words[index] = "…"
    return ["--token=…" if word.startswith("--token=") else word for word in words]
