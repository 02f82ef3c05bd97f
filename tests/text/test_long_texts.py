"""A very long text need not be tokenised to its end for a few windows, and that changes nothing about them."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from sinkscope.errors import TextError
from sinkscope.text import tokenizing
from sinkscope.text.corpus import Document, read_documents, windows
from sinkscope.text.documents import decoding
from sinkscope.text.tokenizing import encode

SAMPLE = read_documents([])[0].beginning().text
CHANCE = random.Random(1)  # noqa: S311 - no secret hangs on it
LINES = ["".join(CHANCE.choices("ab", k=60)) for _ in range(200)]


def _trained(model, trainer, split=None, lines=LINES):
    core = Tokenizer(model)
    if split:
        core.pre_tokenizer = split
    core.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core)


UNBROKEN = _trained(models.BPE(), trainers.BpeTrainer(vocab_size=60, show_progress=False))
UNIGRAM = _trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=60, show_progress=False))
BYTES = _trained(
    models.BPE(),
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
)
WORDS = SAMPLE.splitlines()
UNIGRAM_OF_WORDS = _trained(
    models.Unigram(),
    trainers.UnigramTrainer(vocab_size=800, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),  # noqa: S106
    pre_tokenizers.Metaspace(),
    WORDS,
)
WORD_PIECES = _trained(
    models.WordPiece(unk_token="[UNK]"),  # noqa: S106
    trainers.WordPieceTrainer(vocab_size=800, special_tokens=["[UNK]"], show_progress=False),
    pre_tokenizers.BertPreTokenizer(),
    WORDS,
)


class Letters(PreTrainedTokenizer):
    """A slow tokenizer whose tokens are characters, without offsets."""

    def get_vocab(self):
        return {chr(point): point for point in range(32, 127)} | self.added_tokens_encoder

    @property
    def vocab_size(self):
        return 127

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) % 127

    def _convert_id_to_token(self, index):
        return chr(index)


IN_PARTS = {"bytes": BYTES, "unigram": UNIGRAM_OF_WORDS, "word pieces": WORD_PIECES, "slow": Letters()}


class Watched:
    """A tokenizer that remembers how long the texts were that it was given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.lengths = tokenizer, []

    def __call__(self, text, **options):
        self.lengths.append(len(text))
        return self.tokenizer(text, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("name", IN_PARTS)
def test_only_the_beginning_of_a_very_long_text_is_tokenised(name, monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 1000)
    document, tokenizer = Document("long", SAMPLE.replace("\n", " ")), Watched(IN_PARTS[name])
    told = windows(tokenizer, [document], seq_len=8).provenance
    assert 1000 < max(tokenizer.lengths) <= 2000
    assert told["windows"] == 4
    assert told["windows_available"] is told["tokens_total"] is told["tokens_dropped"] is None
    assert told["documents"][0]["tokens"] is told["documents"][0]["tokens_dropped"] is None
    for options in ({"count": None}, {"whole": True}):
        told = windows(IN_PARTS[name], [document], seq_len=8, **options).provenance
        assert told["tokens_total"] == len(IN_PARTS[name](document.text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize("name", IN_PARTS)
def test_only_the_beginning_of_a_very_large_file_is_read_and_the_hash_says_so(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 1000)
    monkeypatch.setattr(decoding, "CHUNK", 1 << 10)
    path = tmp_path / "large.txt"
    path.write_bytes(SAMPLE.replace("\n", " ").encode() + b"\xff")
    part = windows(IN_PARTS[name], read_documents([path]), seq_len=8)
    content = path.read_bytes()[: 3 << 10]
    (told,) = part.provenance["documents"]
    assert told["sha256_of"] in {"the first 2048 bytes", "the first 3072 bytes"}
    size = int(told["sha256_of"].split()[2])
    assert told["sha256"] == hashlib.sha256(content[:size]).hexdigest()
    whole = windows(IN_PARTS[name], [Document("all", SAMPLE.replace("\n", " "))], seq_len=8, whole=True)
    assert part.ids.equal(whole.ids)
    with pytest.raises(TextError, match="not valid UTF-8"):
        windows(IN_PARTS[name], read_documents([path]), seq_len=8, count=None)


@pytest.mark.parametrize("start", range(0, 12_000, 1999))
@pytest.mark.parametrize("name", IN_PARTS)
def test_the_windows_of_a_part_are_those_of_the_whole(name, start, monkeypatch):
    document = Document("long", SAMPLE[start : start + 6000])
    whole = windows(IN_PARTS[name], [document], seq_len=6, count=9, whole=True)
    for piece in (64, 200, 700):
        monkeypatch.setattr(tokenizing, "_PIECE", piece)
        part = windows(IN_PARTS[name], [document], seq_len=6, count=9)
        assert part.ids.equal(whole.ids)


def test_a_text_without_spaces_is_read_to_its_end_where_words_matter(monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 16)
    document = Document("long", "你好，世界。" * 100)
    assert encode(UNIGRAM_OF_WORDS, document, 4).complete
    assert not encode(BYTES, document, 4).complete
    assert not encode(UNIGRAM_OF_WORDS, Document("long", "the boat " * 100), 4).complete


def test_tokens_that_reach_over_spaces_are_had_from_the_whole_text(monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 16)
    core = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -2.0), (" ", -2.0), ("a a", -1.0)], unk_id=0))
    assert encode(PreTrainedTokenizerFast(tokenizer_object=core), Document("long", "a " * 400), 4).complete


@given(st.lists(st.text(max_size=150), min_size=1, max_size=8), st.integers(1, 3))
def test_its_windows_are_those_of_the_whole(parts, count):
    document = Document("long", "".join(parts).encode(errors="ignore").decode() * 12 + "ab " * 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "_PIECE", 16)
        part, whole = (
            windows(BYTES, [document], seq_len=6, count=count, whole=all_of_it) for all_of_it in (False, True)
        )
    assert part.ids.equal(whole.ids)
    assert part.starts == whole.starts
    assert part.provenance["tokens_total"] in (None, whole.provenance["tokens_total"])


@pytest.mark.parametrize("tokenizer", [UNBROKEN, UNIGRAM])
def test_so_are_those_of_a_repetitive_text_without_words(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 8)
    for _ in range(300):
        period = "".join(CHANCE.choices("ab", k=CHANCE.randint(1, 6)))
        text = (period * 400)[: CHANCE.randint(100, 400)] + CHANCE.choice(["", "b", "ab" * 7])
        part = encode(tokenizer, Document("text", text), CHANCE.randint(1, 4)).ids
        assert part.tolist() == tokenizer(text).input_ids[: len(part)]


def test_so_are_those_of_a_text_whose_tokens_are_long(monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 8)
    text = "ab" * 25
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({text: 0, "a": 1}, [])), mask_token=text)
    found = encode(tokenizer, Document("text", text * 100), 10)
    assert not found.complete
    assert found.ids[:10].tolist() == [0] * 10
