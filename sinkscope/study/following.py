"""A run for each protocol that was named: options meet its conventions, and the reports stand below each other."""

from collections.abc import Callable, Mapping
from typing import Any

from sinkscope.errors import ProtocolError, SinkscopeError, TextError
from sinkscope.normalizers import initial_keys
from sinkscope.protocols import ALL, Asked, Protocol, Settled, chosen, settled
from sinkscope.report import Report
from sinkscope.report.reporting import together
from sinkscope.runs.options import Options
from sinkscope.text.corpus import Windows, warned
from sinkscope.text.lengths import longest

Cut = Callable[[Settled], Windows]
"""Makes the windows that a protocol asks for."""

Run = Callable[[Windows, Options], Report]
"""Measures on windows."""


def follow(protocol: Asked, given: Mapping[str, Any], cut: Cut, run: Run, options: Mapping[str, Any]) -> Report:
    """The report of one protocol, or of several below each other; `given` are the options of `settled`.

    `options` are those of `Options`, with an `initial` of None for as many as the length of the windows suggests.
    Of several, masses and the protocols' own figures are measured, unless `options` say more. Raises ProtocolError for
    what contradicts one of them, and TextError where the text does not give what one needs; of "all", such a protocol
    is left out, and the metadata say why.
    """
    cards = chosen(protocol)
    everything = protocol == ALL or (isinstance(protocol, list | tuple) and ALL in protocol)
    if len(cards) > 1 and options.get("only") is None:
        options = dict(options) | {"only": ()}
    reports: list[Report] = []
    refused: dict[str, SinkscopeError] = {}
    for card in cards:
        try:
            reports.append(_followed(settled(card, **given), cut, run, options))
        except (ProtocolError, TextError) as error:
            if not everything:
                raise
            refused[card.name] = error
    if not reports:
        raise next(iter(refused.values()))
    return together(reports, {name: str(error) for name, error in refused.items()})


def _followed(plan: Settled, cut: Cut, run: Run, options: Mapping[str, Any]) -> Report:
    card = plan.protocol
    try:
        windows = cut(plan)
        if plan.shortened:
            windows = warned(windows, f"windows have {plan.seq_len} tokens: the model has no more positions")
        _check_length(card, windows)
        return run(windows, _options(options, plan, windows))
    except TextError as error:
        if not card.published:
            raise
        # Its own remedy would be another length, which the protocol refuses.
        fault, _, remedy = str(error).rpartition(": ")
        wanted = f"{card.name} takes {card.windows:,} samples of {card.seq_len:,} tokens"
        raise TextError(
            f"{wanted}, but {fault or remedy}: give more or longer texts, say --windows, or take another model"
        ) from error


def _check_length(card: Protocol, windows: Windows) -> None:
    shortest = int(windows.keep.sum(dim=1).min())
    if card.published and shortest < card.seq_len:
        raise TextError(f"one of the text's has {shortest}: give longer ones")


def _options(options: Mapping[str, Any], plan: Settled, windows: Windows) -> Options:
    found = dict(options) | {"epsilon": plan.epsilon, "protocol": plan.protocol}
    if found.get("initial", 0) is None:
        found["initial"] = initial_keys(longest(windows.keep))
    return Options(**found)
