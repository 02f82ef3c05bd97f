"""A run that asks for less gets the same figures, and leaves the model's own output as it was."""

import numpy as np
import pytest
import torch
from conftest import tiny

import sinkscope
from sinkscope.attention import flash_kernel
from sinkscope.errors import UnknownNameError
from sinkscope.metrics import METRICS

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
    assert {name: "asked for" in found.metadata["undefined"][name] for name in missing} == dict.fromkeys(missing, True)


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
    assert found.metadata["undefined"]["other_*"] == "the class was not asked for"


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
