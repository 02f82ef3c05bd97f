"""The commands in one list, and the one place where errors become messages."""

import sys
from typing import Annotated

import typer

from sinkscope import __version__
from sinkscope.cli import caching, environment, listing, measure
from sinkscope.cli.console import escaped
from sinkscope.errors import SinkscopeError

app = typer.Typer(
    name="sinkscope",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(measure.measure)
app.command("list")(listing.show)
app.command("env")(environment.show)
app.add_typer(caching.commands, name="cache")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"sinkscope {__version__}")
        raise typer.Exit


@app.callback()
def _sinkscope(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where a language model's attention goes when it has nowhere to go.

    Measures attention sinks per layer and head of any Hugging Face causal language model.
    """


def main() -> None:
    """Run the command line: exit 0, 1 for what sinkscope refuses, 2 for usage, 130 after Ctrl-C."""
    try:
        app()
    except SinkscopeError as error:
        sys.stderr.write(f"sinkscope: {escaped(str(error))}\n")
        sys.exit(1)
