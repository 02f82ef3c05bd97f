"""The commands in one list, and the one place where errors become messages."""

import errno
import gc
import os
import sys
from typing import Annotated, Any

import typer

from sinkscope import __version__
from sinkscope.cli import caching, environment, listing, measure, patch
from sinkscope.cli.console import say, settle
from sinkscope.cli.repetition import refuse_repeated
from sinkscope.cli.stdout import give_up, is_closed
from sinkscope.errors import SinkscopeError

OBJECTS_AT_ONCE = 100_000
"""New objects before Python looks for garbage: imports make many times that, and what they make lives to the end."""

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C has ended."""

app = typer.Typer(
    name="sinkscope",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(measure.measure)
app.command()(patch.patch)
app.command("list")(listing.show)
app.command("env")(environment.show)
app.add_typer(caching.commands, name="cache")


def _print_version(value: bool) -> bool:
    if value:
        typer.echo(f"sinkscope {__version__}")
        raise typer.Exit
    return value


@app.callback()
def _sinkscope(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where a language model's attention goes when it has nowhere to go.

    Measures attention sinks per layer and head of any Hugging Face causal language model, and what becomes of them, and
    of the model, when softmax is replaced.
    """


def main() -> None:
    """Run the command line: exit 0, 1 for what sinkscope refuses, 2 for usage, 130 after Ctrl-C."""
    gc.set_threshold(OBJECTS_AT_ONCE)
    # Threads that spin while they wait for each other take a busy machine's processors from those they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    settle()
    sys.exit(_status())


def _status() -> int:
    """The exit status, after every error that is not a bug has become one line on stderr."""
    try:
        words = sys.argv[1:] or ["--help"]
        refuse_repeated(typer.main.get_command(app), words, "sinkscope")
        status: int | None = app(words, prog_name="sinkscope", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.TyperException as error:
        say(f"sinkscope: {_advice(error)}")
        return error.exit_code
    except SinkscopeError as error:
        say(f"sinkscope: {error}")
        return 1
    except OSError as error:
        if not _of_stdout(error):
            raise
        give_up()
        # Whoever closed the pipe has seen enough; a full disk has to be told.
        if error.errno != errno.EPIPE:
            say(f"sinkscope: cannot write the results: {error.strerror}")
        return 1
    except Exception as error:
        if not _out_of_memory(error):
            raise
        say("sinkscope: out of memory: use a shorter --seq-len, --batch-size 1, or --dtype bfloat16")
        return 1
    return status or 0


def _advice(error: typer.TyperException) -> str:
    """What is wrong with the command line, on one line, and where to read how it is right."""
    from sinkscope.models.redacting import without_secrets

    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    context: Any = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sinkscope"
    # A token without its --token is a word too many, which the message repeats.
    return f"{without_secrets(message)}; see `{command} --help`"


def _of_stdout(error: OSError) -> bool:
    """Whether it is stdout that failed: files of ours fail as OutputError, and others have a name."""
    if is_closed():
        return error.filename is None and error.errno == errno.EBADF
    return error.filename is None and error.errno in {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; torch's own class is known by its name, since nobody may have imported torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
