"""The tables of hidden states say what the states are, on numbers from whole states that are kept for once."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from builders import tiny
from soundness import IDS
from tiny_models import tiny_model

import sinkscope
from sinkscope.activations import ACTIVATIONS
from sinkscope.activations.layers import Layer, Layers, decoder_layers
from sinkscope.activations.record import HiddenRecord
from sinkscope.activations.watching import Place
from sinkscope.hooks.handshake import handshake
from sinkscope.report.activations import activations, massive, summary

CARDS = tuple(ACTIVATIONS.values())
DEFAULT = tuple(card for card in CARDS if not card.optional)


def states(windows=3, layers=2, positions=8, width=6):
    """Random states with heavy tails, [layer window position width]."""
    return torch.randn(layers, windows, positions, width, generator=torch.Generator().manual_seed(2)) ** 3


def recorded(values, keep=None, cards=DEFAULT, attention=()):
    """A record of states that are given; `attention` says which layers have attention, whose output is half theirs."""
    layers, windows, positions, _ = values.shape
    keep = torch.ones(windows, positions, dtype=torch.bool) if keep is None else keep
    names = tuple(Layer(f"layers.{number}", number) for number in range(layers))
    record = HiddenRecord("softmax", Layers(names), cards)
    for number in range(layers):
        place = Place(f"layers.{number}", number, 0)
        if number in attention:
            inner = Place(f"layers.{number}.attn", number, 0, attention=True, inside=place)
            record.add(inner, range(windows), values[number] / 2, keep)
        record.add(place, range(windows), values[number], keep)
    return record


def kurt(values):
    values = values.double().flatten()
    off = values - values.mean()
    return float(off.pow(4).mean() / off.square().mean() ** 2)


def test_a_row_is_the_mean_over_windows_with_its_standard_error():
    values = states()
    table = activations(recorded(values, cards=CARDS))
    assert table[["normalizer", "layer", "call", "module"]].to_numpy().tolist() == [
        ["softmax", 0, 0, "layers.0"],
        ["softmax", 1, 0, "layers.1"],
    ]
    assert table.columns[4:].tolist() == [name for card in CARDS for name in (card.name, f"{card.name}_se")]
    for layer in (0, 1):
        row = table.iloc[layer]
        largest = values[layer].abs().amax((1, 2)).double()
        assert row["max_activation"] == pytest.approx(float(largest.mean()))
        assert row["max_activation_se"] == pytest.approx(float(largest.std() / math.sqrt(3)))
        assert row["kurt_layer"] == pytest.approx(sum(kurt(each) for each in values[layer]) / 3)
        tokens = [kurt(each) for each in values[layer, :, 1:].flatten(0, 1)]
        assert row["kurt_token_others"] == pytest.approx(sum(tokens) / len(tokens))


def test_attention_has_columns_of_its_own_in_the_layers_that_have_it():
    values = states(layers=3)
    table = activations(recorded(values, attention={0, 2}))
    wanted = (values.abs().amax((2, 3)).mean(1) / 2).tolist()
    assert table["attention_inf_norm"].tolist() == pytest.approx([wanted[0], math.nan, wanted[2]], nan_ok=True)
    assert table["attention_kurt_qualcomm"].isna().tolist() == [False, True, False]
    assert "attention_max_activation" not in table


def test_layers_that_share_a_number_are_told_apart_by_call():
    values = states(layers=1)[0]
    record = HiddenRecord("softmax", Layers(), DEFAULT)
    for module, call in (("decoder.0", 0), ("encoder.0", 0), ("encoder.0", 1)):
        record.add(Place(module, 0, call), range(3), values, torch.ones(3, 8, dtype=torch.bool))
    table = activations(record)
    assert table["call"].tolist() == [0, 1, 2]
    assert table["module"].tolist() == ["decoder.0", "encoder.0", "encoder.0"]


def test_two_calls_of_attention_in_one_layer_leave_its_columns_undefined():
    values, keep = states(layers=1)[0], torch.ones(3, 8, dtype=torch.bool)
    record = recorded(states(layers=1), attention={0})
    inside = Place("layers.0", 0, 0)
    record.add(Place("layers.0.other", 0, 0, attention=True, inside=inside), range(3), 9 * values, keep)
    assert "attention_inf_norm" not in activations(record)
    assert summary(record)["inf_norm_module"] == "layers.0.other"


def test_the_summary_is_over_all_layers_windows_and_tokens_at_once():
    values = states(windows=4)
    found = summary(recorded(values, attention={0}))
    assert found["kurt_global"] == pytest.approx(kurt(values), rel=1e-6)
    assert (found["activation_min"], found["activation_max"]) == (float(values.min()), float(values.max()))
    without = np.array([kurt(values[:, [other for other in range(4) if other != each]]) for each in range(4)])
    assert found["kurt_global_se"] == pytest.approx(
        math.sqrt(3 / 4 * ((without - without.mean()) ** 2).sum()), rel=1e-5
    )
    norms = values.abs().amax((2, 3)).mean(1)
    assert found["inf_norm_max"] == pytest.approx(float(norms.max()))
    assert found["inf_norm_module"] == f"layers.{int(norms.argmax())}"
    at = [int(each) for each in np.unravel_index(int(values.abs().argmax()), values.shape)]
    assert found["largest_activation"] == float(values[tuple(at)])
    assert [found[f"largest_{name}"] for name in ("layer", "window", "position", "dimension")] == at


def test_padding_is_in_no_figure_of_the_summary():
    values, keep = states(), torch.ones(3, 8, dtype=torch.bool)
    wanted = summary(recorded(values))
    padded = torch.nn.functional.pad(values, (0, 0, 2, 0), value=math.nan)
    found = summary(recorded(padded, torch.nn.functional.pad(keep, (2, 0))))
    assert found.pop("largest_position") == wanted.pop("largest_position") + 2
    assert found.pop("inf_norm_module") == wanted.pop("inf_norm_module")
    assert found == pytest.approx(wanted, rel=1e-9)


def test_one_window_has_no_standard_error():
    record = recorded(states(windows=1))
    assert activations(record).filter(like="_se").isna().all(axis=None)
    assert math.isnan(summary(record)["kurt_global_se"])
    assert not math.isnan(summary(record)["kurt_global"])


def test_the_largest_entries_are_those_of_all_windows_each_with_its_own():
    values = torch.full((1, 3, 8, 6), 0.1)
    values[0, :, 0, 4] = torch.tensor([-200.0, -300.0, -100.0])
    values[0, 2, 5, 1] = 150.0
    values[0, :, 3, 3] = torch.tensor([90.0, 70.0, 80.0])
    table = massive(recorded(values))
    assert table[["rank", "value", "window", "position", "dimension", "massive"]].to_numpy().tolist() == [
        [1, -300, 1, 0, 4, True],
        [2, -200, 0, 0, 4, True],
        [3, 150, 2, 5, 1, True],
    ]
    assert table["ratio"].tolist() == pytest.approx([3000, 2000, 1500])


def test_the_tokens_of_the_largest_entries_are_those_of_the_table_of_tokens():
    values = states(windows=2)
    places = [(window, position) for window in range(2) for position in range(8)]
    rows = [
        {"normalizer": name, "window": window, "position": position, "token_id": 100 * window + position}
        | {"token": f"{name} {window} {position}", "class": "other"}
        for name in ("softmax", "softmax1")
        for window, position in places
    ]
    table = massive(recorded(values), pd.DataFrame(rows))
    assert len(table) == 6
    for row in table.itertuples():
        assert row.token == f"softmax {row.window} {row.position}"
        assert row.token_id == 100 * row.window + row.position
        assert row.value == float(values[row.layer, row.window, row.position, row.dimension])
    assert massive(recorded(values))["token"].isna().all()


def test_a_layer_that_is_no_number_is_not_hidden():
    values = states()
    values[1, 2, 3, 4] = math.nan
    record = recorded(values)
    table, found = activations(record), summary(record)
    names = [card.name for card in DEFAULT]
    assert table[names].isna().to_numpy().tolist() == [[False] * len(names), [True] * len(names)]
    assert massive(record)["layer"].tolist() == [0, 0, 0]
    assert all(math.isnan(found[name]) for name in ("kurt_global", "activation_min", "activation_max", "inf_norm_max"))
    assert found["inf_norm_module"] == "layers.1"
    assert math.isnan(found["largest_activation"])


def test_a_layer_that_is_undefined_has_a_row_of_nulls_and_the_model_no_global_figures():
    record = recorded(states())
    record.add(Place("layers.1", 1, 0), range(3, 4), None, torch.ones(1, 8, dtype=torch.bool))
    table, found = activations(record), summary(record)
    assert table["kurt_layer"].isna().tolist() == [False, True]
    assert massive(record)["layer"].unique().tolist() == [0]
    assert math.isnan(found["kurt_global"])
    assert found["largest_layer"] == 0
    assert found["inf_norm_module"] == "layers.0"


def test_a_record_of_nothing_has_no_rows_and_null_columns():
    record = HiddenRecord("softmax", Layers(), DEFAULT)
    assert activations(record).empty
    assert massive(record).empty
    assert all(value is None or math.isnan(value) for value in summary(record).values())


def test_nothing_asked_for_still_leaves_the_places_and_the_largest_entries():
    record = recorded(states(), cards=(), attention={0})
    assert activations(record).columns.tolist() == ["normalizer", "layer", "call", "module"]
    assert len(massive(record)) == 6


def watched(model):
    """The record of one forward over two windows."""
    layers = decoder_layers(model, handshake(model, IDS).sites)
    record = HiddenRecord("softmax", layers, CARDS)
    with record.watch(model, range(2), IDS.shape[1]):
        model(input_ids=IDS, use_cache=False)
    return record


def test_a_hybrid_has_a_row_for_every_layer_and_attention_where_there_is_some():
    table = activations(watched(tiny_model("jamba", layers=4)))
    assert table["layer"].tolist() == [0, 1, 2, 3]
    assert table["attention_inf_norm"].notna().tolist() == [False, True, False, True]
    assert table[[card.name for card in CARDS]].notna().all(axis=None)


def test_figures_of_a_model_are_the_same_under_our_own_softmax_and_not_under_another():
    model = tiny("llama")
    own = activations(watched(model))
    found = {}
    for normalizer in ("softmax", "softmax1"):
        layers = decoder_layers(model, handshake(model, IDS).sites)
        record = HiddenRecord("softmax", layers, CARDS)
        watch = record.watch(model, range(2), IDS.shape[1])
        with sinkscope.patched(model, normalizer), torch.no_grad(), watch:
            model(input_ids=IDS, use_cache=False)
        found[normalizer] = activations(record)
    pd.testing.assert_frame_equal(own, found["softmax"], rtol=1e-4)
    assert not np.allclose(own["kurt_layer"], found["softmax1"]["kurt_layer"], rtol=1e-4)
