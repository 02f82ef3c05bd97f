"""One rule for the options of all commands: one that takes a single value is given once."""

from collections.abc import Sequence
from typing import Any

import typer


def refuse_repeated(command: Any, words: Sequence[str], name: str, parent: Any = None) -> None:
    """Raise BadParameter for an option that is given again and is not repeatable: its first value would be lost.

    `command` is what Typer makes of an app, and `words` are what follows its name on the command line.
    """
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    try:
        _, rest, order = command.make_parser(context).parse_args(list(words))
    except typer.TyperException:
        return  # A word that is no option of the command: the run itself says so.
    if any(parameter.is_eager for parameter in order):
        return  # --help and --version end the run wherever they stand.
    for index, parameter in enumerate(order):
        if _single(parameter) and any(parameter is before for before in order[:index]):
            raise typer.BadParameter(f"{'/'.join(parameter.opts)} is given twice: give it once", ctx=context)
    inner = command.get_command(context, rest[0]) if rest and hasattr(command, "get_command") else None
    if inner is not None:
        refuse_repeated(inner, rest[1:], rest[0], context)


def _single(parameter: Any) -> bool:
    """Whether it is an option of which the last value alone would count."""
    return parameter.param_type_name == "option" and not (parameter.multiple or parameter.count)
