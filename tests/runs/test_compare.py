"""compare(): the same windows under plain softmax and under each normalizer, paired."""

import math

import numpy as np
import pytest
import torch
from builders import ARCHITECTURES, tiny
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.attention import dense
from sinkscope.attention.swap import Swap
from sinkscope.hooks.forward import logits
from sinkscope.hooks.probe import probed
from sinkscope.normalizers import NORMALIZERS, Modifier
from sinkscope.protocols import PROTOCOLS
from sinkscope.runs import common_rows
from sinkscope.study import runs

pytestmark = pytest.mark.slow

FIGURES = ("first_mass", "initial_mass", "row_mass", "entropy", "frobenius", "value_norm_ratio")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_identity_swap_changes_nothing(architecture, ids):
    model = tiny(architecture)
    native = sinkscope.measure(model, input_ids=ids)
    compared = sinkscope.compare(model, input_ids=ids, normalizers=["softmax"])
    for row in (0, 1):
        summary = compared.summary.iloc[row]
        assert math.isclose(summary["perplexity"], native.summary["perplexity"][0], rel_tol=1e-5)
    for name in FIGURES:
        before = compared.heads[compared.heads["normalizer"] == "softmax"][name].to_numpy()
        np.testing.assert_allclose(before, native.heads[name], atol=1e-5)
    assert abs(compared.metadata["comparison"]["identity_kl"]) < 1e-6
    assert compared.metadata["comparison"]["identity_delta"] < 1e-5
    identity = compared.summary.iloc[1]
    assert identity["normalizer"] == "softmax (identity)"
    assert abs(identity["kl_to_baseline"]) < 1e-6
    assert identity["top1_agreement"] == 1


def test_softmax1_keeps_the_sigmoid_of_each_rows_log_sum_exp(ids):
    model, masses = tiny("llama"), {}

    def patch(site, call, _):
        lse = call.scores().logsumexp(-1)
        masses[site.layer] = lse.sigmoid()[:, :, 1:].mean(dim=(0, 2))
        return dense.attend(call, Swap(NORMALIZERS["softmax1"]))

    with probed(model, patch):
        logits(model, ids)
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax1"])
    heads = report.heads[report.heads["normalizer"] == "softmax1"]
    expected = torch.stack([masses[layer] for layer in range(4)]).flatten().numpy()
    np.testing.assert_allclose(heads["row_mass"].to_numpy(), expected, atol=1e-5)


def test_levels_of_the_log_sum_exp_add_up_and_explain_the_row_mass(ids):
    report = sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=["softmax1"])
    table = report.lse[report.lse["normalizer"] == "softmax1"]
    assert set(table.groupby(["layer", "head"])["share"].sum().round(9)) == {1.0}
    share, low, high = (table[name].to_numpy() for name in ("share", "lse_from", "lse_to"))
    sigmoid = {name: 1 / (1 + np.exp(-edge)) for name, edge in (("low", low), ("high", high))}
    floor = (share * sigmoid["low"]).reshape(16, -1).sum(1)
    roof = (share * sigmoid["high"]).reshape(16, -1).sum(1)
    mass = report.heads[report.heads["normalizer"] == "softmax1"]["row_mass"].to_numpy()
    assert (floor <= mass + 1e-6).all()
    assert (mass <= roof + 1e-6).all()


def test_levels_are_measured_only_where_they_explain_something(ids):
    report = sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=["softpick"])
    assert report.lse.empty
    assert "lse" not in report.summary


def test_changes_are_paired_by_window(ids):
    model = tiny("llama")
    # No row of it is empty, so that all windows weigh the same.
    together = sinkscope.compare(model, input_ids=ids, normalizers=["topk:k=3"]).summary
    alone = [sinkscope.compare(model, input_ids=row[None], normalizers=["topk:k=3"]).summary for row in ids]
    for name in ("first_mass", "effective_support", "entropy", "nll"):
        changes = np.array([each[name][1] - each[name][0] for each in alone])
        assert together[f"{name}_delta"][1] == pytest.approx(together[name][1] - together[name][0], abs=1e-9)
        assert together[f"{name}_delta"][1] == pytest.approx(changes.mean(), abs=1e-6)
        assert together[f"{name}_delta_se"][1] == pytest.approx(changes.std(ddof=1) / math.sqrt(3), rel=1e-3)


