"""`sinkscope cache`: the models that were converted once and are kept."""

from typing import Annotated

import typer
from rich.table import Table

from sinkscope.cli.console import results

commands = typer.Typer(no_args_is_help=True, help="Show or clear the converted models that are kept.")


@commands.command()
def show() -> None:
    """List what is in the cache, and where it is."""
    from sinkscope.models import cache

    entries = cache.entries()
    console = results()
    console.print(
        f"{cache.directory()}: {len(entries)} converted, {_size(sum(each.bytes for each in entries))}", soft_wrap=True
    )
    if not entries:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("model", "size", "created", "file hash"):
        table.add_column(name, overflow="fold")
    for each in entries:
        table.add_row(each.name, _size(each.bytes), each.created, each.sha256[:12])
    console.print(table)


@commands.command()
def clear(
    name: Annotated[str | None, typer.Argument(help="Only the entries of that name.", show_default=False)] = None,
) -> None:
    """Remove converted models; the next use of their files converts them again."""
    from sinkscope.models import cache

    gone = cache.clear(name)
    results().print(f"removed {len(gone)}, freed {_size(sum(each.bytes for each in gone))}")


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
