"""The verdict says what the numbers say, whatever they are."""

import dataclasses
import math

import pandas as pd
import pytest
from fixtures_cli import report_of, tokens_of

from sinkscope.verdict import percent, verdict

NAN = math.nan
SOME = [[0.05, 0.1], [0.4, 0.9], [0.2, 0.8]]


def _said(report):
    return " ".join(verdict(report))


def _with(report, **cells):
    return dataclasses.replace(report, summary=report.summary.assign(**cells))


def _text(report, **facts):
    text = report.metadata["text"] | facts
    return dataclasses.replace(report, metadata=report.metadata | {"text": text})


def test_the_share_of_sinks_comes_first():
    said = verdict(report_of(SOME))[0]
    assert said.startswith("50.0% of the 6 heads are sinks: more than 0.3 of their attention is on the first token.")
    assert "40.8% ± 1.0% of a head's attention, 4.1 times what an even spread would give" in said


def test_without_sinks_there_is_no_talk_of_where_they_are():
    said = _said(report_of([[0.05, 0.3], [0.1, 0.2]]))
    assert "No sinks among the 4 heads: none puts more than 0.3 on the first token" in said
    assert "the strongest, 0.1 (layer.head), 30.0%" in said
    assert "first is in layer" not in said


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([[0.1], [0.9], [0.1]], "All of them are in layer 1 (of layers 0 to 2); the strongest layer is 1, with 90.0%"),
        ([[0.9]], "All of them are in layer 0 (there is no other)"),
        (SOME, "The first is in layer 1, and 100% of them are in layers 1 to 2 (of layers 0 to 2)"),
        ([[0.9]] + [[0.1]] * 5 + [[0.9] * 20], "The first is in layer 0, and 95% of them are in layer 6"),
        ([[0.9], [0.9], [0.9]], "The first is in layer 0, and 100% of them are in layers 0 to 2"),
    ],
)
def test_the_layers_of_the_sinks_are_the_shortest_run_with_most_of_them(shares, sentence):
    assert sentence in _said(report_of(shares))


def test_a_head_without_a_share_is_neither_a_sink_nor_no_sink():
    said = verdict(report_of([[NAN, NAN], [0.9, 0.1]]))
    assert said[0].startswith("50.0% of the 2 heads (of 4) that see the first token are sinks")
    assert "the strongest layer is 1" in said[1]
    assert "nan" not in " ".join(said).lower()


def test_no_share_at_all_is_said_and_nothing_is_made_up():
    said = _said(report_of([[NAN], [NAN]]))
    assert said.startswith("Nothing can be said of sinks: no row of any of the 2 heads has a share")
    assert "nan" not in said.lower()


@pytest.mark.parametrize(
    ("facts", "bos", "sentence"),
    [
        ({}, False, "Token 0 was ordinary text, “The”, “␣cat”: no BOS (the tokenizer adds none)."),
        ({"bos": "never"}, False, "Token 0 was ordinary text, “The”, “␣cat”: no BOS (--bos never)."),
        ({"bos_added_by": "tokenizer"}, True, "the BOS token in some windows only, put there by the tokenizer"),
    ],
)
def test_what_token_0_was_is_said(facts, bos, sentence):
    assert sentence in _said(_text(_with(report_of(SOME), bos=bos), **facts))


@pytest.mark.parametrize(
    ("giver", "words"),
    [
        ("tokenizer", "put there by the tokenizer"),
        ("sinkscope", "put there by sinkscope"),
        ("text", "part of the text"),
        (None, "part of the token ids that were given"),
    ],
)
def test_a_bos_token_is_named_with_its_giver(giver, words):
    report = _text(_with(report_of(SOME), bos=True), bos_added_by=giver)
    said = _said(dataclasses.replace(report, tokens=tokens_of(["<s>", "<s>"])))
    assert f"Token 0 was the BOS token “<s>”, {words}." in said


def test_a_missing_bos_is_warned_of():
    warning = "the tokenizer would put BOS in front, but windows of this run begin without it"
    assert verdict(_text(report_of(SOME), bos="never", warnings=[warning]))[-1] == f"Warning: {warning}."


def test_without_a_tokenizer_token_0_is_an_id():
    report = dataclasses.replace(report_of(SOME), tokens=tokens_of([None, None]))
    said = _said(dataclasses.replace(report, metadata=report.metadata | {"text": {"seq_len": 40, "warnings": []}}))
    assert "Token 0 had the id 7, 8: without a tokenizer nobody can say" in said


