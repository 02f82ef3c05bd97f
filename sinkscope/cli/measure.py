"""`sinkscope measure`: where a model's attention goes."""

from typing import Any

from sinkscope.cli.running import Request, carry_out, command


@command
def measure(asked: Request) -> None:
    """Measure where each head's attention goes, on MODEL or on the embedded default."""
    carry_out(asked, check=lambda: None, study=_study, show=_show, absent=("lse", "sweep"))


def _study(model: Any, tokenizer: Any, windows: Any, options: Any) -> Any:
    from sinkscope.study.runs import measure_windows

    return measure_windows(model, tokenizer, windows, options)


def _show(report: Any, console: Any) -> None:
    from sinkscope.cli import conventions, screen

    (conventions.show if conventions.several(report) else screen.show)(report, console)
