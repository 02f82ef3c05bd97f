"""The options that commands share, spelled once."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

WHERE = "Model"
TEXT = "Text"
FIGURES = "Figures"
OUTPUT = "Output"

WINDOWS = 4
"""How many windows are measured when nobody says."""


class Dtype(StrEnum):
    """Number formats for the weights."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Bos(StrEnum):
    """When windows begin with BOS."""

    auto = "auto"
    always = "always"
    never = "never"


def count_or(word: str) -> Callable[[str | None], str | None]:
    """A check for a whole number from 1, or the word that may stand in its place."""

    def checked(value: str | None) -> str | None:
        if value is None or value == word or (value.isascii() and value.isdigit() and int(value) > 0):
            return value
        raise typer.BadParameter(f"{value!r} is neither a whole number from 1 nor {word!r}")

    return checked


def names(value: str | None) -> str | None:
    """A check for names between commas."""
    if value is not None and not all(name.strip() for name in value.split(",")):
        raise typer.BadParameter(f"{value!r} is not a list of names: write entropy,frobenius")
    return value


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Hub id, directory or .gguf file; by default $SINKSCOPE_MODEL, else the embedded SmolLM2-135M.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="The same as the argument.", rich_help_panel=WHERE),
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights.", rich_help_panel=WHERE)]
TorchDtype = Annotated[Dtype | None, typer.Option("--torch-dtype", hidden=True)]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda[:N]|mps", help="Where the model runs.", rich_help_panel=WHERE)
]
DeviceMap = Annotated[
    str | None,
    typer.Option(metavar="auto|balanced|…", help="Spread the model over devices (accelerate).", rich_help_panel=WHERE),
]
Revision = Annotated[
    str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.", rich_help_panel=WHERE)
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.", rich_help_panel=WHERE)
]
LocalFilesOnly = Annotated[bool, typer.Option("--local-files-only", help="Never ask the Hub.", rich_help_panel=WHERE)]
CacheDir = Annotated[Path | None, typer.Option(metavar="DIR", help="The Hub's cache.", rich_help_panel=WHERE)]
Token = Annotated[
    str | None,
    typer.Option(envvar="HF_TOKEN", show_envvar=True, metavar="TOKEN", help="For gated models.", rich_help_panel=WHERE),
]
GgufFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Which .gguf of a repository or directory.", rich_help_panel=WHERE),
]

Text = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="FILE|DIR|PATTERN",
        help="Text, .jsonl or .parquet; - for stdin; repeatable.",
        rich_help_panel=TEXT,
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Where a row's text is (default: text).", show_default=False, rich_help_panel=TEXT
    ),
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Each text as a user turn in the model's chat template.", rich_help_panel=TEXT),
]
Prompt = Annotated[
    list[str] | None,
    typer.Option("--prompt", metavar="TEXT", help="A text of its own length; repeatable.", rich_help_panel=TEXT),
]
SeqLen = Annotated[int, typer.Option(min=2, help="Tokens in a window, BOS included.", rich_help_panel=TEXT)]
Windows = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help=f"How many windows (default: up to {WINDOWS}).",
        callback=count_or("all"),
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
BatchSize = Annotated[
    str,
    typer.Option(
        "--batch-size",
        "-b",
        metavar="N|auto",
        help="Windows in a forward.",
        callback=count_or("auto"),
        rich_help_panel=TEXT,
    ),
]
BosOption = Annotated[
    Bos, typer.Option("--bos", help="BOS in front of each window; auto: as the tokenizer does.", rich_help_panel=TEXT)
]


class Attention(StrEnum):
    """Ways to reduce a layer's weights."""

    auto = "auto"
    flash = "flash"
    dense = "dense"


AttentionOption = Annotated[
    Attention,
    typer.Option("--attention", help="How weights are reduced; auto: flash where it serves.", rich_help_panel=FIGURES),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…|masses",
        help="Beside masses, measure these metrics only; `received` is the tokens' table. Saves time.",
        callback=names,
        show_default=False,
        rich_help_panel=FIGURES,
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="Measure these classes of tokens only, and `first`.",
        callback=names,
        show_default=False,
        rich_help_panel=FIGURES,
    ),
]
Queries = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Reduce a systematic sample of N queries of each window, with the error it brings.",
        show_default=False,
        rich_help_panel=FIGURES,
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="What the sample of queries starts from.", rich_help_panel=FIGURES)]
Initial = Annotated[
    str,
    typer.Option(
        metavar="K|auto",
        help="How many first keys are initial; auto: 4 + log2(seq-len / 512), at least 4.",
        callback=count_or("auto"),
        rich_help_panel=FIGURES,
    ),
]
Epsilon = Annotated[
    float,
    typer.Option(min=0, max=1, help="Threshold of the sink rate (strict).", rich_help_panel=FIGURES),
]

Output = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write a file; its suffix names the format; repeatable.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.", rich_help_panel=OUTPUT)]
