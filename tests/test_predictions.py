"""Predictions that are made a few positions at a time are the model's own."""

import pytest
import torch
from conftest import ARCHITECTURES, tiny

from sinkscope import predictions
from sinkscope.forward import logits
from sinkscope.predictions import can_be_chunked, divergences, losses, predict


@pytest.fixture
def keep(ids):
    return torch.ones_like(ids, dtype=torch.bool)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_where_the_head_alone_makes_the_logits_their_loss_is_the_same(architecture, ids, keep, monkeypatch):
    monkeypatch.setattr(predictions, "LOGITS_AT_ONCE", 3 * 300 * 5)
    model = tiny(architecture)
    native = logits(model, ids, keep)
    whole = losses(predict(model, ids, keep, chunked=False), ids, keep)
    if not can_be_chunked(model, ids, native):
        assert architecture in {"gemma2", "cohere2"}
        return
    found = predict(model, ids, keep, chunked=True)
    assert found.states.shape[-1] == 32
    torch.testing.assert_close(losses(found, ids, keep), whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("architecture", "setting"), [("gemma2", {}), ("cohere2", {"logit_scale": 0.5})])
def test_a_model_that_caps_or_scales_its_logits_is_not_chunked(architecture, setting, ids, keep):
    model = tiny(architecture, **setting)
    assert not can_be_chunked(model, ids, logits(model, ids, keep))


def test_divergence_is_zero_of_the_same_and_that_of_the_definition_of_others(ids, keep):
    before, after = (predict(tiny(name), ids, keep, chunked=False) for name in ("llama", "qwen2"))
    (kl, scored), (same, _) = divergences(before, before, keep)
    assert kl.abs().max() == 0
    assert torch.equal(same, scored)
    (kl, _), (same, _) = divergences(before, after, keep)
    p, q = (each.states[:, :-1].double().log_softmax(-1) for each in (before, after))
    torch.testing.assert_close(kl[:, 0], (p.exp() * (p - q)).sum((1, 2)), rtol=1e-5, atol=0)
    torch.testing.assert_close(same[:, 0], (p.argmax(-1) == q.argmax(-1)).double().sum(1))
