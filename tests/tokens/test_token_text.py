import string
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.tokens import PUNCTUATION_RULE, TOKEN_CLASSES, TokenClass, Tokens, classify, read
from sinkscope.tokens.showing import visible_text

ANY_TEXT = st.text(st.characters(), max_size=20)


@pytest.mark.parametrize(
    ("text", "shown", "in_ascii"),
    [
        (" the", "␣the", r"\sthe"),
        ("\n\r\t", r"\n\r\t", r"\n\r\t"),
        ("\x1b[31m", r"\x1b[31m", r"\x1b[31m"),
        ("\u202eabc\u200b", r"\u202eabc\u200b", r"\u202eabc\u200b"),
        ("\x85\u00a0\u00ad\ufeff", r"\u0085\u00a0\u00ad\ufeff", r"\u0085\u00a0\u00ad\ufeff"),
        (b"\xe3\x80", r"\xe3\x80", r"\xe3\x80"),
        (b" \xf0\x9f\xa6\x8a", "␣🦊", r"\s\U0001f98a"),
        ("🏴\U000e0067\ufe0f", r"🏴\U000e0067\ufe0f", r"\U0001f3f4\U000e0067\ufe0f"),
        (r"\n", r"\\n", r"\\n"),
        ("␣", r"\u2423", r"\u2423"),
        ("\u0301", "◌\u0301", r"\u0301"),
        ("e\u0301", "e\u0301", r"e\u0301"),
        ("[/INST] [red]:smile:", "[/INST]␣[red]:smile:", r"[/INST]\s[red]:smile:"),
        ("", "", ""),
    ],
    ids=ascii,
)
def test_what_a_terminal_would_obey_hide_or_reorder_is_shown_as_an_escape(text, shown, in_ascii):
    assert visible_text(text) == shown
    assert visible_text(text, ascii_only=True) == in_ascii


@given(ANY_TEXT)
def test_nothing_shown_is_a_control_a_format_sign_or_white_space(text):
    shown = visible_text(text)
    assert not any(unicodedata.category(sign)[0] in "CZ" for sign in shown)
    assert visible_text(text, ascii_only=True).isascii()


@given(ANY_TEXT, ANY_TEXT)
def test_different_texts_are_shown_differently_in_ascii(text, another):
    same = visible_text(text, ascii_only=True) == visible_text(another, ascii_only=True)
    assert same == (text == another)


@given(st.text(max_size=20))
def test_bytes_that_are_text_are_shown_as_that_text(text):
    assert visible_text(text.encode()) == visible_text(text)


def marks(name, *spelling):
    keep = torch.ones(1, len(spelling), dtype=torch.bool)
    tokens = Tokens(keep.long(), keep, ~keep, (spelling,), initial=1, bos=None)
    return TOKEN_CLASSES[name].function(tokens)[0].int().tolist()


def test_a_character_that_the_window_cuts_is_not_punctuation():
    assert marks("punctuation", b"x", b" \xe3", b"\x80", b"\x82y", b"z") == [0, 1, 1, 1, 0]
    assert marks("punctuation", b"\x80", b"\x82y", b"\xe3", b"\x80") == [0, 0, 0, 0]
    assert marks("punctuation", b"x", b"\xe3", b"<s>", b"\x80\x82") == [0, 0, 1, 0]


def test_a_newline_is_white_space_and_nothing_else():
    assert marks("newline", b"a\n", b" \n", b"\xe2\x80", b"\xa8", b".\n", b"  ", b"\t", b"") == [0, 1, 1, 1, 0, 0, 0, 0]


def test_the_rule_of_punctuation_names_the_symbols_that_unicode_does_not_count():
    symbols = [sign for sign in string.punctuation if not unicodedata.category(sign).startswith("P")]
    assert "such as " + " ".join(symbols) in PUNCTUATION_RULE


def test_without_a_tokenizer_only_positions_are_told_apart():
    keep = torch.tensor([[False, True, True]])
    tokens = read(None, torch.tensor([[0, 7, 8]]), keep, 4)
    marks = classify(tokens, [TokenClass("textual", lambda _: keep, "needs text", needs_text=True)])
    assert list(marks) == ["first", "other", "initial", "bos"]
    assert marks["other"].tolist() == [[False, False, True]]
    assert not marks["bos"].any()
    with pytest.raises(ValueError, match="read them with a tokenizer"):
        TOKEN_CLASSES["punctuation"].function(tokens)


@pytest.mark.parametrize(("name", "overlay"), [("first", True), ("mine", False)])
def test_an_extra_class_is_an_overlay_with_a_name_of_its_own(name, overlay):
    extra = TokenClass(name, lambda tokens: tokens.keep, "mine", overlay=overlay)
    tokens = read(None, torch.tensor([[1]]), torch.tensor([[True]]), 1)
    with pytest.raises(ValueError, match=f"name of its own, got '{name}'"):
        classify(tokens, [extra])


def test_no_leading_keys_at_all_are_refused():
    with pytest.raises(ValueError, match="initial >= 1, got 0"):
        read(None, torch.tensor([[1]]), torch.tensor([[True]]), 0)
