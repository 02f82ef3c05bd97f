"""Windows without a text, of random tokens or of one repeated: where attention goes when there is nothing to read."""

import random
from typing import Any

import torch

from sinkscope.errors import TextError
from sinkscope.text.bos import bos_facts, doubts, opening
from sinkscope.text.corpus import Windows, room_for_text
from sinkscope.text.lengths import length_facts
from sinkscope.tokens.spelling import special_ids

KINDS = ("random", "repeat")
"""Every token drawn anew, or one for each window."""


def synthetic(
    tokenizer: Any,
    kind: str,
    *,
    seq_len: int = 512,
    count: int | None = 4,
    bos: str = "auto",
    seed: int = 0,
    embedded: int | None = None,
) -> Windows:
    """`count` windows of `seq_len` tokens, BOS included, drawn with equal odds from the ordinary vocabulary.

    A window depends on the seed and on its place alone, and a longer one begins as a shorter one does. bos: as in
    `corpus.windows`. embedded: how many ids the model has embeddings for, where they may be fewer than the tokenizer's.
    The inputs of Gu et al. (arXiv 2410.10781) beside natural text. Raises ValueError for a kind that is not in KINDS,
    TextError for windows without an end (None), for none, and where they have no room or there is nothing to draw.
    """
    if kind not in KINDS:
        raise ValueError(f"expected {' or '.join(KINDS)}, got {kind!r}")
    if count is None:
        raise TextError("there is no end of synthetic windows: give a number of them in place of all")
    begun = opening(tokenizer, bos)
    room = room_for_text(seq_len, count, len(begun.ids))
    vocabulary = _ordinary(tokenizer, embedded)
    drawn = [_drawn(vocabulary, f"{seed} {place}", 1 if kind == "repeat" else room) for place in range(count)]
    ids = torch.tensor([[*begun.ids, *(found * room)[:room]] for found in drawn])
    keep = torch.ones_like(ids, dtype=torch.bool)
    names = tuple(f"{kind} {place}" for place in range(1, count + 1))
    provenance = {
        **length_facts(keep, seq_len),
        "windows": count,
        "documents": [{"name": name, "windows": 1, "tokens_measured": room} for name in names],
        "synthetic": {
            "kind": kind,
            "seed": seed,
            "vocabulary": len(vocabulary),
            "repeated_ids": [found[0] for found in drawn] if kind == "repeat" else None,
        },
        **bos_facts(tokenizer, begun, ids, keep),
        "warnings": doubts(tokenizer, begun, ids, keep),
    }
    return Windows(ids, keep, names, (0,) * count, provenance)


def _drawn(vocabulary: list[int], seed: str, number: int) -> list[int]:
    # Of all generators only this method of Python's is promised to give the same numbers in every release.
    draw = random.Random(seed).random  # noqa: S311 - for figures, not for secrets
    return [vocabulary[int(draw() * len(vocabulary))] for _ in range(number)]


def _ordinary(tokenizer: Any, embedded: int | None) -> list[int]:
    """The ids of all tokens that are neither special nor added, and that the model has an embedding for, in order."""
    unusual = special_ids(tokenizer) | set(tokenizer.get_added_vocab().values())
    ids = sorted(set(tokenizer.get_vocab().values()) - unusual)
    ordinary = ids if embedded is None else [each for each in ids if each < embedded]
    if not ordinary:
        raise TextError(f"{type(tokenizer).__name__} has no ordinary tokens to draw from: give a text")
    return ordinary
