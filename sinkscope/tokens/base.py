"""What a class of positions is decided on, and the card that names one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.tokens.spelling import characters


@dataclass(frozen=True, eq=False)
class Tokens:
    """Windows of token ids together with all that a class may ask about them.

    `keep` is false on padding, and nothing is ever marked there.
    `special` marks added tokens that stand for no text (flagged special, or among the tokenizer's special ids), and
    all that a chat template has put around a text.
    `spelling` holds the UTF-8 bytes that each token stands for, empty on padding. It is None when there is no
    tokenizer: then no class that needs text is defined, and `special` is false everywhere.
    `initial` is the number of leading real keys that count as initial, `bos` the id of the BOS token, if any.
    """

    ids: Int[Tensor, "batch key"]
    keep: Bool[Tensor, "batch key"]
    special: Bool[Tensor, "batch key"]
    spelling: tuple[tuple[bytes, ...], ...] | None
    initial: int
    bos: int | None

    @cached_property
    def characters(self) -> tuple[tuple[str, ...], ...] | None:
        """For each token the whole characters of which it holds at least one byte.

        A character that is spread over several tokens is in each of them. One that the window's edge cuts, and
        bytes that are not UTF-8, cannot be known and are in none. None when there is no tokenizer.
        """
        if self.spelling is None:
            return None
        return tuple(characters(row) for row in self.spelling)


@dataclass(frozen=True)
class TokenClass:
    """A named set of positions.

    The classes that are no overlay partition the real keys: each key belongs to the first of them, in the order
    of the list, whose function marks it. An overlay is whatever its function marks, beside the partition.
    A class that needs text is left out where there is no tokenizer.
    """

    name: str
    function: Callable[[Tokens], Bool[Tensor, "batch key"]]
    summary: str
    overlay: bool = True
    needs_text: bool = False
