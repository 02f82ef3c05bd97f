"""What anybody may measure: strategies for texts, windows, models, normalizers and modifiers, as cards that shrink."""

import functools
import os
from dataclasses import dataclass

import torch
from builders import ARCHITECTURES, tiny
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from sinkscope.metrics import METRICS
from sinkscope.normalizers import NORMALIZERS, Modifier, Normalizer, Parameter
from sinkscope.tokens import TOKEN_CLASSES

EXAMPLES = os.environ.get("SINKSCOPE_FUZZ")
"""How many examples of each law to try, always new ones; unset, a few that are the same in every run."""

LONGEST = 80
"""Tokens in a window."""

LAYERS, HEADS = 4, 4
"""Of every architecture in ARCHITECTURES."""

IDS = 259
"""Token ids that the tokenizer of the tests knows."""

fuzzed = settings(
    max_examples=int(EXAMPLES or 4),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

PIECES = (
    "[/INST]",
    "[bold red]x[/]",
    "[link=file:///etc]a",
    ":smile:",
    "<s>",
    "</s>",
    "<pad>",
    "你好，世界。",
    "مرحبا، كيف؟",
    "\u202ea\u202c",
    "e\u0301",
    "\u0301",
    "\u200d",
    "👩‍👩‍👧",
    "🇳🇴",
    "\x1b[31m",
    "\x9b1m",
    "\x07",
    "\r",
    "\r\n",
    "\n\n",
    "\u2028",
    "\x85",
    "\t",
    " ",
    "\\x1b",
    "\\",
    "...",
    "¿",
    "|",
    "%s{}",
    "\ufeff",
    "\ufffd",
    "\U000e0041",
)
"""What has broken programs that show text."""

SPECIAL = ("<s>", "</s>", "<pad>")
"""Pieces that are a single token."""


@dataclass(frozen=True)
class Windows:
    """Random token ids: how many windows, how long, of how many different tokens, and the seed."""

    count: int
    length: int
    variety: int
    seed: int

    @property
    def ids(self):
        """[window position]; no special tokens."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(3, 3 + self.variety, (self.count, self.length), generator=generator)


def windows(most=3):
    """Windows from one token over and over to all that there are."""
    varieties = st.sampled_from([1, 2, 5, IDS - 3])
    return st.builds(Windows, st.integers(1, most), st.integers(2, LONGEST), varieties, st.integers(0, 99))


def texts():
    """Texts of at least two tokens; without NUL, which is no text."""
    any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
    parts = st.lists(st.sampled_from(PIECES) | any_text, min_size=1, max_size=12)
    return parts.map("".join).filter(_two_tokens)


def _two_tokens(text: str) -> bool:
    """Whether it is more than a byte, once line endings are LF and a mark in front is gone, and no special token."""
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return len(plain.encode()) > 1 and plain not in SPECIAL


@functools.cache
def model(architecture, dtype="float32"):
    """One tiny model of each kind for all examples; whatever is done to it has to leave it as it was."""
    room = dict.fromkeys(("max_position_embeddings", *(["n_positions"] if architecture == "gpt2" else [])), 128)
    return tiny(architecture, **room).to(getattr(torch, dtype))


def architectures():
    """Model types, plain ones first."""
    return st.sampled_from(list(ARCHITECTURES))


def dtypes():
    """Names of dtypes, the most exact first."""
    return st.sampled_from(["float32", "bfloat16", "float16"])


def normalizers():
    """Every name with settings anywhere in their range, as users spell them."""
    # Not as cards: the type checker draws random numbers as they are made, which a strategy may not.
    return st.sampled_from(list(NORMALIZERS.values())).flatmap(_spec)


def _spec(card: Normalizer):
    settings = st.fixed_dictionaries({}, optional={each.name: _value(each) for each in card.parameters})
    pairs = settings.map(lambda found: ",".join(f"{name}={value!r}" for name, value in found.items()))
    return pairs.map(lambda found: f"{card.name}:{found}" if found else card.name)


def _value(parameter: Parameter):
    low, high = max(parameter.low, -50), min(parameter.high, 50)
    if parameter.whole:
        return st.integers(int(low), int(high)) | st.just(int(parameter.high))
    return st.floats(low, high, allow_subnormal=False) | st.sampled_from([parameter.low, parameter.high])


def modifiers():
    """None, or any change of scores that can be asked for."""
    return st.none() | st.builds(_modifier, *MODIFIERS)


MODIFIERS = (
    st.integers(1, 6),
    st.none() | st.floats(-20, 5) | st.just(-torch.inf),
    st.none() | st.integers(1, LONGEST),
    st.booleans(),
    st.booleans(),
)


def _modifier(initial, sink_bias, window, keep_sinks, alibi):
    return Modifier(initial, sink_bias, window, keep_sinks and window is not None, alibi)


def places():
    """Which layers and heads to swap: everything, or some."""
    layers = st.lists(st.integers(0, LAYERS - 1), min_size=1, max_size=2, unique=True)
    head = st.tuples(st.integers(0, LAYERS - 1), st.none() | st.integers(0, HEADS - 1))
    chosen = {"layers": layers, "heads": st.lists(head, min_size=1, max_size=3, unique=True)}
    return st.fixed_dictionaries({}, optional=chosen)


def swaps():
    """A normalizer, a modifier, and where."""
    return st.tuples(normalizers(), modifiers(), places())


def options():
    """How to measure."""
    return st.fixed_dictionaries(
        {},
        optional={
            "batch_size": st.integers(1, 4),
            "attention": st.sampled_from(["auto", "dense"]),
            "queries": st.integers(1, LONGEST + 1),
            "seed": st.integers(0, 5),
            "initial": st.integers(1, LONGEST),
            "epsilon": st.sampled_from([0.0, 0.3, 1.0]),
            "only": st.lists(st.sampled_from([*METRICS, "received"]), max_size=3),
            "classes": st.lists(st.sampled_from(list(TOKEN_CLASSES)), max_size=3),
        },
    )
