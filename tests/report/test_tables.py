"""Tables of records whose weights are written by hand."""

import math

import numpy as np
import pytest
import torch
from handmade import asked, real, reduced

from sinkscope.metrics.choosing import chosen
from sinkscope.report import tables
from sinkscope.runs.record import Layer, Record
from sinkscope.statistics.accumulate import document_blocks, draws

LENGTH = 5
FIXED = {"bos": False}


def question(windows):
    keep = real(windows, LENGTH)
    other = torch.arange(LENGTH)[None].expand(windows, -1) > 0
    return asked(keep, other=other, nobody=torch.zeros_like(keep))


def rows_of(seed, *shape):
    """Random causal rows that add up to one."""
    weights = torch.rand(*shape, LENGTH, LENGTH, generator=torch.Generator().manual_seed(seed)).tril()
    return (weights / weights.sum(-1, keepdim=True)).double()


def recorded(layers, windows=3, **parts):
    """A record of these layers, given as name: (number, weights [window head query key])."""
    record = Record.start("softmax", windows, LENGTH, chosen(None))
    for name, (number, weights) in layers.items():
        layer = Layer(name, number, 0, None, None, weights.shape[1], "sink" in parts, "dense")
        record.add(layer, range(windows), reduced(weights, question(windows), **parts))
    record.loss.add(range(windows), (torch.ones(windows, 1), torch.ones(windows, 1)))
    return record


def sheet(**more):
    return tables.Sheet(tuple(question(1).marked), FIXED, **more)


def test_every_head_has_a_row_with_its_figures_and_their_errors():
    weights = rows_of(0, 3, 2)
    found = tables.heads(recorded({"a": (4, weights)}), sheet())
    assert found[["layer", "head", "call"]].to_numpy().tolist() == [[4, 0, 0], [4, 1, 0]]
    by_window = weights[:, :, 1:, 0].mean(-1).numpy()
    np.testing.assert_allclose(found["first_mass"], by_window.mean(0))
    np.testing.assert_allclose(found["first_mass_se"], by_window.std(0, ddof=1) / math.sqrt(3))
    assert found["queries"].tolist() == found["first_queries"].tolist() == [3 * 4] * 2
    assert found["nobody_queries"].tolist() == [0, 0]
    assert found[["nobody_mass", "nobody_share", "nobody_lift", "nobody_mass_se"]].isna().all(axis=None)
    assert found["bos"].tolist() == [False, False]


def test_means_weigh_every_head_alike_and_their_errors_are_over_windows():
    one, other = rows_of(0, 3, 2), rows_of(1, 3, 4)
    record = recorded({"a": (0, one), "b": (1, other)})
    heads = torch.cat([one, other], dim=1)[:, :, 1:, 0].mean(-1).numpy()
    summary = tables.summary(record, sheet())
    assert (int(summary["layers"][0]), int(summary["heads"][0])) == (2, 6)
    assert float(summary["first_mass"][0]) == pytest.approx(heads.mean())
    assert float(summary["first_mass_se"][0]) == pytest.approx(heads.mean(1).std(ddof=1) / math.sqrt(3))
    layers = tables.layers(record, sheet())
    np.testing.assert_allclose(layers["first_mass"], [heads[:, :2].mean(), heads[:, 2:].mean()])
    assert layers["module"].tolist() == ["a", "b"]


def test_heads_without_a_figure_are_in_no_mean():
    record = recorded({"a": (0, rows_of(0, 3, 2) / 2)}, sink=torch.full((1, 2, 1), 0.5, dtype=torch.float64))
    other = reduced(rows_of(1, 3, 4), question(3))
    record.add(Layer("b", 1, 0, None, None, 4, False, "dense"), range(3), other)
    assert float(tables.summary(record, sheet())["sink_logit_mass"][0]) == 0.5
    layers = tables.layers(record, sheet())
    assert layers["sink_logit_mass"].isna().tolist() == [False, True]
    assert layers["sink_logit_mass_se"].isna().tolist() == [False, True]


