"""Token ids and text to named classes of positions: the list of all classes.

To add a class, write a function from tokens to a mark on each key in `classes.py` and list its card here.
"""

from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from sinkscope.catalog import Catalog
from sinkscope.tokens import classes
from sinkscope.tokens.base import TokenClass, Tokens
from sinkscope.tokens.reading import read

__all__ = ["PUNCTUATION_RULE", "TOKEN_CLASSES", "TokenClass", "Tokens", "classify", "read"]

PUNCTUATION_RULE = (
    "a token is punctuation if it holds at least one byte of a character of Unicode category P* or of ASCII "
    "punctuation (symbols such as $ + < = > ^ ` | ~ included, mixed tokens such as 't too), decided on the text; "
    "a character that the window's edge cuts is not punctuation"
)

TOKEN_CLASSES: Catalog[TokenClass] = Catalog(
    "token class",
    [
        TokenClass(
            name="first",
            function=classes.first,
            summary="the first real position of the window, whatever token it is",
            overlay=False,
        ),
        TokenClass(
            name="special",
            function=classes.special,
            summary="added tokens that stand for no text: flagged special, among the special ids, or a chat template's",
            overlay=False,
            needs_text=True,
        ),
        TokenClass(
            name="punctuation",
            function=classes.punctuation,
            summary="tokens with a byte of a character of Unicode category P* or of ASCII punctuation",
            overlay=False,
            needs_text=True,
        ),
        TokenClass(
            name="newline",
            function=classes.newline,
            summary="tokens of white space with at least one line break",
            overlay=False,
            needs_text=True,
        ),
        TokenClass(
            name="other",
            function=classes.other,
            summary="every real position that no class above has taken",
            overlay=False,
        ),
        TokenClass(
            name="initial",
            function=classes.initial,
            summary="the first K real positions of the window (overlay)",
        ),
        TokenClass(
            name="bos",
            function=classes.bos,
            summary="the first real position of the window where it is the BOS token (overlay)",
        ),
    ],
)


def classify(tokens: Tokens, extra: Sequence[TokenClass] = ()) -> dict[str, Bool[Tensor, "batch key"]]:
    """The marks of every class by name: the parts of the partition, then the overlays, then the extra overlays.

    Without a tokenizer the classes that need text are left out, and `other` is everything but `first`.
    Raises ValueError for an extra class that is no overlay or bears the name of another.
    """
    cards = [*TOKEN_CLASSES.values(), *extra]
    names = [card.name for card in cards]
    for card in extra:
        if not card.overlay or names.count(card.name) > 1:
            raise ValueError(f"expected an overlay with a name of its own, got {card.name!r}")
    free = tokens.keep
    marks = {}
    for card in cards:
        if card.needs_text and tokens.spelling is None:
            continue
        marked = card.function(tokens) & (tokens.keep if card.overlay else free)
        free = free if card.overlay else free & ~marked
        marks[card.name] = marked
    return marks
