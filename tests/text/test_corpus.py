"""Windows lose and invent nothing, and the provenance says what stands at position 0."""

import hashlib
import json
import logging
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import TextError
from sinkscope.text.corpus import Document, Rows, read_documents, windows

PARAGRAPH = "The café by the water opens at six.\nNobody is ever there before seven.\n"
TRAINING = [PARAGRAPH, "one two three four five six seven eight nine ten, and then the water and the boat"] * 3
SPECIAL = ["<s>", "</s>", "<pad>", "[CLS]", "[SEP]"]


def _tokenizer(template=None, longest=None, **special):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(TRAINING, trainer)
    if template:
        ids = [(token, core.token_to_id(token)) for token in SPECIAL]
        core.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    names = {f"{role}_token": token for role, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=longest, **names)


PLAIN = _tokenizer()
NAMES_BOS = _tokenizer(bos="<s>", eos="</s>")
ADDS_BOS = _tokenizer("<s> $A", bos="<s>", eos="</s>", pad="<pad>")
ADDS_CLS = _tokenizer("[CLS] $A [SEP]", cls="[CLS]", sep="[SEP]")
BEGINS_TWICE = _tokenizer("[CLS] <s> $A", bos="<s>", cls="[CLS]")
PADS_WITH_BOS = _tokenizer("<s> $A", bos="<s>", pad="<s>")
TOKENIZERS = [PLAIN, NAMES_BOS, ADDS_BOS, ADDS_CLS, BEGINS_TWICE]

texts = st.text(st.characters(codec="utf-8"), min_size=0, max_size=150)


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def words(number):
    return Document("words", "a " * number)


@given(st.lists(texts, min_size=1, max_size=3), st.sampled_from(TOKENIZERS), st.integers(4, 20))
def test_windows_joined_are_the_documents_less_the_remainder_that_is_counted(parts, tokenizer, seq_len):
    documents = [Document(f"document {index}", part + "ab" * seq_len) for index, part in enumerate(parts)]
    found = windows(tokenizer, documents, seq_len=seq_len, count=None)
    opening = tokenizer("a").input_ids[: tokenizer("a").input_ids.index(ids_of(tokenizer, "a")[0])]
    assert found.keep.all()
    assert found.ids[:, : len(opening)].tolist() == [opening] * len(found.ids)
    dropped = 0
    for document in documents:
        rows = [row for row, name in enumerate(found.documents) if name == document.name]
        joined = found.ids[rows][:, len(opening) :].flatten().tolist()
        expected = ids_of(tokenizer, document.beginning().text)
        assert joined == expected[: len(joined)]
        assert [found.starts[row] for row in rows] == list(range(0, len(joined), seq_len - len(opening)))
        assert len(expected) - len(joined) < seq_len - len(opening)
        dropped += len(expected) - len(joined)
    assert found.provenance["tokens_dropped"] == dropped
    assert found.provenance["windows"] == found.provenance["windows_available"] == len(found.ids)


@given(text=texts.filter(bool), seq_len=st.integers(3, 20))
def test_the_windows_of_a_prompt_are_its_tokens_and_only_padding_is_not_kept(text, seq_len):
    prompt, other = Document("prompt 1", text, prompt=True), Document("prompt 2", "a" * 200, prompt=True)
    found = windows(ADDS_BOS, [prompt, other], seq_len=seq_len, count=None)
    joined = [
        found.ids[row][found.keep[row]][1:].tolist() for row, name in enumerate(found.documents) if name == "prompt 1"
    ]
    expected, room = ids_of(ADDS_BOS, prompt.beginning().text), seq_len - 1
    whole = len(expected) // room * room if len(expected) > room else len(expected)
    assert list(chain.from_iterable(joined)) == expected[:whole]
    assert (found.keep.long().diff(dim=1) <= 0).all()


def test_documents_take_turns_until_one_runs_out():
    documents = [Document("long", "z" * 50), Document("short", "q" * 21), Document("middle", "j" * 35)]
    found = windows(PLAIN, documents, seq_len=10, count=8)
    assert found.documents == ("long", "short", "middle", "long", "short", "middle", "long", "middle")
    assert found.starts == (0, 0, 0, 10, 10, 10, 20, 20)
    assert [entry["windows"] for entry in found.provenance["documents"]] == [3, 2, 3]
    assert [entry["tokens_dropped"] for entry in found.provenance["documents"]] == [0, 1, 5]


