"""Rounding is told from another computation, also where scores are large."""

import pytest
import torch
from builders import tiny
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.attention import Call
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.handshake import handshake
from sinkscope.hooks.tolerances import MOST, TOLERANCES, largest_score, tolerance


@torch.no_grad()
def large(bias):
    """A model with heads of 128, whose queries and keys have so large a bias."""
    model = tiny("qwen2", hidden_size=512, head_dim=None)
    generator = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj"):
            own = layer.self_attn.get_submodule(name).bias
            own.copy_(bias * torch.randn(own.shape, generator=generator))
    return model


def altered(monkeypatch, *, output=1.0, scale=1.0, shift=0):
    """Put a function in the place of sdpa that computes something else."""
    own = AttentionInterface._global_mapping["sdpa"]

    def attend(module, *tensors, scaling, **arguments):
        query, key, value, mask = tensors
        found, weights = own(module, query, key, value.roll(shift, dims=2), mask, scaling=scale * scaling, **arguments)
        return output * found, weights

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)


def test_scores_in_the_thousands_explain_what_their_rounding_does(ids):
    model = large(40)
    shown = handshake(model, ids)
    assert TOLERANCES[torch.float32] < shown.delta < 1e-3
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax1"])
    assert report.metadata["comparison"]["identity_delta"] < 2e-3


@pytest.mark.parametrize("bias", [1, 10, 22.6])
@pytest.mark.parametrize("change", [{"output": 1.02}, {"scale": 1.02}, {"shift": 1}], ids=str)
def test_scores_of_any_size_do_not_explain_another_computation(bias, change, ids, monkeypatch):
    altered(monkeypatch, **change)
    with pytest.raises(UnsupportedModelError, match="its layers do more than softmax attention"):
        handshake(large(bias), ids)


def test_tolerances_follow_the_scores_from_where_they_matter_and_only_so_far():
    assert tolerance(torch.float32) == tolerance(torch.float32, 400.0) == TOLERANCES[torch.float32]
    assert tolerance(torch.float32, 5780.0) == pytest.approx(1.4e-3, rel=0.02)
    assert tolerance(torch.float32, 1e9) == tolerance(torch.float64, 1e30) == MOST
    assert tolerance(torch.float64, 5780.0) == TOLERANCES[torch.float64]
    for half in (torch.float16, torch.bfloat16):
        assert tolerance(half, 1e9) == TOLERANCES[half]


def test_the_largest_score_is_of_what_is_seen():
    query = torch.zeros(1, 1, 90, 4)
    key, query[..., 0] = torch.zeros(1, 1, 90, 4), 1
    key[0, 0, 7, 0], key[0, 0, 80, 0] = -3, 5
    value = torch.zeros(1, 1, 90, 2)
    assert largest_score(Call(query, key, value, scale=2.0, causal=True)) == 10
    assert largest_score(Call(query[:, :, :40], key, value, scale=2.0, causal=True)) == 6