def test_divergence_is_that_of_the_logits(ids):
    model = tiny("llama")
    report = sinkscope.compare(model, input_ids=ids, normalizers=["topk:k=2"])
    with torch.no_grad():
        before = model(ids).logits[:, :-1].double().log_softmax(-1)
        with sinkscope.patched(model, "topk:k=2"):
            after = model(ids).logits[:, :-1].double().log_softmax(-1)
    kl = float((before.exp() * (before - after)).sum(-1).mean())
    same = float((before.argmax(-1) == after.argmax(-1)).double().mean())
    assert report.summary["kl_to_baseline"][1] == pytest.approx(kl, rel=1e-4)
    assert report.summary["top1_agreement"][1] == pytest.approx(same)


def test_a_sweep_swaps_one_layer_at_a_time(ids):
    model = tiny("llama")
    sweep = sinkscope.compare(model, input_ids=ids, normalizers=["softpick", "topk:k=2"], sweep=True).sweep
    assert sweep[["normalizer", "layer"]].to_numpy().tolist() == [
        [name, layer] for name in ("softpick", "topk:k=2") for layer in range(4)
    ]
    one = sinkscope.compare(model, input_ids=ids, normalizers=["softpick"], layers=[2]).summary
    assert sweep["perplexity"][2] == pytest.approx(one["perplexity"][1], rel=1e-6)


def test_batches_of_any_size_give_the_same_comparison(ids):
    model = tiny("llama")
    one, all_ = (
        sinkscope.compare(model, input_ids=ids, normalizers=["softpick"], batch_size=size).summary for size in (1, 3)
    )
    for name in ("perplexity", "first_mass", "kl_to_baseline"):
        assert one[name].to_numpy() == pytest.approx(all_[name].to_numpy(), rel=1e-5, nan_ok=True)


def test_rows_without_a_definition_are_counted(ids):
    summary = sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=["poly2", "softmax1"]).summary
    assert 0 < summary["degenerate_rows"][1] < 1
    assert math.isnan(summary["degenerate_rows"][2])


def test_a_sweep_keeps_to_the_chosen_heads(ids):
    model = tiny("llama")
    report = sinkscope.compare(model, input_ids=ids, normalizers=["relu2"], heads=[(2, 1)], sweep=True)
    assert report.sweep["layer"].tolist() == [2]
    assert report.sweep["kl_to_baseline"][0] == pytest.approx(report.summary["kl_to_baseline"][1], rel=1e-6)


def test_a_model_that_does_something_else_further_on_is_refused(ids, monkeypatch):
    model = tiny("llama")
    attention = type(model.model.layers[1].self_attn)
    forward = attention.forward

    def stretched(self, hidden_states, *args, **kwargs):
        output, weights = forward(self, hidden_states, *args, **kwargs)
        return (output * 1.1 if hidden_states.shape[1] > 17 else output), weights

    monkeypatch.setattr(attention, "forward", stretched)
    assert sinkscope.measure(model, input_ids=ids) is not None  # outside the attention function, so it is the model's
    monkeypatch.setattr(attention, "forward", forward)
    sdpa = AttentionInterface._global_mapping["sdpa"]

    def odd(module, query, *args, **kwargs):
        output, weights = sdpa(module, query, *args, **kwargs)
        return (output * 1.1 if query.shape[2] > 17 else output), weights

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", odd)
    with pytest.raises(sinkscope.UnsupportedModelError, match="over this text"):
        sinkscope.compare(model, input_ids=ids, normalizers=["softpick"])


def test_padding_is_no_part_of_the_identity(ids):
    model = tiny("llama", attn_implementation="eager")
    keep = torch.arange(24) >= torch.tensor([[9], [0], [13]])
    report = sinkscope.compare(model, input_ids=ids, attention_mask=keep, normalizers=["softpick"])
    assert report.metadata["comparison"]["identity_delta"] < 1e-5
    assert report.metadata["attention"]["largest_output_difference"] is None


def test_the_learned_sink_is_in_the_denominator_that_may_vanish(ids):
    model = tiny("gpt_oss")
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(3.0)
    summary = sinkscope.compare(model, input_ids=ids, normalizers=["poly2"]).summary
    assert summary["degenerate_rows"][1] == 0


def test_what_is_no_number_is_reported_as_none(ids):
    def nowhere(scores):
        return scores * torch.nan

    report = sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=[nowhere], sweep=True)
    row = report.summary.iloc[1]
    for name in ("perplexity", "first_share", "first_mass", "sink_rate", "sink_rate_raw", "top1_agreement", "entropy"):
        assert math.isnan(row[name]), name
    assert report.metadata["undefined"][f"* under {row['normalizer']}"] == "the model's output is no longer a number"