def test_documents_that_nobody_looked_at_are_told():
    found = windows(PLAIN, [Document(str(index), "a " * 20) for index in range(6)], seq_len=8)
    assert found.documents == ("0", "1", "2", "3")
    assert found.provenance["warnings"] == ["2 of 6 texts were not read: ask for more windows"]
    assert found.provenance["documents_read"] == 4
    assert found.provenance["tokens_total"] is found.provenance["tokens_dropped"] is None


def test_a_default_count_takes_what_there_is_and_an_explicit_one_insists():
    document = words(20)
    assert len(windows(PLAIN, [document], seq_len=16).ids) == len(ids_of(PLAIN, document.text)) // 16 < 4
    available = len(windows(PLAIN, [document], seq_len=16).ids)
    with pytest.raises(TextError, match=f"gives {available} windows of 16 tokens, fewer than the 4 asked for"):
        windows(PLAIN, [document], seq_len=16, count=4, explicit=True)
    assert len(windows(PLAIN, [document], seq_len=16, count=available, explicit=True).ids) == available


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_seq_len_that_is_advised_works_and_one_more_does_not(tokenizer):
    document = words(10)
    with pytest.raises(
        TextError, match=r"words has \d+ tokens.*, fewer than one window of 512: give more text"
    ) as caught:
        windows(tokenizer, [document])
    advised = int(str(caught.value).rsplit(maxsplit=1)[-1])
    assert windows(tokenizer, [document], seq_len=advised).ids.shape == (1, advised)
    with pytest.raises(TextError, match=f"--seq-len {advised}$"):
        windows(tokenizer, [document], seq_len=advised + 1)


def test_the_shortest_of_several_documents_is_the_one_that_is_named():
    with pytest.raises(TextError, match=r"^short has 3 tokens, .* --seq-len 3$"):
        windows(PLAIN, [Document("middle", "b" * 9), Document("short", "xyz"), words(400)])


def test_one_token_is_too_few_unless_bos_makes_it_two():
    for prompt in (True, False):
        with pytest.raises(TextError, match="dot has 1 token, and at least 2 are needed"):
            windows(PLAIN, [Document("dot", ".", prompt=prompt)])
    assert windows(ADDS_BOS, [Document("dot", ".", prompt=True)]).ids.shape == (1, 2)
    with pytest.raises(TextError, match="nothing has 1 token with BOS, and at least 2 are needed"):
        windows(ADDS_BOS, [Document("nothing", "", prompt=True)])


@pytest.mark.parametrize(("tokenizer", "least"), [(PLAIN, 2), (ADDS_BOS, 2), (BEGINS_TWICE, 3)])
def test_a_window_has_room_for_text(tokenizer, least):
    assert windows(tokenizer, [words(20)], seq_len=least).ids.shape == (4, least)
    for seq_len in (least - 1, 0, -1):
        with pytest.raises(TextError, match=f"window of {seq_len} tokens is too short: give --seq-len {least}"):
            windows(tokenizer, [words(20)], seq_len=seq_len)


@pytest.mark.parametrize("count", [0, -1])
def test_no_windows_are_refused(count):
    with pytest.raises(TextError, match=f"{count} windows are nothing to measure"):
        windows(PLAIN, [words(20)], seq_len=4, count=count)


def test_no_documents_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="expected at least one document"):
        windows(PLAIN, [])


@pytest.mark.parametrize(
    ("tokenizer", "bos", "token", "added_by"),
    [
        (PLAIN, "auto", None, None),
        (NAMES_BOS, "auto", "<s>", None),
        (NAMES_BOS, "always", "<s>", "sinkscope"),
        (NAMES_BOS, "never", "<s>", None),
        (ADDS_BOS, "auto", "<s>", "tokenizer"),
        (ADDS_BOS, "always", "<s>", "tokenizer"),
        (ADDS_BOS, "never", "<s>", None),
        (ADDS_CLS, "auto", "[CLS]", "tokenizer"),
        (ADDS_CLS, "never", None, None),
        (BEGINS_TWICE, "auto", "[CLS]", "tokenizer"),
        (BEGINS_TWICE, "always", "<s>", "sinkscope"),
    ],
)
def test_provenance_says_what_token_0_is_and_who_put_it_there(tokenizer, bos, token, added_by):
    told = windows(tokenizer, [words(20)], seq_len=8, bos=bos).provenance
    assert (told["bos"], told["bos_token"], told["bos_added_by"]) == (bos, token, added_by)
    assert told["first_token"] == (token if added_by else "a")
    assert told["n_leading_bos"] == (1 if added_by else 0)


