"""`sinkscope patch`: what happens to the sinks, and to the model, when softmax goes."""

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from sinkscope.cli.running import Options, Request, carry_out, command

SWAP = "Swap"
SCORES = "Scores"

MOST_LAYERS = 100_000

Head = tuple[int, int | None]


class Sweep(StrEnum):
    """What to go through one by one."""

    layers = "layers"


def layer_numbers(value: str | None) -> list[int] | None:
    """`4-11,15` as numbers; BadParameter for anything else."""
    if value is None:
        return None
    found: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if match is None:
            raise typer.BadParameter(f"{part!r} is neither a layer nor a range of layers: write 4-11,15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise typer.BadParameter(f"the range {part.strip()} ends before it begins")
        if last > MOST_LAYERS:
            raise typer.BadParameter(f"no model has a layer {last}")
        found += range(first, last + 1)
    return found


def head_numbers(value: str | None) -> list[Head] | None:
    """`3.2,5.*` as (layer, head), None standing for all heads; BadParameter for anything else."""
    if value is None:
        return None
    found: list[Head] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d+)\.(\d+|\*)\s*", part, re.ASCII)
        if match is None:
            raise typer.BadParameter(f"{part!r} is not a head: write layer.head as in 3.2, or 5.* for all of a layer")
        found.append((int(match[1]), None if match[2] == "*" else int(match[2])))
    return found


@command
def patch(  # noqa: PLR0917 - typer reads a command's options from its arguments
    asked: Request,
    normalizer: Annotated[
        list[str] | None,
        typer.Option(
            "--normalizer",
            "-n",
            metavar="NAME[:key=value,…]",
            help="What takes softmax's place; repeatable. Also my_module:my_function.",
            rich_help_panel=SWAP,
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="4-11,15", help="Only in these layers.", rich_help_panel=SWAP)
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="3.2,5.*", help="Only in these heads, beside the layers.", rich_help_panel=SWAP),
    ] = None,
    sweep: Annotated[Sweep | None, typer.Option(help="Also swap one layer at a time.", rich_help_panel=SWAP)] = None,
    sink_bias: Annotated[
        float | None,
        typer.Option(
            metavar="B", help="Add B to the scores of the initial keys; -inf hides them.", rich_help_panel=SCORES
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, metavar="W", help="Hide all but the last W keys.", rich_help_panel=SCORES)
    ] = None,
    keep_sinks: Annotated[
        bool, typer.Option("--keep-sinks", help="Except the initial keys.", rich_help_panel=SCORES)
    ] = False,
    alibi: Annotated[bool, typer.Option("--alibi", help="Lower scores with distance.", rich_help_panel=SCORES)] = False,
) -> None:
    """Compare sinks and perplexity before and after softmax is replaced, on MODEL or on the embedded default."""
    chosen: Options = {"layers": layer_numbers(layers), "heads": head_numbers(heads), "sweep": sweep is not None}
    modified: Options = {"sink_bias": sink_bias, "window": window, "keep_sinks": keep_sinks, "alibi": alibi}
    any_modifier = any(each is not None and each is not False for each in modified.values())
    if not normalizer and not any_modifier:
        raise typer.BadParameter("give a --normalizer, or a change of the scores such as --window or --sink-bias")
    if keep_sinks and window is None:
        raise typer.BadParameter("--keep-sinks makes sense with --window only")
    if sink_bias is not None and not sink_bias < float("inf"):
        raise typer.BadParameter("--sink-bias must be a number below infinity")
    resolved: list[Any] = []

    def check() -> None:
        from sinkscope.normalizers import resolve

        resolved.extend({card.spec: card for card in map(resolve, normalizer or [])}.values())

    def study(model: Any, tokenizer: Any, text: Any, **options: Any) -> Any:
        import sinkscope

        swaps: Options = chosen | {"normalizers": resolved}
        swaps["modifier"] = sinkscope.Modifier(initial=options["initial"], **modified) if any_modifier else None
        return sinkscope.compare(model, tokenizer, text, **swaps, **options)

    carry_out(asked, check=check, study=study, show=_show, absent=() if sweep else ("sweep",))


def _show(report: Any, console: Any) -> None:
    from sinkscope.cli import compared, conventions

    (conventions.show if conventions.several(report) else compared.show)(report, console)
