"""An ordered mapping from names to cards that knows near misses, for every family of variants."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from sinkscope.errors import UnknownNameError


@runtime_checkable  # the run-time type checks of the tests ask for it
class Card(Protocol):
    """What every card has: the name it is asked for by, and a sentence for listings."""

    @property
    def name(self) -> str:
        """What people type and tables show."""

    @property
    def summary(self) -> str:
        """What it is, in a sentence."""


C = TypeVar("C", bound=Card)


class Catalog(Mapping[str, C]):
    """The cards of one family, in the order in which they are listed to people."""

    def __init__(self, kind: str, cards: Iterable[C]) -> None:
        self.kind = kind
        self._cards = {card.name: card for card in cards}

    def __getitem__(self, name: str) -> C:
        """Look a card up by its exact name; an unknown one raises UnknownNameError with advice."""
        try:
            return self._cards[name]
        except KeyError:
            raise UnknownNameError(self._advice(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)

    def __contains__(self, name: object) -> bool:
        return name in self._cards

    def _advice(self, name: str) -> str:
        near = difflib.get_close_matches(str(name), self._cards, n=1, cutoff=0.5)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return f"there is no {self.kind} named {name!r}: {guess}there are {', '.join(self._cards)}"