def test_layers_are_in_order_and_calls_that_share_a_number_are_counted():
    weights = rows_of(0, 3, 1)
    record = recorded({"z": (2, weights), "late": (0, weights), "again": (2, weights)})
    found = tables.layers(record, sheet())
    assert found[["module", "layer", "call"]].to_numpy().tolist() == [["late", 0, 0], ["z", 2, 0], ["again", 2, 1]]


@pytest.mark.parametrize(("window", "kind"), [(2, "sliding_attention"), (LENGTH, "full_attention")])
def test_a_layer_that_states_no_type_shows_it_by_its_mask(window, kind):
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(1 - window)[None, None]
    found = tables.heads(recorded({"a": (0, rows_of(0, 3, 1))}, visible=seen), sheet())
    assert found["layer_type"].tolist() == [kind]
    assert found["window_length"].tolist() == [2] if window == 2 else found["window_length"].isna().all()


def test_first_token_mass_by_position_has_a_row_per_head_and_bin():
    weights = rows_of(0, 3, 2)
    found = tables.positions(recorded({"a": (7, weights)}))
    assert found["query_from"].tolist() == [1, 2, 3, 4] * 2
    assert found["query_to"].tolist() == [1, 2, 3, 4] * 2
    assert set(found["queries"]) == {3}
    np.testing.assert_allclose(found["first_mass"], weights[:, :, 1:, 0].mean(0).flatten())


def test_received_mass_has_a_row_per_key_and_no_top_head_where_few_queries_look():
    weights = rows_of(0, 3, 2)
    found = tables.received(recorded({"a": (0, weights)}))
    assert found[["window", "position"]].to_numpy().tolist() == [[w, k] for w in range(3) for k in range(LENGTH)]
    assert found["receivers"].tolist() == [4, 3, 2, 1, 0] * 3
    wanted = [
        float(weights[window, :, key + 1 :, key].mean()) if key < LENGTH - 1 else math.nan
        for window in range(3)
        for key in range(LENGTH)
    ]
    np.testing.assert_allclose(found["received"], wanted)
    assert found[["top_received", "top_layer", "top_head"]].isna().all(axis=None)


def lossy(sums, counts):
    record = Record.start("softmax", len(sums), LENGTH, chosen(None))
    record.loss.add(range(len(sums)), (torch.tensor(sums)[:, None].double(), torch.tensor(counts)[:, None].double()))
    return tables.loss(record, tables.Sheet(()))


def test_the_loss_is_over_tokens_and_not_over_windows():
    found = lossy([2.0, 9.0], [1.0, 9.0])
    assert found["nll"] == 1.1
    assert found["tokens_scored"] == 10
    assert found["perplexity"] == math.exp(1.1)
    error = math.sqrt(2 * ((2 - 1.1) ** 2 + (9 - 9.9) ** 2)) / 10
    assert found["nll_se"] == pytest.approx(error)
    assert found["perplexity_se"] == pytest.approx(error * math.exp(1.1))


def test_a_perplexity_too_large_for_a_number_is_infinite_and_one_of_nothing_is_null():
    assert lossy([1e6], [1.0])["perplexity"] == math.inf
    assert math.isnan(lossy([0.0], [0.0])["perplexity"])


def test_a_document_has_the_figures_of_its_own_windows_alone():
    one, other = rows_of(0, 5, 2), rows_of(1, 5, 3)
    whole = recorded({"a": (0, one), "b": (1, other)}, windows=5)
    found = tables.documents(whole, sheet(), ["x", "y", "x", "x", "y"]).set_index("document")
    assert found["windows"].to_dict() == {"x": 3, "y": 2}
    for name, rows in (("x", [0, 2, 3]), ("y", [1, 4])):
        alone = recorded({"a": (0, one[rows]), "b": (1, other[rows])}, windows=len(rows))
        summary = tables.summary(alone, sheet()).iloc[0]
        for figure in (
            "first_mass",
            "first_mass_se",
            "other_share",
            "entropy",
            "entropy_se",
            "sink_rate",
            "perplexity",
        ):
            assert found[figure][name] == pytest.approx(summary[figure], rel=1e-9), figure
        assert found["tokens_scored"][name] == len(rows)
    assert math.isnan(found["nobody_mass"]["x"])


