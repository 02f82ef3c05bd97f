"""Predictions that are made a few positions at a time are the model's own."""

import math

import pytest
import torch
from builders import ARCHITECTURES, tiny

from sinkscope.hooks import predictions
from sinkscope.hooks.forward import logits
from sinkscope.hooks.predictions import Predictions, can_be_chunked, losses, predict, standing


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_where_the_head_alone_makes_the_logits_their_loss_is_the_same(architecture, ids, monkeypatch):
    monkeypatch.setattr(predictions, "LOGITS_AT_ONCE", 3 * 300 * 5)
    model = tiny(architecture)
    native = logits(model, ids)
    whole = losses(predict(model, ids, chunked=False), ids)
    if not can_be_chunked(model, ids, native):
        assert architecture in {"gemma2", "cohere2"}
        return
    found = predict(model, ids, chunked=True)
    assert found.states.shape[-1] == 32
    torch.testing.assert_close(losses(found, ids), whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("architecture", "setting"), [("gemma2", {}), ("cohere2", {"logit_scale": 0.5})])
def test_a_model_that_caps_or_scales_its_logits_is_not_chunked(architecture, setting, ids):
    model = tiny(architecture, **setting)
    assert not can_be_chunked(model, ids, logits(model, ids))


def test_divergence_is_zero_of_the_same_and_that_of_the_definition_of_others(ids):
    before, after = (predict(tiny(name), ids, chunked=False) for name in ("llama", "qwen2"))
    found = standing(before, before, ids)
    assert found.divergence[0].abs().max() == 0
    assert torch.equal(*found.agreement)
    found = standing(before, after, ids)
    (kl, _), (same, _) = found.divergence, found.agreement
    p, q = (each.states[:, :-1].double().log_softmax(-1) for each in (before, after))
    torch.testing.assert_close(kl[:, 0], (p.exp() * (p - q)).sum((1, 2)), rtol=1e-5, atol=0)
    torch.testing.assert_close(same[:, 0], (p.argmax(-1) == q.argmax(-1)).double().sum(1))


TOKENS = 37


def made(seed, batch=2, positions=11):
    """Random logits that are peaked like a model's."""
    return 5 * torch.randn(batch, positions, TOKENS, generator=torch.Generator().manual_seed(seed))


def texts(batch=2, positions=11):
    """Token ids."""
    return torch.randint(0, TOKENS, (batch, positions), generator=torch.Generator().manual_seed(7))


def by_definition(before, after, ids):
    """Loss, KL and agreement of each window from whole logits in fp64, and the number of scored tokens."""
    p, q = (each[:, :-1].double().log_softmax(-1) for each in (before, after))
    loss = -q.gather(-1, ids[:, 1:, None])[..., 0]
    kl = torch.where(p == -math.inf, 0, p.exp() * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    return [each.sum(1, keepdim=True) for each in (loss, kl, same)], torch.full((len(ids), 1), loss.shape[1]).double()


def check(before, after, ids):
    found = standing(Predictions(before), Predictions(after), ids)
    wanted, scored = by_definition(before, after, ids)
    for (total, count), figure in zip((found.loss, found.divergence, found.agreement), wanted, strict=True):
        torch.testing.assert_close(total, figure, rtol=1e-6, atol=0)
        assert torch.equal(count, scored)
    alone, count = losses(Predictions(after), ids)
    torch.testing.assert_close(alone, wanted[0], rtol=1e-6, atol=0)
    assert torch.equal(count, scored)
    return found


@pytest.mark.parametrize("at_once", [1, 3 * TOKENS, 1 << 24])
@pytest.mark.parametrize("block", [1, 5 * TOKENS, 1 << 20])
def test_a_standing_is_that_of_whole_logits_however_they_are_cut(at_once, block, monkeypatch):
    monkeypatch.setattr(predictions, "LOGITS_AT_ONCE", at_once)
    monkeypatch.setattr(predictions, "BLOCK", block)
    check(made(0), made(1), texts())


def test_a_head_is_run_once_over_every_position_that_predicts():
    rows = {"before": 0, "after": 0}
    heads = {name: torch.nn.Linear(8, TOKENS, bias=False) for name in rows}
    for name, head in heads.items():
        head.register_forward_hook(lambda _, given, __, name=name: rows.update({name: rows[name] + given[0].shape[1]}))
    states = torch.randn(2, 11, 8, generator=torch.Generator().manual_seed(0))
    before, after = (Predictions(states, head) for head in heads.values())
    found = standing(before, after, texts())
    assert rows == {"before": 10, "after": 10}
    wanted, _ = by_definition(heads["before"](states), heads["after"](states), texts())
    torch.testing.assert_close(found.divergence[0], wanted[1].detach(), rtol=1e-6, atol=0)


def test_nothing_is_changed_that_a_standing_is_made_of():
    before, after = made(0), made(1)
    standing(Predictions(before), Predictions(after), texts())
    assert torch.equal(before, made(0))
    assert torch.equal(after, made(1))


def test_the_same_predictions_are_at_no_distance():
    found = standing(Predictions(made(0)), Predictions(made(0)), texts())
    assert found.divergence[0].abs().max() == 0
    assert torch.equal(*found.agreement)


def test_tokens_that_both_rule_out_cost_nothing():
    before, after = made(0), made(1)
    before[..., 30:] = after[..., 30:] = -math.inf
    ids = texts()
    found = check(before, after, ids.clamp(max=29))
    assert found.divergence[0].isfinite().all()


def test_a_token_that_only_the_second_rules_out_is_infinitely_far():
    before, after = made(0), made(1)
    after[1, 4, 0] = -math.inf
    ids = texts()
    ids[1, 5] = 0
    found = check(before, after, ids)
    assert found.divergence[0][:, 0].isinf().tolist() == found.loss[0][:, 0].isinf().tolist() == [False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_logit_that_is_no_number_leaves_its_window_without_figures(value, side):
    both = made(0), made(1)
    both[side][1, 4, 3] = value
    found = standing(Predictions(both[0]), Predictions(both[1]), texts())
    assert found.divergence[0].isnan().flatten().tolist() == [False, True]
    assert found.agreement[0].isnan().flatten().tolist() == [False, True]
    ids = texts()
    ids[1, 5] = 3
    assert losses(Predictions(both[side]), ids)[0].isnan().flatten().tolist() == [False, True]


def test_a_window_of_one_token_predicts_nothing():
    ids = torch.zeros(2, 1, dtype=torch.int64)
    found = standing(Predictions(made(0, positions=1)), Predictions(made(1, positions=1)), ids)
    for total, count in (found.loss, found.divergence, found.agreement):
        assert total.tolist() == count.tolist() == [[0], [0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_in_half_precision_are_read_in_single(dtype):
    check(made(0).to(dtype).float(), made(1).to(dtype).float(), texts())
    half = standing(Predictions(made(0).to(dtype)), Predictions(made(1).to(dtype)), texts())
    exact = standing(Predictions(made(0).to(dtype).float()), Predictions(made(1).to(dtype).float()), texts())
    assert torch.equal(half.divergence[0], exact.divergence[0])
