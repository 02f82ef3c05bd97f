"""A very long text need not be tokenised to its end for a few windows, and that changes nothing about them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sinkscope import corpus
from sinkscope.corpus import Document, windows

CHANCE = random.Random(1)  # noqa: S311 - no secret hangs on it
LINES = ["".join(CHANCE.choices("ab", k=60)) for _ in range(200)]


def _trained(model, trainer, split=None):
    core = Tokenizer(model)
    if split:
        core.pre_tokenizer = split
    core.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core)


UNBROKEN = _trained(models.BPE(), trainers.BpeTrainer(vocab_size=60, show_progress=False))
UNIGRAM = _trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=60, show_progress=False))
BYTES = _trained(
    models.BPE(),
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
)


class Watched:
    """A tokenizer that remembers how long the texts were that it was given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.lengths = tokenizer, []

    def __call__(self, text, **options):
        self.lengths.append(len(text))
        return self.tokenizer(text, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


def test_only_the_beginning_of_a_very_long_text_is_tokenised(monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE", 1000)
    document, tokenizer = Document("long", "ab " * 50_000), Watched(BYTES)
    told = windows(tokenizer, [document], seq_len=8).provenance
    assert max(tokenizer.lengths) == 2000
    assert told["windows"] == 4
    assert told["windows_available"] is told["tokens_total"] is told["tokens_dropped"] is None
    assert told["documents"][0]["tokens"] is told["documents"][0]["tokens_dropped"] is None
    for options in ({"count": None}, {"whole": True}):
        told = windows(BYTES, [document], seq_len=8, **options).provenance
        assert told["tokens_total"] == len(BYTES(document.text).input_ids)


@given(st.lists(st.text(max_size=150), min_size=1, max_size=8), st.integers(1, 3))
def test_its_windows_are_those_of_the_whole(parts, count):
    document = Document("long", "".join(parts).encode(errors="ignore").decode() * 12 + "ab " * 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_PIECE", 16)
        part, whole = (
            windows(BYTES, [document], seq_len=6, count=count, whole=all_of_it) for all_of_it in (False, True)
        )
    assert part.ids.equal(whole.ids)
    assert part.starts == whole.starts
    assert part.provenance["tokens_total"] in (None, whole.provenance["tokens_total"])


@pytest.mark.parametrize("tokenizer", [UNBROKEN, UNIGRAM])
def test_so_are_those_of_a_repetitive_text_without_words(tokenizer, monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE", 8)
    for _ in range(300):
        period = "".join(CHANCE.choices("ab", k=CHANCE.randint(1, 6)))
        text = (period * 400)[: CHANCE.randint(100, 400)] + CHANCE.choice(["", "b", "ab" * 7])
        part, _ = corpus._ids(tokenizer, text, CHANCE.randint(1, 4))
        assert part.tolist() == tokenizer(text).input_ids[: len(part)]


def test_so_are_those_of_a_text_whose_tokens_are_long(monkeypatch):
    monkeypatch.setattr(corpus, "_PIECE", 8)
    text = "ab" * 25
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({text: 0, "a": 1}, [])), mask_token=text)
    assert corpus._ids(tokenizer, text * 100, 10)[0].tolist() == [0] * 10