def test_nothing_to_compare_and_doubles_are_refused(ids):
    model = tiny("llama")
    with pytest.raises(ValueError, match="got none"):
        sinkscope.compare(model, input_ids=ids)
    with pytest.raises(ValueError, match="expected different normalizers"):
        sinkscope.compare(model, input_ids=ids, normalizers=["softpick", "softpick"])


def test_the_model_is_as_it_was_and_the_report_survives_a_file(ids, tmp_path):
    model = tiny("llama")
    before = logits(model, ids)
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax1"], sweep=True)
    assert torch.equal(logits(model, ids), before)
    report.save(tmp_path / "run.json")
    loaded = sinkscope.Report.load(tmp_path / "run.json")
    for name, table in report.tables().items():
        assert loaded.tables()[name].equals(table), name


HIDING = {
    "window": Modifier(window=8),
    "window of one": Modifier(window=1),
    "window with sinks": Modifier(window=8, keep_sinks=True),
    "no sinks": Modifier(sink_bias=-math.inf),
}
NEUTRAL = {"long window": Modifier(window=99), "no bias": Modifier(sink_bias=0.0)}


def _changes(row):
    return row[[name for name in row.index if name.endswith("_delta")]].dropna()


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", "gemma3_text"])
@pytest.mark.parametrize("modifier", NEUTRAL.values(), ids=NEUTRAL)
def test_a_modifier_that_changes_nothing_changes_nothing_at_all(ids, modifier, architecture):
    report = sinkscope.compare(
        tiny(architecture), input_ids=ids, modifier=modifier, normalizers=["softmax"], also=["lse", "dormancy"]
    )
    changes = _changes(report.summary.iloc[1])
    assert {"first_share_delta", "lse_delta", "awft_delta", "first_queries_delta", "nll_delta"} <= set(changes.index)
    assert not changes[changes != 0].to_dict()
    for name in ("heads", "layers", "positions"):
        table = report.tables()[name]
        assert not table[[column for column in table if column.endswith("_delta")]].fillna(0).any(axis=None), name


@pytest.mark.parametrize("queries", [None, 12])
def test_over_the_rows_that_still_see_the_first_token_a_window_changes_nothing(ids, queries):
    report = sinkscope.compare(
        tiny("llama"), input_ids=ids, modifier=Modifier(window=8), normalizers=["softmax"], queries=queries
    )
    before, after = report.summary.iloc[0], report.summary.iloc[1]
    # Rows 1 to 7 of each window see it; that the baseline's own figure is another one is what makes this a test.
    assert abs(before["first_share"] - after["first_share"]) > 0.01
    for name in ("first_mass", "first_share", "first_lift", "sink_rate", "sink_rate_raw"):
        assert after[f"{name}_delta"] == pytest.approx(0, abs=1e-7), name
        assert after[f"{name}_before"] == pytest.approx(after[name], abs=1e-7), name
    assert after["first_queries_delta"] == after["first_queries"] - before["first_queries"] < 0
    heads = report.heads[report.heads["normalizer"] != "softmax"]
    assert heads["first_share_delta"].abs().max() < 1e-7
    assert (heads["first_queries_delta"] < 0).all()
    layers = report.layers[report.layers["normalizer"] != "softmax"]
    assert layers["first_share_delta"].abs().max() < 1e-7
    positions = report.positions[report.positions["normalizer"] != "softmax"]
    assert positions["first_mass_delta"].dropna().abs().max() < 1e-7


def _rows_of(model, ids, swap):
    """Each layer's weights, and what each row gives to the classes first and initial; NaN where it has no share."""
    weights = {}

    def keep(site, call, own):
        weights[site.layer] = swap.weigh(call).weights
        return dense.attend(call, swap)

    with probed(model, keep):
        logits(model, ids)
    return torch.stack([weights[layer] for layer in sorted(weights)], dim=1).double()