@pytest.mark.parametrize("tokenizer", [NAMES_BOS, ADDS_BOS])
def test_bos_is_one_token_more_and_what_follows_is_the_same(tokenizer):
    prompt = [Document("prompt 1", PARAGRAPH, prompt=True)]
    never, always = (windows(tokenizer, prompt, bos=bos).ids for bos in ("never", "always"))
    assert always[:, 1:].equal(never)
    assert always[0, 0] == tokenizer.bos_token_id


def test_what_a_tokenizer_appends_is_in_no_window():
    found = windows(ADDS_CLS, [words(20)], seq_len=8, count=None)
    assert (found.ids[:, 0] == ADDS_CLS.cls_token_id).all()
    assert not (found.ids == ADDS_CLS.sep_token_id).any()


def test_always_without_a_bos_token_is_refused():
    with pytest.raises(TextError, match="tokenizer has no BOS token: use --bos auto"):
        windows(PLAIN, [words(20)], seq_len=8, bos="always")
    with pytest.raises(ValueError, match="expected bos to be auto, always or never, got 'yes'"):
        windows(PLAIN, [words(20)], seq_len=8, bos="yes")


def test_a_literal_bos_in_the_text_is_seen():
    document = [Document("text", "<s>" + "a " * 20)]
    doubled = windows(ADDS_BOS, document, seq_len=8).provenance
    assert (doubled["n_leading_bos"], doubled["bos_added_by"]) == (2, "tokenizer")
    assert "begins with 2 BOS tokens" in doubled["warnings"][0]
    written = windows(NAMES_BOS, document, seq_len=8).provenance
    assert (written["n_leading_bos"], written["bos_added_by"], written["warnings"]) == (1, "text", [])


def test_a_bos_that_is_also_the_padding_is_not_counted_in_the_padding():
    prompts = [Document("1", "<s>", prompt=True), Document("2", "a " * 20, prompt=True)]
    assert windows(PADS_WITH_BOS, prompts, bos="always").provenance["n_leading_bos"] == 2


def test_leaving_out_the_bos_of_a_tokenizer_is_a_warning():
    assert windows(ADDS_BOS, [words(20)], seq_len=8).provenance["warnings"] == []
    warnings = windows(ADDS_BOS, [words(20)], seq_len=8, bos="never").provenance["warnings"]
    assert ["would put BOS in front" in warning for warning in warnings] == [True]


def test_a_window_beyond_the_tokenizers_maximum_is_a_warning_and_a_long_document_is_not(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = _tokenizer(longest=16)
    assert windows(tokenizer, [words(200)], seq_len=16).provenance["warnings"] == []
    (warning,) = windows(tokenizer, [words(200)], seq_len=17).provenance["warnings"]
    assert "windows of 17 tokens exceed the tokenizer's maximum of 16" in warning
    assert caplog.messages == []


def test_provenance_is_plain_data_and_names_the_text_by_its_hash():
    told = windows(PLAIN, [words(20)], seq_len=8).provenance
    assert json.loads(json.dumps(told)) == told
    assert told["documents"][0]["sha256"] == hashlib.sha256(b"a " * 20).hexdigest()
    assert told["tokenizer"] == type(PLAIN).__name__


def test_line_endings_are_told_either_way():
    for prompt, told in [("a \r\n", "normalised to LF"), ("a \n", "LF, as given")]:
        for source in (*read_documents([], [prompt]), Document("text 1", prompt, prompt=True)):
            found = windows(PLAIN, [source])
            assert found.provenance["line_endings"] == told
            assert found.ids.tolist() == [ids_of(PLAIN, "a \n")]


def test_a_lone_surrogate_is_no_text():
    with pytest.raises(TextError, match="text 1 has a lone surrogate at character 1: give valid Unicode text"):
        windows(PLAIN, [Document("text 1", "a\ud83d")])


@pytest.fixture
def rows(tmp_path):
    """A table with a text of each of these numbers of letters."""

    def made(lengths):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f'"{"z" * length}"\n' for length in lengths), "utf-8")
        return read_documents([path])

    return made


