"""The card of a protocol, and what becomes of the options that are given beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import ProtocolError
from sinkscope.metrics import Metric

EPSILON = 0.3
"""The threshold of a run whose protocol has none."""


@dataclass(frozen=True)
class Protocol:
    """How one paper measures: `windows` samples of `seq_len` tokens, a threshold, and the `figures` that it gives.

    `figures` names columns of the tables, the first of them the one that the paper is known for; those that only this
    protocol measures are its `metrics`, and those that are rates have `thresholds`. `epsilon` is that of the run, None
    where the paper has none. `conventions` are sentences: what the paper states, and what is done where it states
    nothing. One that is not `published` is the program's own, whose numbers are defaults.
    """

    name: str
    summary: str
    source: str
    seq_len: int
    windows: int
    epsilon: float | None
    figures: tuple[str, ...]
    thresholds: Mapping[str, float]
    conventions: tuple[str, ...]
    metrics: tuple[Metric, ...] = ()
    bos: str = "auto"
    published: bool = True

    def threshold(self, figure: str, epsilon: float) -> float:
        """The threshold of a figure in a run with this ε; NaN for one that has none."""
        if figure not in self.thresholds:
            return math.nan
        return self.thresholds[figure] if self.published else epsilon

    def shortfall(self, windows: int) -> str | None:
        """What has to be said beside figures of another number of samples than the paper's."""
        if not self.published or windows == self.windows:
            return None
        return f"{self.name} was followed with {windows:,} samples, and the paper has {self.windows:,}"


@dataclass(frozen=True, kw_only=True)
class Settled:
    """How a text is cut and measured, once a protocol and what a user asked for have been brought together.

    `count` is None for all windows that there are; `explicit`: fewer than `count` are an error.
    """

    protocol: Protocol
    seq_len: int
    count: int | None
    explicit: bool
    bos: str
    epsilon: float
    shortened: bool = False
    """Whether the windows are shorter than the protocol's own because the model has no more positions."""


def settled(
    card: Protocol,
    *,
    seq_len: int | None = None,
    windows: int | str | None = None,
    bos: str | None = None,
    epsilon: float | None = None,
    chat: bool = False,
    queries: int | None = None,
    synthetic: bool = False,
    longest: int | None = None,
) -> Settled:
    """What a protocol and the options come to; None is an option that was not given, `windows` a number or "all".

    Raises ProtocolError for an option that contradicts a published protocol. The number of windows does not: it
    changes the error of a figure and not what it is. "all" takes no more than the paper did. Nor does `bos` where
    tokens are synthetic, which are without BOS by default. Default windows have `longest` tokens at most, where the
    model has no more positions.
    """
    wanted: dict[str, Any] = {"seq_len": card.seq_len, "bos": card.bos, "epsilon": card.epsilon}
    if card.published and synthetic:
        wanted["bos"] = bos or "never"
    if card.epsilon is None:
        wanted["epsilon"] = EPSILON if epsilon is None else epsilon
    shortened = seq_len is None and not card.published and longest is not None and longest < card.seq_len
    given = {"seq_len": longest if shortened else seq_len, "bos": bos, "epsilon": epsilon}
    found: dict[str, Any] = {name: wanted[name] if value is None else value for name, value in given.items()}
    if card.published:
        for name, value in found.items():
            if value != wanted[name]:
                raise _contradiction(card, f"--{name.replace('_', '-')} {value}", f"{wanted[name]}")
        if chat:
            raise _contradiction(card, "--chat", "plain text")
        if queries is not None:
            raise _contradiction(card, f"--queries {queries}", "every query")
    if windows == "all":
        count = card.windows if card.published else None
        return Settled(protocol=card, count=count, explicit=False, shortened=shortened, **found)
    if windows is None:
        return Settled(protocol=card, count=card.windows, explicit=card.published, shortened=shortened, **found)
    return Settled(protocol=card, count=int(windows), explicit=True, shortened=shortened, **found)


def _contradiction(card: Protocol, option: str, wanted: str) -> ProtocolError:
    return ProtocolError(f"{option} contradicts {card.name}, which takes {wanted}: leave it out, or leave the protocol")
