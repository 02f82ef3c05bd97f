"""The verdict says what the numbers say, whatever they are."""

import dataclasses
import math

import pandas as pd
import pytest
import torch
from builders import tiny
from fixtures_cli import report_of, tokens_of
from tiny_models import tiny_model

import sinkscope
from sinkscope.report.verdict import percent, verdict

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
    assert "Mean share of the first token: 40.8% ± 1.0% (4.1 × an even spread)." in said


def test_without_sinks_there_is_no_talk_of_where_they_are():
    said = _said(report_of([[0.05, 0.3], [0.1, 0.2]]))
    assert "No sinks among the 4 heads: none puts more than 0.3 on the first token" in said
    assert "the strongest, 0.1 (layer.head), 30.0%" in said
    assert "sink head:" not in said


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        (
            [[0.1], [0.9], [0.1]],
            "All sink heads are in layer 1 (of layers 0 to 2). Layer with the largest mean share: 1 (90.0%)",
        ),
        ([[0.9]], "All sink heads are in layer 0 (the only one)"),
        (SOME, "First sink head: layer 1; 100% are in layers 1 to 2 (of layers 0 to 2)"),
        ([[0.9]] + [[0.1]] * 5 + [[0.9] * 20], "First sink head: layer 0; 95% are in layer 6"),
        ([[0.9], [0.9], [0.9]], "First sink head: layer 0; 100% are in layers 0 to 2"),
    ],
)
def test_the_layers_of_the_sinks_are_the_shortest_run_with_most_of_them(shares, sentence):
    assert sentence in _said(report_of(shares))


def test_a_head_without_a_share_is_neither_a_sink_nor_no_sink():
    said = verdict(report_of([[NAN, NAN], [0.9, 0.1]]))
    assert said[0].startswith("50.0% of the 2 heads (of 4) that have a share for it are sinks")
    assert "largest mean share: 1 (" in said[1]
    assert "nan" not in " ".join(said).lower()


def test_no_share_at_all_is_said_and_nothing_is_made_up():
    said = _said(report_of([[NAN], [NAN]]))
    assert said.startswith("No sink figures: no row of any of the 2 heads has a share")
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


@pytest.mark.parametrize(
    ("bos", "ids", "words"),
    [
        (None, [7, 8], "Token 0 had the id 7, 8: unknown whether it is BOS"),
        (False, [7, 8], "Token 0 had the id 7, 8: not the BOS token by the model's configuration (1)."),
        (True, [1, 1], "Token 0 had the id 1: the BOS token by the model's configuration."),
        (True, [1, 8], "Token 0 had the id 1, 8: the BOS token by the model's configuration (1) in some windows only."),
    ],
)
def test_without_a_tokenizer_token_0_is_an_id(bos, ids, words):
    tokens = tokens_of([None, None]).assign(token_id=ids)
    report = dataclasses.replace(_with(report_of(SOME), bos=pd.Series([bos], dtype=object)), tokens=tokens)
    text = {"seq_len": 40, "warnings": [], "bos_token_id": None if bos is None else 1}
    assert words in _said(dataclasses.replace(report, metadata=report.metadata | {"text": text}))


@pytest.mark.parametrize(("configured", "bos"), [(1, False), (None, None), (7, True)])
def test_bos_is_settled_by_the_configuration_or_unknown(ids, configured, bos, tmp_path):
    model = tiny("llama")
    model.config.bos_token_id = configured
    ids = torch.cat([torch.full((3, 1), 7), ids[:, 1:]], dim=1)
    report = sinkscope.measure(model, input_ids=ids, only=())
    for name in ("heads", "layers", "summary", "protocols"):
        assert report.tables()[name]["bos"].tolist() == [bos] * len(report.tables()[name]), name
    assert report.heads["bos_mass"].notna().all() == bool(bos)
    report.save(tmp_path / "run.json")
    loaded = sinkscope.Report.load(tmp_path / "run.json")
    assert all(loaded.tables()[name].equals(table) for name, table in report.tables().items())
    assert ("unknown whether it is BOS" in _said(loaded)) == (bos is None)


def test_ids_with_a_tokenizer_need_no_word_on_who_added_bos():
    report = report_of(SOME)
    report = dataclasses.replace(report, metadata=report.metadata | {"text": {"seq_len": 40, "warnings": []}})
    said = _said(report)
    assert "“␣cat”: no BOS." in said
    assert "ordinary text" not in said


def test_what_the_tokenizer_or_a_template_puts_in_front_is_not_called_text():
    said = _said(_text(report_of(SOME), bos_added_by="tokenizer"))
    assert "“The”, “␣cat”, put there by the tokenizer: not the BOS token." in said
    assert "the chat template's first token" in _said(_text(report_of(SOME), chat={}))


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
    assert "even spread): punctuation 10.0% (0.98 ×), other tokens 50.0% (0.57 ×)." in _said(report)
    assert "Other classes" not in _said(_with(report_of(SOME), other_share=0.5, other_lift=0.57))


def test_learned_sinks_are_told_apart_from_tokens():
    said = _said(_with(report_of(SOME), sink_logit_mass=0.25, sink_logit_mass_se=0.01))
    assert "Learned sinks, which are no tokens, take 25.0% ± 1.0%" in said
    assert "Learned" not in _said(report_of(SOME))


def test_a_hybrid_model_says_how_many_layers_have_attention():
    report = _with(report_of(SOME, attention={"decoder_layers": 8}), layers_without_attention=5)
    assert "Attention was seen in 3 of 8 decoder layers; figures are of these." in _said(report)
    assert "Attention was seen in" not in _said(report_of(SOME))


@pytest.mark.parametrize(
    ("kind", "without", "decoder"),
    [("hrm_text", [], 8), ("zamba2", [0, 2], 4), ("zamba", [0, 2], 4), ("jamba", [0, 2], 4), ("gpt_neo", [], 4)],
)
def test_layers_without_attention_are_counted_by_modules(kind, without, decoder):
    ids = torch.randint(3, 100, (2, 20), generator=torch.Generator().manual_seed(1))
    report = sinkscope.measure(tiny_model(kind), input_ids=ids, only=())
    found = report.metadata["attention"]
    assert (found["layers_without"], found["decoder_layers"]) == (without, decoder)
    row = report.summary.iloc[0]
    assert row["layers_without_attention"] == len(without)
    assert row["full_layers"] + row["limited_layers"] == row["layers"] == len(report.layers)
    assert ("Attention was seen in" in _said(report)) == bool(without)


@pytest.mark.parametrize(("length", "limited"), [(4, 0), (24, 2)])
def test_sliding_layers_are_those_that_hide_something_of_this_text(ids, length, limited):
    report = sinkscope.measure(tiny("gemma3_text"), input_ids=ids[:, :length], only=())
    row = report.summary.iloc[0]
    assert (row["full_layers"], row["limited_layers"]) == (4 - limited, limited)
    said = _said(report)
    assert ("Of 4 attention calls 2 see all tokens before them and 2 at most 5" in said) == bool(limited)
    assert ("at most" in said) == bool(limited)


def test_sliding_layers_say_over_which_queries_their_figures_are():
    report = _with(report_of(SOME), full_layers=1, limited_layers=2)
    report.layers["window_length"], report.layers["sees_all"] = [16.0, NAN, 8.0], [False, True, False]
    assert "Of 3 attention calls 1 see all tokens before them and 2 at most 8 or 16; figures" in _said(report)


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
    assert (
        "Massive activations in the output of layer 3: the largest is -2,346 in layer 3, dimension 11, at position 7"
        in said
    )
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
