"""Every null of every table has a reason, and a reason is given only where something is null."""

import math

import pytest
import torch
from builders import tiny
from tiny_models import tiny_model

import sinkscope
from sinkscope.normalizers import Modifier
from sinkscope.report import reporting
from sinkscope.report.undefined import base, stands_for
from sinkscope.report.why_null import known

pytestmark = pytest.mark.slow

TEXT = "She said, “wait”; he did.\nThen — nothing: no word, no sound at all. " * 12
WINDOW = Modifier(window=8)


def _ids(rows=3, length=24, high=300):
    return torch.randint(3, high, (rows, length), generator=torch.Generator().manual_seed(1))


def _nothing(scores):
    return torch.zeros_like(scores)


def _nowhere(scores):
    return scores * torch.nan


def _overflowing(name="llama"):
    model = tiny(name, tie_word_embeddings=False)
    model.lm_head.weight.data.mul_(1e6)
    return model


def _without_bos():
    model = tiny("llama")
    model.config.bos_token_id = None
    return model


def _measured(model, **options):
    return sinkscope.measure(model, **({"input_ids": _ids()} | options))


def _compared(model, *names, **options):
    return sinkscope.compare(model, **({"input_ids": _ids(), "normalizers": list(names)} | options))


REPORTS = {
    "ids": lambda _: _measured(tiny("llama")),
    "one window": lambda _: _measured(tiny("llama"), input_ids=_ids(1)),
    "two tokens": lambda _: _measured(tiny("llama"), input_ids=_ids(2, 2), gradients=True),
    "no BOS known": lambda _: _measured(_without_bos(), only=()),
    "padding": lambda _: _measured(tiny("llama"), attention_mask=torch.arange(24) >= torch.tensor([[9], [0], [22]])),
    "text": lambda tokenizer: sinkscope.measure(tiny("llama"), tokenizer, [TEXT, "ab cd ef\n"], seq_len=16, windows=5),
    "long text": lambda tokenizer: sinkscope.measure(tiny("llama"), tokenizer, TEXT, seq_len=60, windows=2),
    "BOS": lambda tokenizer: sinkscope.measure(tiny("llama"), tokenizer, TEXT, seq_len=16, bos="always", bootstrap=100),
    "masses": lambda _: _measured(tiny("llama"), only=()),
    "some classes": lambda _: _measured(tiny("llama"), classes=["bos"]),
    "sample": lambda _: _measured(tiny("llama"), queries=7, also=["dormancy"], seed=4),
    "sample of one": lambda _: _measured(tiny("llama"), queries=1, only=()),
    "gradients": lambda _: _measured(tiny("llama"), gradients=True, also=["dormancy", "lse"]),
    "learned sinks": lambda _: _measured(tiny("gpt_oss")),
    "sliding": lambda _: _measured(tiny("gemma3_text")),
    "scores only": lambda _: _measured(tiny_model("bloom"), input_ids=_ids(high=100), also=["dormancy"]),
    "gated": lambda _: _measured(tiny_model("qwen3_next"), input_ids=_ids(high=100), also=["dormancy"]),
    "looped": lambda _: _measured(tiny_model("hrm_text"), input_ids=_ids(high=100)),
    "shared": lambda _: _measured(tiny_model("zamba2"), input_ids=_ids(high=100)),
    "overflow": lambda _: _compared(_overflowing(), "softpick", bootstrap=100),
    "protocols": lambda tokenizer: sinkscope.measure(
        tiny("llama", max_position_embeddings=512), tokenizer, protocol=["sinkscope", "gu2025"], windows=2
    ),
    "comparison": lambda _: _compared(tiny("llama"), "softmax1", "poly2", sweep=True),
    "comparison of one window": lambda _: _compared(tiny("llama"), "relu", input_ids=_ids(1), bootstrap=100),
    "comparison of classes": lambda tokenizer: sinkscope.compare(
        tiny("llama"), tokenizer, TEXT, seq_len=16, windows=4, normalizers=["softpick"]
    ),
    "window": lambda _: _compared(tiny("llama"), "softmax", "relu2", modifier=WINDOW, also=["dormancy"]),
    "window of one": lambda _: _compared(tiny("llama"), "softmax", modifier=Modifier(window=1)),
    "hidden sinks": lambda _: _compared(tiny("llama"), "softmax", modifier=Modifier(sink_bias=-math.inf)),
    "nothing": lambda _: _compared(tiny("llama"), _nothing, "softmax1", also=["dormancy"]),
    "no numbers": lambda _: _compared(tiny("llama"), _nowhere, sweep=True, gradients=True),
}


