"""Lengths of windows are those of the text, without padding, wherever they are said."""

import pytest
import torch
from builders import tiny
from fixtures_cli import report_of

import sinkscope
from sinkscope.exporters import figure
from sinkscope.text.corpus import Document, Rows, from_ids, windows
from sinkscope.text.lengths import length_facts, longest, windows_in_words
from sinkscope.text.synthetic import synthetic


def keep_of(*lengths, padded=0):
    return torch.arange(max(lengths) + padded) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("padded", [0, 5])
def test_padding_makes_no_window_longer(padded):
    keep = keep_of(19, 3, padded=padded)
    assert longest(keep) == longest(keep.flip(1)) == 19
    assert length_facts(keep, 512) == {"seq_len": 19, "seq_len_asked": 512, "lengths": [19, 3]}
    assert length_facts(keep_of(7, 7, padded=padded)) == {"seq_len": 7, "seq_len_asked": None, "lengths": None}


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ((19,), "1 window of 19 tokens"),
        ((512,) * 4, "4 windows of 512 tokens"),
        ((19, 3), "2 windows of 19 and 3 tokens"),
        ((2000, 3, 1500), "3 windows of 2,000, 3 and 1,500 tokens"),
        ((7, 3, 9, 4, 5), "5 windows of 3 to 9 tokens"),
    ],
)
def test_windows_are_told_with_the_lengths_that_they_have(lengths, words):
    assert windows_in_words(length_facts(keep_of(*lengths), 512), len(lengths)) == words


def test_a_report_of_an_earlier_version_is_told_by_its_longest_window():
    assert windows_in_words({"seq_len": 40}, 2) == "2 windows of 40 tokens"


def test_prompts_are_as_long_as_they_are_on_the_screen_and_in_the_tables(run, tiny_llama, tmp_path):
    words = ["--prompt", "a prompt of 19 byte", "--prompt", "and", "-o", tmp_path / "run.json"]
    ended = run("measure", tiny_llama, *words)
    assert "; 2 windows of 19 and 3 tokens" in ended.out
    report = sinkscope.Report.load(tmp_path / "run.json")
    text = report.metadata["text"]
    assert (text["seq_len"], text["seq_len_asked"], text["lengths"]) == (19, 512, [19, 3])
    for name in ("heads", "layers", "summary", "protocols"):
        assert set(report.tables()[name]["seq_len"]) == {19}
    assert report.tokens.groupby("window").size().tolist() == text["lengths"]


def test_one_prompt_before_and_after_a_swap_is_as_long_as_it_is(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "softmax1", "--prompt", "a prompt of 19 byte")
    assert "; 1 window of 19 tokens" in ended.out


def test_padding_of_ones_own_ids_is_no_length():
    ids = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(1))
    keep = keep_of(11, 9, padded=13)
    report = sinkscope.measure(tiny("llama"), input_ids=ids, attention_mask=keep)
    assert set(report.heads["seq_len"]) == {11}
    assert report.metadata["text"]["lengths"] == [11, 9]
    assert from_ids(ids).provenance["lengths"] is None


def test_as_many_initial_keys_as_the_text_suggests_and_not_its_padding():
    ids = torch.randint(3, 300, (1, 1100), generator=torch.Generator().manual_seed(1))
    model = tiny("llama", max_position_embeddings=2048)
    report = sinkscope.measure(
        model, input_ids=ids, attention_mask=keep_of(40, padded=1060), initial=None, only="masses"
    )
    assert report.metadata["initial"] == 4


def test_synthetic_windows_say_what_was_asked_for(tokenizer):
    facts = synthetic(tokenizer, "random", seq_len=9, count=2).provenance
    assert (facts["seq_len"], facts["seq_len_asked"], facts["lengths"]) == (9, 9, None)


def test_a_caption_says_how_long_windows_are():
    report = report_of([[0.9, 0.1]], windows=2)
    report.metadata["text"] |= {"seq_len": 19, "lengths": [19, 3]}
    assert figure._drawn(report)._suptitle.get_text().endswith("2 windows of 19 and 3 tokens")
    assert figure._compared(report)._suptitle.get_text().endswith("2 windows of 19 and 3 tokens")


@pytest.mark.parametrize("short", [1, 99])
def test_documents_that_are_too_short_are_warned_of(short, tokenizer):
    rows = [Document(f"row {index}", "too short", many=True) for index in range(short)]
    rows.append(Document("long", "long enough " * 9, many=True))
    (warning,) = windows(tokenizer, [Rows("rows", lambda: iter(rows))], seq_len=32, count=None).provenance["warnings"]
    verbs = ("is", "was") if short == 1 else ("are", "were")
    expected = (
        f"{short} of {short + 1} documents {verbs[0]} shorter than one window of 32 tokens and {verbs[1]} left out"
    )
    assert warning == expected


def test_what_was_too_short_is_said_on_the_screen(run, tiny_llama, tmp_path):
    lines = ['{"text": "short"}'] * 99 + ['{"text": "' + "long enough " * 40 + '"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    for words in (["measure", tiny_llama], ["patch", tiny_llama, "-n", "softmax1"]):
        ended = run(*words, "--text", tmp_path / "rows.jsonl", "--seq-len", "40")
        said = " ".join(ended.out.split())
        assert "Warning: 99 of 100 documents are shorter than one window of 40 tokens and were left out." in said
