"""The options that commands share, spelled once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sinkscope.cli.checks import count_or, names

WHERE = "Model"
TEXT = "Text"
FIGURES = "Figures"
OUTPUT = "Output"


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


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Hub id, id:file.gguf, directory or .gguf file; by default $SINKSCOPE_MODEL, else SmolLM2-135M.",
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
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Read pickled weights where there are no others.", rich_help_panel=WHERE),
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
Dataset = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="NAME[#CONFIG][:SPLIT[:COLUMN]]",
        help="A dataset on the Hub, each row a text (needs `datasets`); repeatable.",
        rich_help_panel=TEXT,
    ),
]
DatasetRevision = Annotated[
    str | None,
    typer.Option(metavar="REV", help="Branch, tag or commit of the dataset.", rich_help_panel=TEXT),
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Each text as a user turn in the model's chat template.", rich_help_panel=TEXT),
]
Prompt = Annotated[
    list[str] | None,
    typer.Option("--prompt", metavar="TEXT", help="A text of its own length; repeatable.", rich_help_panel=TEXT),
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Tokens in a window, BOS included (default: 512, or the protocol's).",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]
Windows = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="How many windows (default: up to 4, or the protocol's).",
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
    Bos | None,
    typer.Option(
        "--bos",
        help="BOS in front of each window; auto: as the tokenizer does (default).",
        show_default=False,
        rich_help_panel=TEXT,
    ),
]


class Synthetic(StrEnum):
    """Tokens that are no text."""

    random = "random"
    repeat = "repeat"


SyntheticOption = Annotated[
    Synthetic | None,
    typer.Option(
        "--synthetic",
        help="In place of text, random tokens, or one random token repeated (--seed).",
        rich_help_panel=TEXT,
    ),
]
ProtocolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        metavar="NAME|all",
        help="Follow a paper's protocol; repeatable, one table for all (sinkscope list protocols).",
        rich_help_panel=FIGURES,
    ),
]
Bootstrap = Annotated[
    int | None,
    typer.Option(
        min=100,
        metavar="N",
        help="95 % intervals from N bootstrap samples of the windows (--seed).",
        show_default=False,
        rich_help_panel=FIGURES,
    ),
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
        help="Beside masses, measure these metrics only; `received` and `activations` are tables. Saves time.",
        callback=names,
        show_default=False,
        rich_help_panel=FIGURES,
    ),
]
Also = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…|dormancy",
        help="Measure these optional metrics too (sinkscope list metrics).",
        callback=names,
        show_default=False,
        rich_help_panel=FIGURES,
    ),
]
Gradients = Annotated[
    bool,
    typer.Option(
        "--gradients",
        help="Also the loss's gradient at each input, and the rank of hidden states: a backward pass more.",
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
Seed = Annotated[
    int,
    typer.Option(
        min=0, help="What sampled queries, synthetic tokens and the bootstrap start from.", rich_help_panel=FIGURES
    ),
]
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
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Threshold of the sink rate, strict (default: 0.3, or the protocol's).",
        show_default=False,
        rich_help_panel=FIGURES,
    ),
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