def test_rows_too_short_for_a_window_are_dropped_and_counted(rows):
    found = windows(PLAIN, rows([3, 10, 0, 25]), seq_len=10)
    assert [name.rpartition(" ")[2] for name in found.documents] == ["2", "4", "4"]
    told = found.provenance
    assert (told["documents_read"], told["documents_too_short"], told["rows_blank"]) == (3, 1, 1)
    assert (told["tokens_total"], told["tokens_dropped"], told["windows_available"]) == (38, 3 + 5, 3)
    assert [document["windows"] for document in told["documents"]] == [1, 2]


def test_a_row_of_white_space_is_no_document_not_even_in_a_chat_and_a_file_of_it_is_too_short(tmp_path):
    (tmp_path / "rows.jsonl").write_text('" "\n"\\n"\n', "utf-8")
    with pytest.raises(TextError, match=r"^all 2 rows hold nothing but white space: give a table with some text$"):
        windows(PLAIN, [*read_documents([tmp_path / "rows.jsonl"])], seq_len=2)


def test_documents_of_one_name_are_told_apart(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("z" * 30, "utf-8")
    sources = [*read_documents([path, path]), Document(f"{path} (2)", "q" * 20), Document(str(path), "j" * 10)]
    found = windows(PLAIN, sources, seq_len=10, count=None)
    assert [name.removeprefix(str(path)) for name in found.documents[:4]] == ["", " (2)", " (2) (2)", " (3)"]
    told = found.provenance["documents"]
    assert [(each["windows"], each["tokens_measured"]) for each in told] == [(3, 30), (3, 30), (2, 20), (1, 10)]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=6), st.integers(1, 9), st.sampled_from(TOKENIZERS))
def test_the_documents_that_are_told_are_those_of_the_windows(names, count, tokenizer):
    documents = [Document(name, "ab" * (10 + 9 * place)) for place, name in enumerate(names)]
    found = windows(tokenizer, documents, seq_len=6, count=count)
    told = {each["name"]: each for each in found.provenance["documents"]}
    assert len(told) == len(found.provenance["documents"])
    assert {name: each["windows"] for name, each in told.items()} == Counter(found.documents)
    begun = (
        found.ids.shape[1] - found.provenance["documents"][0]["tokens_measured"] // told[found.documents[0]]["windows"]
    )
    assert sum(each["tokens_measured"] for each in told.values()) == int(found.keep.sum()) - begun * len(found.ids)


def test_what_is_known_of_rows_beyond_their_name_is_told():
    others = Rows("others", lambda: iter([Document("others row 1", "a" * 20, many=True)]), {"revision": "0123"})
    assert windows(PLAIN, [others, words(20)], seq_len=8).provenance["datasets"] == [{"revision": "0123"}]
    assert windows(PLAIN, [words(20)], seq_len=8).provenance["datasets"] == []


def test_rows_are_read_until_there_are_enough(rows):
    found = windows(PLAIN, rows([3, 10, 30, 10, 10, 10, 10]), seq_len=10, count=3)
    assert [name.rpartition(" ")[2] for name in found.documents] == ["2", "3", "4"]
    assert found.provenance["documents_read"] == 4
    assert found.provenance["warnings"] == ["1 of 4 documents is shorter than one window of 10 tokens and was left out"]
    assert found.provenance["windows_available"] is None
    beside = windows(PLAIN, [*rows([10, 10]), Document("text", "z" * 10), *rows([10])], seq_len=10, count=1)
    assert beside.provenance["warnings"] == ["2 of 3 texts were not read: ask for more windows"]


def test_rows_that_are_all_too_short_are_refused_with_the_longest(rows):
    with pytest.raises(TextError, match=r"^the longest of 3 documents, .*line 2 has 5 tokens, .* --seq-len 5$"):
        windows(PLAIN, rows([3, 5, 4]))
    with pytest.raises(TextError, match=r"^the longest of 1 document, .*line 1 has 1 token, and at least 2"):
        windows(PLAIN, rows([1]))


def test_the_hash_says_what_was_hashed(tmp_path):
    path = tmp_path / "crlf.txt"
    path.write_bytes(b"a \r\n" * 20)
    (told,) = windows(PLAIN, read_documents([path]), seq_len=8).provenance["documents"]
    assert told["sha256"] == hashlib.sha256(b"a \r\n" * 20).hexdigest()
    assert (told["sha256_of"], told["encoding"]) == ("all 80 bytes", "utf-8")