@pytest.mark.parametrize("name", ["softmax", "relu", "softpick"])
@pytest.mark.parametrize("modifier", [None, *HIDING.values()], ids=["none", *HIDING])
def test_before_a_change_stand_the_baselines_figures_of_the_same_rows(ids, name, modifier):
    if name == "softmax" and modifier is None:
        return
    model = tiny("llama")
    report = sinkscope.compare(model, input_ids=ids, modifier=modifier, normalizers=[name], attention="dense")
    plain = _rows_of(model, ids, Swap(NORMALIZERS["softmax"]))
    swapped = _rows_of(model, ids, Swap(NORMALIZERS[name], modifier))
    seen = torch.ones(24, 24, dtype=torch.bool).tril()
    if modifier is not None:
        flat = torch.zeros(1, 1, 24, 24).masked_fill(~seen, -torch.inf)
        seen = modifier.apply(flat, seen[None, None], torch.zeros(1, dtype=torch.int64))[0, 0] > -torch.inf
    weighing = swapped.abs().sum(-1) > 0
    row = report.summary.iloc[1]
    for figure, keys in {"first": slice(0, 1), "initial": slice(0, 4)}.items():
        rows = seen[:, keys].any(-1).clone()
        rows[0] = False
        wanted = _mean(plain[..., keys].sum(-1), rows & weighing)
        assert row[f"{figure}_share_before"] == pytest.approx(wanted, abs=1e-6, nan_ok=True)
        assert row[f"{figure}_mass_before"] == pytest.approx(
            _mean(plain[..., keys].sum(-1), rows.expand_as(weighing)), abs=1e-6, nan_ok=True
        )
    rows = (seen.any(-1) & (torch.arange(24) > 0)) & weighing
    wanted = _mean(-torch.special.xlogy(plain, plain).sum(-1), rows)
    assert row["entropy_before"] == pytest.approx(wanted, abs=1e-5)


def _mean(values, rows):
    """The mean over heads of each head's mean over these rows of all windows, without heads that have none."""
    sums, counts = torch.where(rows, values, 0).sum((0, 3)), rows.sum((0, 3))
    return float((sums / counts)[counts > 0].mean())


def test_a_change_is_the_figure_after_less_the_figure_before(ids):
    keep = torch.arange(24) >= torch.tensor([[9], [0], [13]])
    names = ["softmax", "softmax1", "relu2"]
    report = sinkscope.compare(
        tiny("llama"), input_ids=ids, attention_mask=keep, modifier=Modifier(window=8), normalizers=names
    )
    for table in (report.summary, report.heads, report.layers):
        after = table[table["normalizer"] != "softmax"]
        figures = [name.removesuffix("_before") for name in table if name.endswith("_before")]
        assert {"first_share", "initial_mass", "entropy", "sink_rate"} <= set(figures)
        for name in figures:
            wanted = (after[name] - after[f"{name}_before"]).to_numpy(dtype=float)
            assert after[f"{name}_delta"].to_numpy(dtype=float) == pytest.approx(wanted, abs=1e-9, nan_ok=True), name


def test_windows_of_any_batch_have_the_same_figures_before(ids):
    model = tiny("llama")
    found = [
        sinkscope.compare(model, input_ids=ids, normalizers=["relu"], batch_size=size, only=["entropy"]).summary
        for size in (1, 2)
    ]
    for name in ("first_share_before", "entropy_before", "first_share_delta_se"):
        assert found[1][name].to_numpy() == pytest.approx(found[0][name].to_numpy(), rel=1e-5, nan_ok=True)


def test_the_baseline_runs_again_only_where_rows_differ(ids, monkeypatch):
    runs = []
    monkeypatch.setattr(common_rows, "predict", lambda *_, **__: runs.append(1))
    sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=["softmax1", "entmax:alpha=1.5", "temperature:t=2"])
    assert not runs


def test_protocols_count_the_same_rows_with_and_without_a_window(ids):
    model = tiny("llama")
    row = sinkscope.compare(
        model,
        input_ids=ids,
        modifier=Modifier(window=8),
        normalizers=["softmax"],
        protocol=None,
        metrics=PROTOCOLS["gu2025"].metrics,
    )
    before, after = row.summary.iloc[0], row.summary.iloc[1]
    assert after["gu2025_mass_before"] == pytest.approx(before["gu2025_mass"])
    assert after["gu2025_mass"] < before["gu2025_mass"]


@pytest.mark.parametrize("names", [["softmax1"], ["softmax1", "relu"]])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])
def test_before_and_after_take_the_same_path(ids, names, architecture, monkeypatch):
    kept = []
    build = runs.compared
    monkeypatch.setattr(runs, "compared", lambda found, *rest: kept.append(found) or build(found, *rest))
    sinkscope.compare(tiny(architecture), input_ids=ids, normalizers=names, heads=[(1, 2)])
    for record in kept[0].records:
        before = {key: layer.path for key, layer in kept[0].baseline.layers.items()}
        assert {key: layer.path for key, layer in record.layers.items()} == before
