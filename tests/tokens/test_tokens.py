import functools
import re
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from sinkscope.errors import TextError
from sinkscope.tokens import TOKEN_CLASSES, TokenClass, classify, read
from sinkscope.tokens.spelling import spell

PARTITION = ["first", "special", "punctuation", "newline", "other"]
TRAINED_ON = ["the cat, the dog. don't stop.\"\n\nThen ... a ,b", "你好，世界。「引」 caf\u00e9 \t\n\n x"]
TEXTS = {
    "a ,b": ",",
    "你好，世界。「引」": "，。「」",
    'stop."\n\nThen': '."',
    "the ...": "...",
    "don't": "'",
    "x $ + < = > ^ | ~ `": "$+<=>^|~`",
    "x\n\ny \n": "",
    "e\u0301 \u200b \u00ad \x00": "",
    "x\u00a0— ¿que? 🦊！": "—¿?！",
}
PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
SIGNS = [*"▁,.\"'…。「，你好", *string.ascii_letters]
MERGES = [("▁", ","), (".", '"'), ("。", "「"), ("t", "h"), ("th", "e"), ("▁", "the")]
NAMED = UNK, BOS, PAD = ["<unk>", "<s>", "<pad>"]


class Utf8Tokenizer(PreTrainedTokenizer):
    """A slow tokenizer with one token for each byte, under signs of no known alphabet."""

    def get_vocab(self):
        return {chr(byte): byte for byte in range(256)} | self.added_tokens_encoder

    @property
    def vocab_size(self):
        return 256

    def _tokenize(self, text):
        return [chr(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)

    def convert_tokens_to_string(self, tokens):
        parts = [token.encode() if len(token) > 1 else bytes([ord(token)]) for token in tokens]
        return b"".join(parts).decode(errors="replace")


class WithoutOffsets(PreTrainedTokenizerFast):
    """A tokenizer all of whose offsets are empty."""

    def __call__(self, text, **kwargs):
        encoded = super().__call__(text, **kwargs)
        encoded["offset_mapping"] = [(0, 0)] * len(encoded["input_ids"])
        return encoded


class Shouting(PreTrainedTokenizerFast):
    """A tokenizer that decodes to something else than the text."""

    def decode(self, token_ids, **kwargs):
        return super().decode(token_ids, **kwargs).upper()


class Mute(PreTrainedTokenizerFast):
    """A tokenizer that decodes everything to nothing."""

    def decode(self, *_ids, **_options):
        return ""


def finished(backend, kind=PreTrainedTokenizerFast):
    return kind(tokenizer_object=backend, bos_token=BOS, pad_token=PAD, unk_token=UNK)


def numbered(vocabulary):
    return {piece: i for i, piece in enumerate(vocabulary)}


def byte_level(kind=PreTrainedTokenizerFast):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=NAMED, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TRAINED_ON * 2, trainer)
    return finished(backend, kind)


def _sentence_pieces(*, dummy_space):
    vocabulary = [*NAMED, *PIECES, *SIGNS, *("".join(pair) for pair in MERGES)]
    backend = Tokenizer(models.BPE(numbered(vocabulary), MERGES, byte_fallback=True, unk_token=UNK))
    spaces = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if dummy_space else spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if dummy_space else steps)
    if not dummy_space:
        backend.add_tokens([AddedToken("\n\n", normalized=False)])
    return finished(backend)


def llama_like():
    return _sentence_pieces(dummy_space=True)


def gemma_like():
    return _sentence_pieces(dummy_space=False)


def unigram():
    scored = [(piece, -float(i)) for i, piece in enumerate([*NAMED, *SIGNS, "▁,", "。「", *PIECES])]
    backend = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return finished(backend)


def _every_sign():
    return sorted({sign for text in [*TEXTS, *TRAINED_ON, "do not"] for sign in text if not sign.isspace()})


