"""Protocols, synthetic tokens and intervals as a user of the command line meets them."""

import pandas as pd
import pytest

from sinkscope.protocols import PROTOCOLS
from sinkscope.report import Report


def test_a_protocol_is_followed_and_told_first(run, tiny_llama, tmp_path):
    ended = run("measure", tiny_llama, "--protocol", "gu2025", "--windows", "2", "-o", tmp_path / "run.json")
    assert ended.status == 0
    said = " ".join(ended.out.split())
    assert "By gu2025: gu2025_sink_rate 0." in said
    assert "2 of the paper's 100 samples of 64 tokens" in said
    report = Report.load(tmp_path / "run.json")
    assert set(report.heads["protocol"]) == {"gu2025"}
    assert report.metadata["text"]["seq_len"] == 64


def test_all_protocols_stand_in_one_table(run, tiny_llama, tmp_path):
    ended = run("measure", tiny_llama, "--protocol", "all", "--windows", "2", "-o", tmp_path / "protocols.csv")
    assert ended.status == 0
    figures = [figure for card in PROTOCOLS.values() for figure in card.figures]
    places = [ended.out.index(figure) for figure in figures]
    assert places == sorted(places)
    assert "2 of 1,000" in ended.out
    assert "windows of 4096 tokens are longer than the 512 positions" in " ".join(ended.out.split())
    assert pd.read_csv(tmp_path / "protocols.csv")["figure"].tolist() == figures


def test_before_and_after_stand_under_a_protocol_of_choice(run, tiny_llama):
    words = ("patch", tiny_llama, "-n", "softmax1", "--windows", "2")
    one = run(*words, "--protocol", "barbero2025")
    assert "By barbero2025" in one.out
    assert "barbero2025_sink_rate" in one.out
    both = run(*words, "--protocol", "gu2025", "--protocol", "barbero2025")
    assert both.status == 0
    rows = [line.split()[:2] for line in both.out.splitlines() if "_sink_rate" in line]
    assert rows == [[name, f"{of}_sink_rate"] for of in ("gu2025", "barbero2025") for name in ("softmax", "softmax1")]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--seq-len", "32"), "--seq-len 32 contradicts gu2025, which takes 64"),
        (("--epsilon", "0.5"), "--epsilon 0.5 contradicts gu2025, which takes 0.3"),
        (("--bos", "never"), "--bos never contradicts gu2025, which takes auto"),
        (("--chat",), "--chat contradicts gu2025, which takes plain text"),
        (("--queries", "9"), "--queries 9 contradicts gu2025, which takes every query"),
        (("--protocol", "gu2024"), "did you mean 'gu2025'?"),
    ],
)
def test_what_contradicts_a_protocol_is_refused_before_a_model_is_looked_for(words, reason, run):
    ended = run("measure", "nowhere/nothing", "--protocol", "gu2025", *words)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert reason in ended.err


def test_what_a_protocol_takes_may_be_said(run, tiny_llama):
    words = ("--seq-len", "64", "--epsilon", "0.3", "--bos", "auto", "--windows", "1")
    assert run("measure", tiny_llama, "--protocol", "gu2025", *words).status == 0


def test_a_short_text_is_refused_for_a_protocol_unless_windows_are_named(run, tiny_llama, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("A short text, and no more than that. " * 9)
    refused = run("measure", tiny_llama, "--text", text, "--protocol", "gu2025")
    assert refused.status == 1
    assert "100" in refused.err
    assert run("measure", tiny_llama, "--text", text, "--protocol", "gu2025", "--windows", "all").status == 0


def test_synthetic_tokens_take_the_place_of_a_text(run, tiny_llama, tmp_path):
    words = ("measure", tiny_llama, "--synthetic", "random", "--seq-len", "32", "--windows", "2")
    reports = []
    for number, seed in enumerate(("5", "5", "6")):
        path = tmp_path / f"{number}.json"
        assert run(*words, "--seed", seed, "-o", path).status == 0
        reports.append(Report.load(path))
    ids = [report.tokens["token_id"].tolist() for report in reports]
    assert ids[0] == ids[1] != ids[2]
    ended = run("measure", tiny_llama, "--synthetic", "repeat", "--text", "x.txt")
    assert (ended.status, "--synthetic takes the place of a text" in ended.err) == (2, True)
    assert run("measure", tiny_llama, "--synthetic", "repeat", "--windows", "all").status == 2


def test_intervals_are_in_every_table_and_need_enough_samples(run, tiny_llama, tmp_path):
    words = ("patch", tiny_llama, "-n", "softmax1", "--seq-len", "32", "--windows", "3", "--bootstrap")
    assert run(*words, "200", "-o", tmp_path / "run.json").status == 0
    report = Report.load(tmp_path / "run.json")
    for table in (report.heads, report.layers, report.summary):
        assert (table["first_share_low"] <= table["first_share"]).all()
        assert (table["first_share"] <= table["first_share_high"]).all()
    change = report.summary.iloc[1]
    assert change["first_share_delta_low"] <= change["first_share_delta"] <= change["first_share_delta_high"]
    assert change["perplexity_delta_low"] <= change["perplexity_delta"] <= change["perplexity_delta_high"]
    assert report.metadata["bootstrap"]["samples"] == 200
    assert run(*words, "50").status == 2


def test_too_few_windows_for_the_digits_shown_are_told_with_what_helps(run, tiny_llama):
    ended = run("measure", tiny_llama, "--seq-len", "16", "--windows", "2")
    told = " ".join(ended.out.split())
    assert "Uncertainty ± " in told
    assert "(2 windows); more windows reduce it; windows of one text are alike, so it may be larger." in told


def test_several_texts_have_figures_of_their_own(run, tiny_llama, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(f"The text in the folder {name}. " * 20)
    texts = [word for name in ("one", "two") for word in ("--text", tmp_path / name / "text.txt")]
    path = tmp_path / "documents.csv"
    assert run("measure", tiny_llama, *texts, "--seq-len", "32", "-o", path).status == 0
    found = pd.read_csv(path)
    assert found["windows"].tolist() == [2, 2]
    assert found["document"].nunique() == 2
    assert (found["first_share"] > 0).all()
