"""A run that asks for less gets the same figures, and leaves the model's own output as it was."""

import json

import numpy as np
import pytest
import torch
from builders import tiny
from fixtures_cli import QUICK
from tiny_models import tiny_model

import sinkscope
from sinkscope.attention.flash import kernel as flash_kernel
from sinkscope.errors import UnknownNameError
from sinkscope.metrics import METRICS, dormancy
from sinkscope.metrics.choosing import chosen
from sinkscope.runs.options import Options
from sinkscope.statistics.sampling import Sample

MASSES = ["first_mass", "first_share", "first_lift", "initial_mass", "other_share", "row_mass", "sink_rate"]


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=512, num_hidden_layers=3)


@pytest.fixture(scope="module")
def full(model):
    return sinkscope.measure(model, input_ids=fixed_ids())


@pytest.fixture
def own_calls(monkeypatch):
    """The calls of sdpa, which is what the model's own attention ends in."""
    calls = []
    own = torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments, **named):
        calls.append(arguments[0].shape[2])
        return own(*arguments, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    return calls


def fixed_ids():
    return torch.randint(3, 300, (2, 70), generator=torch.Generator().manual_seed(1))


def assert_same(found, wanted, names):
    for name in names:
        np.testing.assert_allclose(found.heads[name], wanted.heads[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("classes", [None, ["bos", "initial"]])
def test_masses_alone_are_what_they_are_beside_everything_else(model, full, classes):
    found = sinkscope.measure(model, input_ids=fixed_ids(), only=["mass"], classes=classes)
    assert_same(found, full, [name for name in MASSES if name in found.heads])
    assert found.summary["nll"].equals(full.summary["nll"])
    assert found.tokens["class"].equals(full.tokens["class"])
    assert found.tokens["received"].isna().all()
    missing = {"entropy", "frobenius", "exact_zeros", "value_norm_ratio", "output_norm", "received"}
    assert not missing & {*found.heads}
    assert {name: "asked for" in found.metadata["not_measured"][name] for name in missing} == dict.fromkeys(
        missing, True
    )


def test_what_is_named_is_measured_beside_the_masses(model, full):
    found = sinkscope.measure(model, input_ids=fixed_ids(), only=["frobenius", "lse", "received"])
    assert_same(found, full, [*MASSES, "frobenius"])
    assert found.heads["lse"].notna().all()
    assert "entropy" not in found.heads
    np.testing.assert_allclose(found.tokens["received"], full.tokens["received"], rtol=1e-5)


def test_classes_that_were_not_asked_for_have_no_columns_and_a_reason(model, full):
    found = sinkscope.measure(model, input_ids=fixed_ids(), classes=["bos"])
    assert {name.removesuffix("_lift") for name in found.heads if name.endswith("_lift")} == {"first", "bos"}
    assert_same(found, full, ["first_mass", "entropy", "output_norm"])
    assert found.metadata["not_measured"]["other_*"] == "the class was not asked for"


@pytest.mark.parametrize("classes", [None, ["first"]])
def test_one_kernel_gives_output_and_masses_where_it_changes_no_bit(own_calls, classes):
    model = tiny("llama", max_position_embeddings=512, num_hidden_layers=3, head_dim=64)
    sinkscope.measure(model, input_ids=fixed_ids(), only=(), classes=classes)
    assert own_calls.count(70) == 1


def test_a_kernel_that_gives_other_bits_is_not_taken_for_the_models_own(model, full, own_calls, monkeypatch):
    kernel = flash_kernel.causal

    def other(*arguments):
        output, lse = kernel(*arguments)
        return output * (1 + 1e-6), lse

    monkeypatch.setattr(flash_kernel, "causal", other)
    found = sinkscope.measure(model, input_ids=fixed_ids(), only=())
    assert own_calls.count(70) == 3
    assert found.summary["nll"].equals(full.summary["nll"])


def test_an_eager_model_runs_its_own_attention(full):
    model = tiny("llama", max_position_embeddings=512, num_hidden_layers=3)
    model.set_attn_implementation("eager")
    found = sinkscope.measure(model, input_ids=fixed_ids(), only=())
    assert_same(found, full, MASSES)


def test_names_that_do_not_exist_are_refused_with_the_nearest(model):
    with pytest.raises(UnknownNameError, match="entropy"):
        sinkscope.measure(model, input_ids=fixed_ids(), only=["entropie"])
    with pytest.raises(UnknownNameError, match="newline"):
        sinkscope.measure(model, input_ids=fixed_ids(), classes=["newlines"])


def test_a_comparison_can_ask_for_less_too(model):
    everything = sinkscope.compare(model, input_ids=fixed_ids(), normalizers=["softmax1"])
    found = sinkscope.compare(model, input_ids=fixed_ids(), normalizers=["softmax1"], only=())
    assert_same(found, everything, [*MASSES, "lse"])
    assert "entropy" not in found.heads
    np.testing.assert_allclose(found.summary["nll"], everything.summary["nll"], rtol=1e-6)


def test_a_card_of_the_catalog_may_be_given_beside_it(model):
    found = sinkscope.measure(model, input_ids=fixed_ids(), metrics=[METRICS["mass"], METRICS["lse"]])
    assert found.heads["lse"].notna().all()


SCORES = [card.name for card in dormancy.SCORES]


@pytest.mark.parametrize("attention", ["flash", "dense"])
def test_the_scores_of_dormant_heads_are_there_when_asked_for_and_change_nothing_else(model, full, attention):
    found = sinkscope.measure(model, input_ids=fixed_ids(), also=["dormancy"], attention=attention)
    assert not {*SCORES} & {*full.heads}
    assert found.heads[SCORES].notna().all(axis=None)
    assert_same(found, full, [*MASSES, "entropy", "output_norm"])
    assert found.summary["nll"].equals(full.summary["nll"])


def test_projected_norms_are_those_of_the_models_own_modules(model):
    found = sinkscope.measure(model, input_ids=fixed_ids(), only=["value_drain", "full_head_output"]).heads
    wanted = {"value_drain": [], "full_head_output": []}
    hooks = []
    for layer in model.model.layers:
        attention = layer.self_attn
        slices = attention.o_proj.weight.T.double().view(4, 8, -1)

        def value(_, __, output, slices=slices):
            vectors = output.double().view(2, 70, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1)
            norms = (vectors @ slices).norm(dim=-1)
            wanted["value_drain"].append((norms[..., 0] / norms[..., 1:].mean(-1)).mean(0))

        def projected(_, given, slices=slices):
            vectors = given[0].double().view(2, 70, 4, 8).transpose(1, 2)
            wanted["full_head_output"].append((vectors @ slices).norm(dim=-1).mean((0, 2)))

        hooks += [attention.v_proj.register_forward_hook(value), attention.o_proj.register_forward_pre_hook(projected)]
    with torch.no_grad():
        model(fixed_ids())
    for hook in hooks:
        hook.remove()
    for name, parts in wanted.items():
        np.testing.assert_allclose(found[name], torch.cat(parts), rtol=1e-5, err_msg=name)


def test_a_comparison_has_the_scores_of_what_it_swaps_in(model):
    found = sinkscope.compare(
        model, input_ids=fixed_ids(), normalizers=["softmax1", "softpick"], also=["dead_rows", "full_head_output"]
    ).heads
    assert found[["dead_rows", "full_head_output"]].notna().all(axis=None)
    outputs = found.groupby("normalizer")["full_head_output"].mean()
    assert outputs["softmax1"] < outputs["softmax"]


def seed_whose_samples(hold_the_last_token):
    """A seed whose sample of 7 queries holds the last token of every window of `fixed_ids`, or of none."""
    windows, length = fixed_ids().shape
    return next(
        seed
        for seed in range(10_000)
        if ((Sample(7, seed).positions(length, range(windows)) == length - 1).any(dim=1) == hold_the_last_token).all()
    )


def test_a_sample_without_the_last_token_has_no_figure_of_it_and_the_report_says_so(model):
    whole = sinkscope.measure(model, input_ids=fixed_ids(), also=["lthon"])
    seed = seed_whose_samples(hold_the_last_token=True)
    assert_same(sinkscope.measure(model, input_ids=fixed_ids(), also=["lthon"], queries=7, seed=seed), whole, ["lthon"])
    seed = seed_whose_samples(hold_the_last_token=False)
    found = sinkscope.measure(model, input_ids=fixed_ids(), also=["dormancy"], queries=7, seed=seed)
    sampled = [name for name in SCORES if not name.startswith("lthon")]
    assert found.heads[sampled].notna().all(axis=None)
    assert found.heads[["lthon", "lthon_ln"]].isna().all(axis=None)
    assert "sampled" in found.metadata["undefined"]["lthon, lthon_ln"]


@pytest.mark.parametrize(
    ("kind", "reason", "lost"),
    [
        ("qwen3_next", "nothing takes its heads' output", ["full_head_output", "full_head_output_ln", "value_drain"]),
        ("bloom", "not their values", [name for name in SCORES if name[:4] not in {"awft", "aeqd"}]),
    ],
)
def test_what_a_layer_keeps_to_itself_is_undefined_with_a_reason(kind, reason, lost):
    ids = torch.randint(3, 100, (1, 40), generator=torch.Generator().manual_seed(1))
    found = sinkscope.measure(tiny_model(kind), input_ids=ids, also=["dormancy"])
    assert [name for name in SCORES if found.heads[name].isna().all()] == lost
    assert found.heads[[name for name in SCORES if name not in lost]].notna().all(axis=None)
    assert any(reason in why for why in found.metadata["undefined"].values())


def test_a_run_that_needs_no_projection_looks_for_none(model, monkeypatch):
    monkeypatch.setattr("sinkscope.study.runs.find_projections", None)
    assert "ahon_ln" in sinkscope.measure(model, input_ids=fixed_ids(), also=["ahon_ln", "dead_rows"]).heads


def test_the_command_line_asks_for_more_metrics_by_name_or_by_group(run, tiny_llama):
    ended = run("measure", tiny_llama, *QUICK, "--also", "dormancy,lse", "--json")
    assert ended.status == 0, ended.err
    assert {*SCORES, "lse", "entropy"} <= {*json.loads(ended.out)["tables"]["heads"]["columns"]}
    ended = run("measure", tiny_llama, *QUICK, "--also", "dormant")
    assert ended.status == 1
    assert "no metric named 'dormant'" in ended.err


def test_gradients_bring_the_figures_of_hidden_states_whatever_else_is_measured(model, ids):
    report = sinkscope.measure(model, input_ids=ids, only=(), gradients=True)
    assert report.activations["effective_rank"].notna().all()
    assert report.tokens["gradient_norm"].notna().any()
    assert sinkscope.measure(model, input_ids=ids, only=()).activations.empty


def test_a_misspelt_group_of_metrics_is_told_its_name():
    with pytest.raises(UnknownNameError, match="did you mean 'dormancy', which stands for several"):
        chosen(None, also=["dormanci"])


def test_too_few_bootstrap_samples_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="at least 100 bootstrap samples, got 50"):
        Options(bootstrap=50)