def word_piece():
    vocabulary = [*NAMED, *_every_sign(), *(f"##{sign}" for sign in _every_sign()), "do", "not"]
    backend = Tokenizer(models.WordPiece(numbered(vocabulary), unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return finished(backend)


def end_of_word():
    vocabulary = [*NAMED, *_every_sign(), *(f"{sign}</w>" for sign in _every_sign())]
    backend = Tokenizer(models.BPE(numbered(vocabulary), [], end_of_word_suffix="</w>", unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder("</w>")
    return finished(backend)


def slow():
    return Utf8Tokenizer(bos_token=BOS, pad_token=PAD)


def without_offsets():
    return byte_level(WithoutOffsets)


def shouting():
    return byte_level(Shouting)


LOSSLESS = [byte_level, llama_like, gemma_like, unigram, slow, without_offsets]
ALL = [*LOSSLESS, word_piece, end_of_word, shouting]
built = functools.cache(lambda make: make())
each = pytest.mark.parametrize("tokenizer", [pytest.param(built(make), id=make.__name__) for make in ALL])
each_lossless = pytest.mark.parametrize("tokenizer", [pytest.param(built(make), id=make.__name__) for make in LOSSLESS])


def encoded(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def tokens_of(tokenizer, *windows, left=False, initial=4):
    longest = max(map(len, windows))
    pads = [[tokenizer.pad_token_id] * (longest - len(window)) for window in windows]
    ids = [pad + window if left else window + pad for window, pad in zip(windows, pads, strict=True)]
    real = [[False] * len(pad) + [True] * len(window) for window, pad in zip(windows, pads, strict=True)]
    keep = torch.tensor(real if left else [row[::-1] for row in real])
    return read(tokenizer, torch.tensor(ids), keep, initial)


def marked(tokenizer, text, name):
    tokens = tokens_of(tokenizer, [tokenizer.bos_token_id, *encoded(tokenizer, text)])
    return [part for part, is_marked in zip(tokens.characters[0], classify(tokens)[name][0], strict=True) if is_marked]


def some_windows(tokenizer):
    bos = tokenizer.bos_token_id
    return [[bos, *encoded(tokenizer, text), bos, *encoded(tokenizer, "a, b")] for text in TEXTS]


@each
@pytest.mark.parametrize(("text", "signs"), TEXTS.items(), ids=ascii)
def test_every_token_that_holds_a_sign_of_punctuation_is_punctuation_and_no_other(tokenizer, text, signs):
    parts = marked(tokenizer, text, "punctuation")
    assert all(set(part) & set(signs) for part in parts)
    assert set(signs) <= set("".join(parts))
    assert not set(signs) & set("".join(marked(tokenizer, text, "other")))


@each_lossless
def test_tokens_of_line_breaks_are_newlines(tokenizer):
    parts = marked(tokenizer, "x\n\ny \n。\r\nz", "newline")
    assert "".join(parts).replace(" ", "") == "\n\n\n\r\n"


@each
def test_no_class_marks_padding_and_five_of_them_partition_the_rest(tokenizer):
    everything = TokenClass("everything", lambda tokens: torch.ones_like(tokens.keep), "all there is")
    for left in (False, True):
        tokens = tokens_of(tokenizer, *some_windows(tokenizer), left=left)
        marks = classify(tokens, [everything])
        assert list(marks) == [*TOKEN_CLASSES, "everything"]
        assert not any((mark & ~tokens.keep).any() for mark in marks.values())
        assert torch.equal(sum(marks[name].int() for name in PARTITION), tokens.keep.int())
        assert torch.equal(marks["everything"], tokens.keep)


@each
def test_the_side_of_the_padding_and_a_second_look_change_no_class(tokenizer):
    right = tokens_of(tokenizer, *some_windows(tokenizer))
    left = tokens_of(tokenizer, *some_windows(tokenizer), left=True)
    again = classify(tokens_of(tokenizer, *some_windows(tokenizer)))
    for name, mark in classify(right).items():
        assert torch.equal(mark[right.keep], classify(left)[name][left.keep])
        assert torch.equal(mark, again[name])


@each
def test_special_tokens_are_spelled_out_and_never_punctuation(tokenizer):
    bos = tokenizer.bos_token_id
    tokens = tokens_of(tokenizer, [*encoded(tokenizer, "a"), bos, *encoded(tokenizer, ","), bos])
    marks = classify(tokens)
    assert torch.equal(marks["special"], tokens.ids == bos)
    assert tokens.spelling[0][-1] == b"<s>"
    assert marks["punctuation"].any()


def test_first_comes_before_all_others_and_overlays_beside_them():
    tokenizer = built(byte_level)
    bos, comma = tokenizer.bos_token_id, encoded(tokenizer, ",")[0]
    marks = classify(tokens_of(tokenizer, [bos, comma, comma], [comma, bos, comma], left=True, initial=2))
    assert marks["first"].tolist() == [[True, False, False]] * 2
    assert marks["initial"].tolist() == [[True, True, False]] * 2
    assert marks["bos"].tolist() == [[True, False, False], [False] * 3]
    assert marks["special"].tolist() == [[False] * 3, [False, True, False]]


def test_a_bos_that_is_eos_too_is_special_wherever_it_stands_and_bos_only_in_front():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=built(byte_level).backend_tokenizer, bos_token=BOS, eos_token=BOS, pad_token=BOS
    )
    bos, letter = tokenizer.bos_token_id, encoded(tokenizer, "a")[0]
    ids = torch.tensor([[bos, bos, letter, bos, bos], [letter, bos, letter, letter, bos]])
    keep = torch.tensor([[True, True, True, True, False]] * 2)
    marks = classify(read(tokenizer, ids, keep, 1))
    assert marks["bos"].int().tolist() == [[1, 0, 0, 0, 0], [0] * 5]
    assert marks["special"].int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]


def test_what_a_template_adds_is_special_before_it_is_punctuation():
    tokenizer = built(byte_level)
    ids = torch.tensor([encoded(tokenizer, "a,\n,")])
    keep = torch.ones_like(ids, dtype=torch.bool)
    template = torch.tensor([[True, True] + [False] * (ids.shape[1] - 2)])
    marks = classify(read(tokenizer, ids, keep, 1, template))
    assert marks["special"][0, 1]
    assert not (marks["punctuation"] & template).any()


def test_an_added_token_that_is_not_special_is_judged_by_its_text():
    assert marked(built(gemma_like), "x\n\n,", "newline") == ["\n\n"]


def test_a_tokenizer_that_decodes_to_nothing_is_refused():
    mute = byte_level(Mute)
    with pytest.raises(TextError, match="Mute decodes tokens to nothing: repair it"):
        spell(mute, [mute.bos_token_id, *encoded(mute, "a, b")])


def test_a_continuation_is_spelled_without_its_mark_even_where_decoding_contracts():
    tokenizer = built(word_piece)
    joined = b"".join(spell(tokenizer, encoded(tokenizer, "the cats do not")))
    assert joined.replace(b" ", b"") == b"thecatsdonot"


def test_a_token_with_two_bytes_of_three_is_spelled_with_these_two():
    vocabulary = numbered([*NAMED, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ï¼"])
    backend = Tokenizer(models.BPE(vocabulary, [("ï", "¼")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = finished(backend)
    assert spell(tokenizer, encoded(tokenizer, "，")) == [b"\xef\xbc", b"\x8c"]


@pytest.mark.parametrize("make", [without_offsets, shouting])
def test_bad_offsets_and_a_decoding_that_is_not_the_text_change_no_class(make):
    good, bad = (tokens_of(tokenizer, *some_windows(tokenizer)) for tokenizer in (built(byte_level), built(make)))
    assert torch.equal(good.ids, bad.ids)
    for name, mark in classify(good).items():
        assert torch.equal(mark, classify(bad)[name]), name


def test_an_id_beyond_the_vocabulary_stands_for_nothing():
    tokenizer = built(byte_level)
    assert spell(tokenizer, [len(tokenizer) + 5, *encoded(tokenizer, ",")]) == [b"", b","]


@each_lossless
@settings(deadline=None, max_examples=40)
@given(text=st.one_of(st.text(max_size=30), st.sampled_from(list(TEXTS))))
def test_the_spelling_of_a_text_is_its_bytes(tokenizer, text):
    text = re.sub("▁|<", "_", text)
    joined = b"".join(spell(tokenizer, encoded(tokenizer, text))) if text else b""
    dummy = b" " if tokenizer in (built(llama_like), built(unigram)) else b""
    assert joined in {text.encode(), dummy + text.encode()}
