"""With a chat template a text is one user turn, and what the template adds is told from what was said."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import TextError
from sinkscope.text import tokenizing
from sinkscope.text.corpus import Document, windows
from sinkscope.tokens import classify, read

CHATML = "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
LLAMA = "{{ bos_token }}[INST] {{ messages[0].content | trim }} [/INST]"
WITH_SYSTEM = "{{ bos_token }}<|im_start|>system\nBe kind, a 1.<|im_end|>\n" + CHATML
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "system": WITH_SYSTEM}
ADDED = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXT = "Hello, user.\n\n1 word"


def _tokenizer(core, template, *, adds_bos=False, bos="<s>", **special):
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token="</s>", **special)  # noqa: S106
    made.chat_template = template
    return made


def byte_level(template=CHATML, merges=(), **options):
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE({piece: number for number, piece in enumerate(alphabet)}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return _tokenizer(core, template, **options)


def unigram(template=LLAMA):
    pieces = sorted({*"▁[]/INST", *TEXT.replace(" ", "▁"), "▁word", "▁[", "▁user", *"<|im_startend>system"})
    scored = [("<unk>", -9.0), *((piece, -2.0 - len(piece) / 9) for piece in pieces)]
    core = Tokenizer(models.Unigram(scored, unk_id=0))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _tokenizer(core, template)


def word_piece(template=CHATML):
    words = ["[UNK]", "Hello", "user", ",", ".", "1", "word", "a", "INST", "[", "]", "/", "system", "be", "kind"]
    core = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
    core.pre_tokenizer, core.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return _tokenizer(core, template, unk_token="[UNK]")  # noqa: S106


ALPHABETS = {"bytes": byte_level, "unigram": unigram, "word pieces": word_piece}


def cut(tokenizer, text=TEXT, **options):
    return windows(tokenizer, [Document("text 1", text, prompt=True)], chat=True, **options)


def said(tokenizer, found):
    """The tokens of the first window that are not the template's, as text."""
    return tokenizer.decode(found.ids[0][found.keep[0] & ~found.template[0]])


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1).filter(str.strip))
def test_what_is_not_the_templates_is_the_text_to_the_byte(template, text):
    tokenizer = byte_level(template)
    found = cut(tokenizer, text)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
    assert found.ids[0].tolist() == tokenizer(rendered, add_special_tokens=False).input_ids
    assert said(tokenizer, found) == (text.strip() if template == LLAMA else text)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_every_alphabet_tells_the_template_from_the_text(alphabet, template):
    tokenizer = ALPHABETS[alphabet](template)
    found = cut(tokenizer, TEXT)
    told = said(tokenizer, found).replace(" ", "").replace("\n", "").replace("[UNK]", "").lower()
    assert told == "hello,user.1word"
    tokens = read(tokenizer, found.ids, found.keep, 1, found.template)
    marks = classify(tokens)
    assert torch.equal(marks["special"] | marks["first"], found.template)
    assert marks["punctuation"].sum() == 2
    assert found.provenance["chat"]["template_tokens"] == found.template.sum()


def test_a_token_of_template_and_text_is_the_texts():
    tokenizer = byte_level(merges=[("Ċ", "Ċ")])
    assert said(tokenizer, cut(tokenizer, "\nHello\n")) == "\n\nHello\n"
    assert said(tokenizer, cut(tokenizer, "user\n")) == "user\n"


@pytest.mark.parametrize(
    ("bos", "adds_bos", "template", "expected"),
    [
        ("auto", True, LLAMA, ("tokenizer", 1, [])),
        ("always", True, LLAMA, ("tokenizer", 1, [])),
        ("auto", False, LLAMA, ("chat template", 1, [])),
        ("always", False, LLAMA, ("sinkscope", 1, [])),
        ("never", False, LLAMA, (None, 0, [])),
        ("auto", True, CHATML, ("tokenizer", 1, [])),
        ("auto", False, CHATML, (None, 0, [])),
    ],
)
def test_nobody_gets_bos_twice(bos, adds_bos, template, expected):
    told = cut(byte_level(template, adds_bos=adds_bos), bos=bos).provenance
    assert (told["bos_added_by"], told["n_leading_bos"], told["warnings"]) == expected


@pytest.mark.parametrize("bos_token", ["<s>", "<|im_start|>"])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_bos_is_one_token_more_also_where_the_template_begins_with_it(template, adds_bos, bos_token):
    tokenizer = byte_level(template, adds_bos=adds_bos, bos=bos_token)
    never, always = (cut(tokenizer, bos=bos).ids for bos in ("never", "always"))
    assert always[:, 1:].equal(never)
    assert always[0, 0] == tokenizer.bos_token_id


def test_the_turn_is_cut_into_windows_as_any_text():
    tokenizer = byte_level(WITH_SYSTEM)
    found = windows(tokenizer, [Document("text", TEXT * 9)], seq_len=16, count=None, chat=True)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": TEXT * 9}], tokenize=False)
    ids = tokenizer(rendered, add_special_tokens=False).input_ids
    assert found.ids.flatten().tolist() == ids[: found.ids.numel()]
    assert found.provenance["tokens_total"] == len(ids)
    assert found.template[0].all()
    assert not found.template[-1].any()


def test_the_beginning_of_a_very_long_turn_is_that_of_the_whole(monkeypatch):
    monkeypatch.setattr(tokenizing, "_PIECE", 100)
    for tokenizer in (byte_level(WITH_SYSTEM), unigram()):
        document = [Document("text", " word user " * 200)]
        part, whole = (windows(tokenizer, document, seq_len=8, chat=True, whole=to_end) for to_end in (False, True))
        assert part.provenance["tokens_total"] is None
        assert part.ids.equal(whole.ids)
        assert part.template.equal(whole.template)


def test_padding_and_the_openings_of_windows_are_not_the_templates():
    prompts = [Document("1", "a", prompt=True), Document("2", "a" * 30, prompt=True)]
    found = windows(byte_level(adds_bos=True), prompts, chat=True)
    assert not (found.template & ~found.keep).any()
    assert not found.template[:, 0].any()


def test_without_chat_there_is_no_template():
    found = windows(byte_level(), [Document("1", "a b", prompt=True)])
    assert found.template is None
    assert "chat" not in found.provenance


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "the tokenizer has no chat template: leave out --chat, or take an instruct model"),
        (
            "{{ raise_exception('a system turn\n is needed') }}",
            r"no single user turn \(a system turn is needed\): leave",
        ),
        ("{{ messages", r"takes no single user turn \(.*\): leave out --chat"),
        ("{{ messages[0].content * 2 }}", "does more than put words around a text: leave out --chat"),
        ("nothing of it", "does more than put words around a text"),
        ("<s>{{ messages[0].content | upper }}", "does more than put words around a text"),
        ("<s>{{ messages[0].content | title }}", "does more than put words around a text"),
        ("<s>{{ messages[0].content | replace('u', 'v') }}", "changes the text that it is given: leave out --chat"),
    ],
)
def test_a_template_that_does_not_frame_a_text_is_refused_in_one_line(template, reason):
    with pytest.raises(TextError, match=reason) as caught:
        cut(byte_level(template))
    assert "\n" not in str(caught.value)


def test_the_template_is_named_by_its_hash():
    one, same, other = (
        cut(byte_level(template)).provenance["chat"]["template_sha256"] for template in (CHATML, CHATML, LLAMA)
    )
    assert one == same != other