def test_a_document_of_one_window_has_no_errors():
    found = tables.documents(recorded({"a": (0, rows_of(0, 2, 1))}, windows=2), sheet(), ["x", "y"])
    assert found["first_mass"].notna().all()
    assert found["first_mass_se"].isna().all()


def test_bootstrap_intervals_surround_every_figure_and_are_those_of_resampled_windows():
    weights = rows_of(3, 3, 2)
    drawn = draws(3, 400, 0)
    record = recorded({"a": (0, weights)})
    found = tables.heads(record, sheet(draws=drawn))
    assert (found["first_mass_low"] <= found["first_mass"]).all()
    assert (found["first_mass_high"] >= found["first_mass"]).all()
    by_window = weights[:, :, 1:, 0].mean(-1)
    again = torch.einsum("sw,wh->sh", drawn, by_window) / 3
    np.testing.assert_allclose(found["first_mass_low"], np.percentile(again, 2.5, axis=0))
    np.testing.assert_allclose(found["first_mass_high"], np.percentile(again, 97.5, axis=0))
    summary = tables.summary(record, sheet(draws=drawn)).iloc[0]
    np.testing.assert_allclose(summary["first_mass_low"], np.percentile(again.mean(1), 2.5))
    assert summary["perplexity_low"] == summary["perplexity"] == summary["perplexity_high"] == pytest.approx(math.e)
    assert math.isnan(summary["nobody_mass_low"])
    assert "first_mass_low" not in tables.heads(record, sheet())


def test_first_mass_by_position_has_its_error_over_windows():
    weights = rows_of(4, 3, 1)
    found = tables.positions(recorded({"a": (0, weights)}))
    alone = found[found["query_from"] == found["query_to"]]
    assert len(alone) > 1
    for _, row in alone.iterrows():
        each = weights[:, 0, row["query_from"], 0]
        assert row["first_mass_se"] == pytest.approx(float(each.std() / 3**0.5))


def test_a_copy_of_every_window_in_its_own_document_leaves_every_error_as_it_was():
    weights = rows_of(7, 5, 2)
    once, twice = recorded({"a": (0, weights)}, 5), recorded({"a": (0, weights.repeat(2, 1, 1, 1))}, 10)
    blocks = document_blocks(list("abcdeabcde"))
    for table in (tables.heads, tables.layers, tables.summary):
        alone, copied = table(once, sheet()), table(twice, sheet(blocks=blocks))
        errors = [name for name in alone if name.endswith("_se")]
        assert errors
        np.testing.assert_allclose(copied[errors].astype(float), alone[errors].astype(float), atol=1e-12)
        assert (table(twice, sheet())["first_mass_se"] < 0.7 * alone["first_mass_se"]).all()
    found = tables.positions(twice, blocks)["first_mass_se"]
    np.testing.assert_allclose(found, tables.positions(once)["first_mass_se"], atol=1e-12)


def test_a_class_that_is_in_one_window_only_has_no_error():
    weights, keep = rows_of(5, 3, 2), real(3, LENGTH)
    rare = torch.zeros_like(keep)
    rare[0, 2] = True
    record = Record.start("softmax", 3, LENGTH, chosen(None))
    record.add(Layer("a", 0, 0, None, None, 2, False, "dense"), range(3), reduced(weights, asked(keep, rare=rare)))
    record.loss.add(range(3), (torch.ones(3, 1), torch.ones(3, 1)))
    one = tables.Sheet(("first", "rare"), {}, draws(3, 100, 0))
    for table in (tables.heads(record, one), tables.layers(record, one), tables.summary(record, one)):
        assert table["rare_mass"].notna().all()
        assert table[["rare_mass_se", "rare_mass_low", "rare_mass_high"]].isna().all(axis=None)
        assert table["first_mass_se"].notna().all()
    assert tables.documents(record, one, ["x", "x", "x"])["rare_mass_se"].isna().all()
