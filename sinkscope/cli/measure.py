"""`sinkscope measure`: where a model's attention goes."""

from typing import Any

from sinkscope.cli.running import Request, carry_out, command


@command
def measure(asked: Request) -> None:
    """Measure where each head's attention goes, on MODEL or on the embedded default."""
    carry_out(asked, check=lambda: None, study=_study, show=_show, absent=("lse", "sweep"))


def _study(model: Any, tokenizer: Any, text: Any, **options: Any) -> Any:
    import sinkscope

    return sinkscope.measure(model, tokenizer, text, **options)


def _show(report: Any, console: Any) -> None:
    from sinkscope.cli import conventions, screen

    (conventions.show if conventions.several(report) else screen.show)(report, console)
