"""compare(): the same windows under plain softmax and under each normalizer, paired."""

import math

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, tiny
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.attention import dense
from sinkscope.attention.swap import Swap
from sinkscope.forward import logits
from sinkscope.normalizers import NORMALIZERS
from sinkscope.probe import probed

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
    assert report.metadata["undefined"][row["normalizer"]] == "the model's output is no longer a number"


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
