"""A text as one user turn of a tokenizer's chat template, with the template's tokens told from the text's own."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from jinja2 import TemplateError
from torch import Tensor

from sinkscope.errors import TextError

_PROBES = ("a", "1")
"""Texts that have no first and no last token in common."""


@dataclass(frozen=True)
class Chat:
    """What a chat template puts before and after a user's text, and how its token ids begin and end."""

    tokenizer: Any
    before: str
    after: str
    samples: tuple[Int[Tensor, "_"], ...]

    def framed(self, text: str, *, whole: bool = True) -> str:
        """The turn with this text in it, to its end or, of the beginning of a text, as far as that text.

        White space around the text goes where the template trims it. Raises TextError where a template does more.
        """
        rendered = _rendered(self.tokenizer, text)
        end = len(rendered) - len(self.after)
        around = rendered.startswith(self.before) and rendered.endswith(self.after) and end >= len(self.before)
        if not around or rendered[len(self.before) : end].strip() != text.strip():
            raise TextError("the chat template changes the text that it is given: leave out --chat")
        return rendered if whole else rendered[:end]

    def marked(self, ids: Int[Tensor, "token"], *, whole: bool = True) -> Bool[Tensor, "token"]:
        """True at the tokens that the template would give whatever the text: the beginning and end they all share.

        Decided on ids, since offsets can be missing or wrong. A token made of template and text is the text's.
        """
        front = min(shared(ids, sample) for sample in self.samples)
        back = min(shared(ids.flip(0), sample.flip(0)) for sample in self.samples) if whole else 0
        place = torch.arange(len(ids))
        return (place < front) | (place >= len(ids) - back)


def chat(tokenizer: Any) -> Chat:
    """The chat template of a tokenizer; TextError where it has none, or none that puts words around a text."""
    if not getattr(tokenizer, "chat_template", None):
        raise TextError("the tokenizer has no chat template: leave out --chat, or take an instruct model")
    rendered = [_rendered(tokenizer, probe) for probe in _PROBES]
    # A letter may be in the template too, so the place of the text is where two renderings differ.
    start = _common(rendered[0], rendered[1])
    before, after = rendered[0][:start], rendered[0][start + 1 :]
    if any(before + probe + after != found for probe, found in zip(_PROBES, rendered, strict=True)):
        raise TextError("the chat template does more than put words around a text: leave out --chat")
    samples = tuple(torch.tensor(tokenizer(each, add_special_tokens=False).input_ids) for each in rendered)
    return Chat(tokenizer, before, after, samples)


def chat_facts(tokenizer: Any) -> dict[str, object]:
    """For the report: which template, and how it was used."""
    template = tokenizer.chat_template
    return {
        "turns": "one user turn, no generation prompt",
        "template_sha256": hashlib.sha256(str(template).encode()).hexdigest(),
        "special": "tokens that the template adds are special; one made of template and text together is not",
    }


def _rendered(tokenizer: Any, text: str) -> str:
    turn = [{"role": "user", "content": text}]
    try:
        rendered: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=False)
    except (TemplateError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise TextError(f"the chat template takes no single user turn ({reason}): leave out --chat") from None
    return rendered


def _common(one: str, other: str) -> int:
    """How many characters two texts share before they first differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def shared(one: Int[Tensor, "_"], other: Int[Tensor, "_"]) -> int:
    """How many ids two sequences share before they first differ."""
    both = min(len(one), len(other))
    differ = (one[:both] != other[:both]).nonzero()
    return int(differ[0]) if len(differ) else both