def test_ids_with_a_tokenizer_need_no_word_on_who_added_bos():
    report = report_of(SOME)
    report = dataclasses.replace(report, metadata=report.metadata | {"text": {"seq_len": 40, "warnings": []}})
    assert "“␣cat”: no BOS." in _said(report)


def test_a_token_cannot_disturb_a_terminal():
    report = dataclasses.replace(report_of(SOME), tokens=tokens_of(["\x1b[31m", "\u202e"]))
    assert "“\\x1b[31m”, “\\u202e”" in _said(report)
    assert all(each.isprintable() for each in _said(report))


def test_one_window_has_no_errors_and_says_so():
    said = _said(report_of(SOME, windows=1))
    assert "±" not in said
    assert "one window gives no standard errors" in said


def test_where_the_rest_goes_is_said_for_the_classes_there_are():
    report = _with(report_of(SOME), punctuation_share=0.1, punctuation_lift=0.98, newline_share=NAN, newline_lift=NAN)
    report = _with(report, other_share=0.5, other_lift=0.57)
    assert "they take: punctuation 10.0% (×0.98), other tokens 50.0% (×0.57); ×1" in _said(report)
    assert "they take" not in _said(_with(report_of(SOME), other_share=0.5, other_lift=0.57))


def test_learned_sinks_are_told_apart_from_tokens():
    said = _said(_with(report_of(SOME), sink_logit_mass=0.25, sink_logit_mass_se=0.01))
    assert "Learned sinks, which are no tokens, take 25.0% ± 1.0%" in said
    assert "Learned" not in _said(report_of(SOME))


def test_a_hybrid_model_says_how_many_layers_have_attention():
    report = report_of(SOME, attention={"layers_without": [3, 4, 5, 6, 7]})
    assert "Only 3 of the 8 layers have attention" in _said(report)


def test_sliding_layers_say_over_which_queries_their_figures_are():
    report = report_of(SOME)
    report.layers["window_length"] = [16.0, NAN, 8.0]
    assert "2 of 3 attention layers see the last 8 or 16 tokens only" in _said(report)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({}, "Perplexity 12.50 ± 0.50 over 78 tokens."),
        (
            {"perplexity": math.inf, "nll": 1234.5},
            "Perplexity overflows: the loss is 1234.5 nats a token over 78 tokens.",
        ),
        ({"perplexity": NAN, "tokens_scored": 0}, "Perplexity is not defined: no token is scored."),
        ({"perplexity": 1.0, "perplexity_se": 0.0, "tokens_scored": 1}, "Perplexity 1.00 ± 0.00 over 1 token."),
    ],
)
def test_perplexity_is_a_number_or_the_reason_why_not(cells, sentence):
    report = report_of(SOME, undefined={"perplexity": "no token is scored"})
    assert sentence in _said(_with(report, **cells))


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0.0%"), (1e-9, "less than 0.1%"), (0.5, "50.0%"), (0.9999, "more than 99.9%"), (1.0, "100.0%")],
)
def test_a_percentage_never_rounds_something_to_nothing(share, shown):
    assert percent(share) == shown


def _massive(report, **cells):
    """The report with one largest entry of a layer."""
    row = {"layer": 3, "rank": 1, "value": -2345.6, "ratio": 1234.5, "window": 0, "position": 7, "token": " a\x1b"}
    row |= {"token_id": 9, "dimension": 11, "massive": True} | cells
    return dataclasses.replace(report, massive=pd.DataFrame([row]))


def test_massive_activations_are_told_with_their_place():
    said = _said(_massive(report_of(SOME)))
    assert "Massive activations after layer 3: the largest is -2,346 in layer 3, dimension 11, at position 7" in said
    assert r"(“␣a\x1b”), 1,234 times the window's median." in said
    none = _said(_massive(report_of(SOME), massive=False, value=9.87654, token=None))
    assert "No massive activations (above 100 and 1,000 times the window's median): the largest is 9.877" in none
    assert "(id 9)" in none
    assert "assive activations" not in _said(report_of(SOME))


def test_synthetic_tokens_are_not_called_text():
    assert "Token 0 was ordinary text" in _said(report_of(SOME))
    said = _said(_text(report_of(SOME), synthetic={"kind": "random"}))
    assert "Token 0 was a token drawn at random, “" in said
    assert "ordinary text" not in said


def test_windows_that_do_not_settle_the_last_digit_are_told():
    wide = _said(_with(report_of(SOME), first_share_se=0.003, windows=4))
    assert "Uncertainty ± 0.3% (4 windows); more windows reduce it" in wide
    assert "Uncertainty" not in _said(_with(report_of(SOME), first_share_se=0.0009))
    assert "Uncertainty" not in _said(_with(report_of(SOME), first_share_se=NAN))