def _nulls(report):
    return [
        (name, str(column)) for name, table in report.tables().items() for column in table.columns[table.isna().any()]
    ]


@pytest.fixture(scope="module")
def built(tokenizer):
    """The reports by name, each made once."""
    made = {}
    return lambda name: made[name] if name in made else made.setdefault(name, REPORTS[name](tokenizer))


@pytest.mark.parametrize("name", REPORTS)
def test_every_null_has_a_reason_and_every_reason_a_null(name, built):
    report = built(name)
    keys, nulls = report.metadata["undefined"], _nulls(report)
    assert not [null for null in nulls if not any(stands_for(key, *null) for key in keys)]
    assert not [key for key in keys if not any(stands_for(key, *null) for null in nulls)]
    for run in report.metadata.get("runs", {}).values():
        assert run["undefined"].keys() <= keys.keys()


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        ("nothing", "tokens.received", "no later query sees the token"),
        ("comparison", "*_delta, *_delta_*, *_before, kl_to_baseline, top1_agreement", "not compared with itself"),
        ("comparison", "degenerate_rows", "only some normalizers"),
        ("one window", "*_se, *_low, *_high", "at least two windows"),
        ("no numbers", "* under _nowhere", "no longer a number"),
        ("no BOS known", "bos, bos_*", "names no BOS token"),
        ("sliding", "window_length", "see all tokens before them"),
        ("scores only", "value_norm_ratio, output_norm", "not their values"),
    ],
)
def test_reasons_are_those_of_the_run(name, key, words, built):
    told = built(name).metadata["undefined"]
    match = [why for known, why in told.items() if known.startswith(key)]
    assert any(words in why for why in match), told


@pytest.mark.parametrize("name", ["sample", "gated", "window", "nothing", "no numbers", "hidden sinks", "text"])
def test_every_single_null_is_one_that_a_reason_speaks_of(name, tokenizer, monkeypatch):
    asked = []
    look_up = reporting.reasons
    monkeypatch.setattr(reporting, "reasons", lambda *rest: asked.append(rest) or look_up(*rest))
    monkeypatch.setattr(reporting, "known", lambda *rest: tuple(known(*rest)))
    REPORTS[name](tokenizer)
    tables, there = asked[0]
    for place, table in tables.items():
        for column in table.columns[table.isna().any()]:
            left = table[column].isna()
            for reason in there:
                if stands_for(reason.key, place, column):
                    left &= False if reason.where is None else ~reason.where(table, column)
            assert not left.any(), (place, column)


def test_rows_without_any_weight_are_why_there_is_no_share(built):
    report = built("nothing")
    key = next(key for key, why in report.metadata["undefined"].items() if why.startswith("every weight of the rows"))
    assert stands_for(key, "heads", "first_share")
    assert stands_for(key, "summary", "sink_rate_se")
    assert not stands_for(key, "heads", "first_mass")
    assert report.summary["first_mass"].tolist()[1] == 0


def test_a_class_that_one_window_has_is_why_it_has_no_error(tokenizer):
    text = "abcdefghijklmno,qrs" + "x" * 60
    report = sinkscope.measure(tiny("llama"), tokenizer, text, seq_len=32, windows=2)
    assert report.summary["punctuation_share"].notna().all()
    assert report.summary["punctuation_share_se"].isna().all()
    assert report.summary["first_share_se"].notna().all()
    assert "*_se, *_low, *_high" in report.metadata["undefined"]


def test_what_was_not_asked_for_is_not_called_undefined():
    report = _measured(tiny("llama"), only=(), classes=["first"])
    told = report.metadata["not_measured"]
    assert {"entropy", "received", "activations, massive", "other_*", "punctuation_*"} <= told.keys()
    assert not set(told) & (set(report.heads) | set(report.summary))


def test_a_figures_name_stands_for_its_errors_and_changes():
    assert (
        base("first_share_delta_se") == base("first_share_before") == base("first_share_sampling_se") == "first_share"
    )
    assert stands_for("first_share, entropy under softpick", "heads", "entropy_delta_low")
    assert stands_for("tokens.received", "tokens", "received")
    assert not stands_for("tokens.received", "heads", "received")
    assert not stands_for("entropy", "heads", "entropy_normalised")
