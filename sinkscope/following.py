"""A run for each protocol that was named: options meet its conventions, and the reports stand below each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sinkscope.corpus import Windows
from sinkscope.errors import TextError
from sinkscope.normalizers import initial_keys
from sinkscope.options import Options
from sinkscope.protocols import ALL, PROTOCOLS, Settled, named, settled
from sinkscope.report import Report
from sinkscope.reporting import together

Cut = Callable[[Settled], Windows]
"""Makes the windows that a protocol asks for."""

Run = Callable[[Windows, Options], Report]
"""Measures on windows."""


def follow(
    protocol: str | Sequence[str] | None, given: Mapping[str, Any], cut: Cut, run: Run, options: Mapping[str, Any]
) -> Report:
    """The report of one protocol, or of several below each other; `given` are the options of `settled`.

    `options` are those of `Options`, with an `initial` of None for as many as the length of the windows suggests.
    Of several, masses and the protocols' own figures are measured, unless `options` say more. Raises ProtocolError for
    what contradicts one of them, before anything is run, and TextError where the text does not give what one needs;
    of "all", such a protocol is left out, and the metadata say why.
    """
    plans = [settled(PROTOCOLS[name], **given) for name in named(protocol)]
    if len(plans) > 1 and options.get("only") is None:
        options = dict(options) | {"only": ()}
    reports, refused = [], {}
    for plan in plans:
        try:
            windows = cut(plan)
            reports.append(run(windows, _options(options, plan, windows)))
        except TextError as error:
            if ALL not in (protocol if isinstance(protocol, list | tuple) else [protocol]):
                raise
            refused[plan.protocol.name] = error
    if not reports:
        raise next(iter(refused.values()))
    return together(reports, {name: str(error) for name, error in refused.items()})


def _options(options: Mapping[str, Any], plan: Settled, windows: Windows) -> Options:
    found = dict(options) | {"epsilon": plan.epsilon, "protocol": plan.protocol}
    if found.get("initial", 0) is None:
        found["initial"] = initial_keys(windows.ids.shape[1])
    return Options(**found)
