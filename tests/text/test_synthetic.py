"""Synthetic windows are ordinary tokens, the same for the same seed, and begin as any other window does."""

import json
from collections import Counter

import pytest
import torch
from builders import tiny
from tokenizers import AddedToken

import sinkscope
from sinkscope.errors import TextError
from sinkscope.text.bos import opening
from sinkscope.text.synthetic import KINDS, synthetic
from sinkscope.tokens import classify, read

LENGTHS = {"seq_len": 16, "count": 5}
ORDINARY = range(3, 259)
"""The tokenizer of the tests has three special tokens, and then one for each byte."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bos", ["auto", "always", "never"])
def test_windows_have_their_length_with_bos_and_hold_ordinary_tokens_otherwise(tokenizer, kind, bos):
    found = synthetic(tokenizer, kind, bos=bos, **LENGTHS)
    begun = list(opening(tokenizer, bos).ids)
    assert found.ids.shape == (5, 16)
    assert found.keep.all()
    assert found.ids[:, : len(begun)].tolist() == [begun] * 5
    assert set(found.ids[:, len(begun) :].flatten().tolist()) <= set(ORDINARY)
    assert found.documents == tuple(f"{kind} {place}" for place in range(1, 6))
    assert found.provenance["bos_added_by"] == ("sinkscope" if bos == "always" else None)


def test_random_tokens_are_drawn_anew_and_a_repeated_one_for_each_window(tokenizer):
    rows = synthetic(tokenizer, "random", seq_len=64, count=3).ids.tolist()
    assert [len(set(row)) > 32 for row in rows] == [True] * 3
    assert len({tuple(row) for row in rows}) == 3
    repeated = synthetic(tokenizer, "repeat", bos="always", seq_len=64, count=8)
    assert [len(set(row)) for row in repeated.ids[:, 1:].tolist()] == [1] * 8
    assert repeated.provenance["synthetic"]["repeated_ids"] == repeated.ids[:, 1].tolist()
    assert len(set(repeated.ids[:, 1].tolist())) > 4


def test_every_ordinary_token_has_equal_odds(tokenizer):
    counts = Counter(synthetic(tokenizer, "random", seq_len=2560, count=10).ids.flatten().tolist())
    assert set(counts) == set(ORDINARY)
    # A hundred expected of each: the statistic is that of chi-square with 255 degrees of freedom.
    assert 160 < sum((number - 100) ** 2 / 100 for number in counts.values()) < 370


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_depends_on_the_seed_and_its_place_alone(tokenizer, kind):
    many = synthetic(tokenizer, kind, seq_len=32, count=7, seed=3)
    few = synthetic(tokenizer, kind, seq_len=32, count=2, seed=3)
    assert few.ids.equal(many.ids[:2])
    assert synthetic(tokenizer, kind, seq_len=9, count=7, seed=3).ids.equal(many.ids[:, :9])
    assert not synthetic(tokenizer, kind, seq_len=32, count=7, seed=4).ids.equal(many.ids)


def test_the_numbers_are_the_same_on_every_machine(tokenizer):
    drawn = synthetic(tokenizer, "random", seq_len=6, count=2, seed=0).ids
    assert drawn.tolist() == [[92, 211, 234, 46, 114, 84], [38, 52, 225, 220, 225, 114]]


def test_added_tokens_are_left_out_and_so_are_those_without_an_embedding(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    more = type(tokenizer).from_pretrained(tmp_path)
    more.add_tokens([AddedToken("plain", special=False), AddedToken("<more>", special=True)])
    assert len(more) == 261
    assert synthetic(more, "random").provenance["synthetic"]["vocabulary"] == len(ORDINARY)
    fewer = synthetic(more, "random", embedded=10)
    assert set(fewer.ids.flatten().tolist()) == set(range(3, 10))
    with pytest.raises(TextError, match="has no ordinary tokens to draw from: give a text"):
        synthetic(more, "random", embedded=3)


def test_the_provenance_repeats_the_run_and_is_plain_data(tokenizer):
    told = synthetic(tokenizer, "repeat", seq_len=16, count=2, seed=7, bos="always").provenance
    assert json.loads(json.dumps(told)) == told
    assert (told["seq_len"], told["windows"], told["warnings"]) == (16, 2, [])
    assert told["synthetic"] | {"repeated_ids": None} == {
        "kind": "repeat",
        "seed": 7,
        "vocabulary": len(ORDINARY),
        "repeated_ids": None,
    }
    assert told["documents"][1] == {"name": "repeat 2", "windows": 1, "tokens_measured": 15}


def test_classes_are_decided_on_what_the_ids_are_spelled_as(tokenizer):
    found = synthetic(tokenizer, "random", seq_len=512, count=2, bos="always")
    marked = classify(read(tokenizer, found.ids, found.keep, initial=4))
    comma = tokenizer.convert_tokens_to_ids(",")
    at = found.ids == comma
    assert at.any()
    assert marked["punctuation"][at].all()
    assert marked["bos"].sum() == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"count": None}, "there is no end of synthetic windows: give a number of them in place of all"),
        ({"count": 0}, "0 windows are nothing to measure"),
        ({"seq_len": 1}, "window of 1 tokens is too short: give --seq-len 2"),
    ],
)
def test_what_has_no_end_or_no_room_is_refused(tokenizer, options, reason):
    with pytest.raises(TextError, match=reason):
        synthetic(tokenizer, "random", **options)


def test_a_kind_that_there_is_not_is_a_mistake_of_the_caller(tokenizer):
    with pytest.raises(ValueError, match="expected random or repeat, got 'natural'"):
        synthetic(tokenizer, "natural")


def test_where_all_tokens_are_alike_a_model_with_rotary_positions_is_alike_everywhere_and_has_no_sink(tokenizer):
    model = tiny("llama")
    repeated, random = (synthetic(tokenizer, kind, seq_len=32).ids for kind in ("repeat", "random"))
    with torch.no_grad():
        spread = [float(model(ids).logits.std(dim=1).max()) for ids in (repeated, random)]
    assert spread[0] < 1e-4
    assert spread[1] > 1e-2
    assert float(sinkscope.measure(model, input_ids=repeated).summary["sink_rate"].iloc[0]) == 0
