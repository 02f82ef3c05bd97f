"""`sinkscope cache`: the models that were converted once and are kept."""

from typing import Annotated

import typer

from sinkscope.cli.columns import columns
from sinkscope.cli.console import results
from sinkscope.text.documents import shown

commands = typer.Typer(help="Show or clear the converted models that are kept.")


@commands.command()
def show() -> None:
    """List what is in the cache, and where it is."""
    from sinkscope.models import cache

    entries = cache.entries()
    console = results()
    total = _size(sum(each.bytes for each in entries))
    console.print(shown(f"{cache.directory()}: {len(entries)} converted, {total}"), soft_wrap=True)
    if entries:
        rows = [[shown(each.name), _size(each.bytes), each.created, each.sha256[:12]] for each in entries]
        columns(console, ["model", "size", "created", "file hash"], rows, frozenset({"model"}))


@commands.command()
def clear(
    name: Annotated[str | None, typer.Argument(help="Only the entries of that name.", show_default=False)] = None,
) -> None:
    """Remove converted models; the next use of their files converts them again."""
    from sinkscope.models import cache

    gone = cache.clear(name)
    results().print(f"removed {len(gone)}, freed {_size(sum(each.bytes for each in gone))}")


def _size(size: int) -> str:
    for power, unit in enumerate(("B", "kB", "MB")):
        if size < 1000 ** (power + 1):
            return f"{size / 1000**power:.0f} {unit}"
    return f"{size / 1e9:.1f} GB"
