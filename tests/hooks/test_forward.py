import math
from itertools import pairwise

import pytest
import torch
from builders import tiny

from sinkscope.hooks import predictions
from sinkscope.hooks.forward import evaluating, logits
from sinkscope.hooks.predictions import Predictions, losses


@pytest.fixture(scope="module")
def model():
    return tiny("llama")


@pytest.fixture
def found():
    return torch.randn(3, 6, 11, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def targets():
    return torch.randint(0, 11, (3, 6), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("at_once", [1, 70, 1 << 24])
def test_every_token_but_a_windows_first_is_scored_exactly_once(found, targets, monkeypatch, at_once):
    monkeypatch.setattr(predictions, "LOGITS_AT_ONCE", at_once)
    sums, counts = losses(Predictions(found), targets)
    assert counts.flatten().tolist() == [5, 5, 5]
    for window in range(3):
        scores = found[window].double().log_softmax(-1)
        nll = -sum(float(scores[now, targets[window, then]]) for now, then in pairwise(range(6)))
        assert float(sums[window, 0]) == pytest.approx(nll, rel=1e-6)


def test_losses_are_added_up_in_double_precision(targets):
    sums, counts = losses(Predictions(torch.zeros(3, 6, 11, dtype=torch.bfloat16)), targets)
    assert sums.dtype == counts.dtype == torch.float64
    torch.testing.assert_close(sums, counts * math.log(11), rtol=1e-6, atol=0)


def test_a_model_is_given_token_ids_and_nothing_else(model, ids):
    seen = {}
    hook = model.register_forward_pre_hook(lambda _, __, arguments: seen.update(arguments), with_kwargs=True)
    logits(model, ids)
    hook.remove()
    assert set(seen) == {"input_ids", "use_cache"}
    assert seen["use_cache"] is False


def test_no_gradient_is_kept(model, ids):
    assert not logits(model, ids).requires_grad


@pytest.mark.parametrize("raised", [False, True])
def test_only_what_was_training_trains_again(raised):
    model = tiny("llama").train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]

    def enter():
        with evaluating(model):
            assert not any(module.training for module in model.modules())
            if raised:
                raise KeyboardInterrupt

    if raised:
        with pytest.raises(KeyboardInterrupt):
            enter()
    else:
        enter()
    assert [module.training for module in model.modules()] == before
    assert any(before)
    assert not all(before)
