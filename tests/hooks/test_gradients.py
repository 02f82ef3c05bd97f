"""Gradient norms are those of autograd by hand and of finite differences, and leave no trace."""

import pytest
import torch
from builders import tiny
from soundness import state
from torch import nn

import sinkscope
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.gradients import gradient_figures, gradient_norms

ARCHITECTURES = ("llama", "gpt2", "gemma2", "gemma3_text", "opt", "gpt_oss")


@pytest.fixture
def keep():
    """The first row padded on the left, the second on the right."""
    place = torch.arange(24)
    return torch.stack([place >= 5, place < 20, place >= 0])


def mean_loss(model, embedded, ids):
    logits = model(inputs_embeds=embedded, use_cache=False).logits
    return nn.functional.cross_entropy(logits[0, :-1], ids[1:])


def by_hand(model, ids):
    """The norms of one window without padding, by autograd on embeddings that are given to the model."""
    embedded = model.get_input_embeddings()(ids[None]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(mean_loss(model, embedded, ids), embedded)
    return gradient[0], gradient[0].double().norm(dim=-1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_norms_are_those_of_autograd_by_hand(architecture, ids, keep):
    model = tiny(architecture)
    found = gradient_norms(model, ids, keep)
    assert found.shape == ids.shape
    assert found.dtype == torch.float64
    for row in range(3):
        _, wanted = by_hand(model, ids[row][keep[row]])
        torch.testing.assert_close(found[row][keep[row]], wanted, rtol=1e-4, atol=1e-7)
    assert torch.equal(found.isnan(), ~keep)
    assert (found[2, :-1] > 0).all()
    assert found[2, -1] == 0


# Others normalise in fp32, whatever the model is in.
@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "opt"])
def test_norms_are_the_slopes_of_finite_differences(architecture, ids):
    model, window = tiny(architecture).double(), ids[0, :8]
    found = gradient_norms(model, window[None], torch.ones(1, 8, dtype=torch.bool))[0]
    gradient, _ = by_hand(model, window)
    embedded, step = model.get_input_embeddings()(window[None]).detach(), 1e-5
    for position in range(7):
        move = torch.zeros_like(embedded)
        move[0, position] = step * gradient[position] / gradient[position].norm()
        with torch.no_grad():
            rise = mean_loss(model, embedded + move, window) - mean_loss(model, embedded - move, window)
        assert float(found[position]) == pytest.approx(float(rise) / (2 * step), rel=1e-5)


def test_a_model_in_half_precision_has_about_the_same_norms(ids, keep):
    wanted = gradient_norms(tiny("llama"), ids, keep)
    found = gradient_norms(tiny("llama").to(torch.bfloat16), ids, keep)
    assert torch.equal(found.isnan(), ~keep)
    assert float((found / wanted)[keep & (wanted > 0)].log().abs().median()) < 0.1


@pytest.mark.parametrize("normalizer", ["softmax", "softmax1", "entmax"])
def test_inside_a_patch_they_are_those_of_the_patched_model(normalizer, ids, keep):
    model = tiny("llama")
    native = gradient_norms(model, ids, keep)
    with sinkscope.patched(model, normalizer):
        found = gradient_norms(model, ids, keep)
        _, wanted = by_hand(model, ids[2])
    torch.testing.assert_close(found[2], wanted, rtol=1e-4, atol=1e-7)
    unchanged = torch.allclose(found, native, rtol=1e-5, atol=1e-7, equal_nan=True)
    assert unchanged == (normalizer == "softmax")


def traces(model):
    asked = {name: (each.requires_grad, each.grad) for name, each in model.named_parameters()}
    return state(model), asked, torch.is_grad_enabled()


@pytest.mark.parametrize("fails", [False, True])
def test_no_trace_is_left_also_after_an_exception(fails, ids, keep):
    model = tiny("llama").train()
    model.model.layers[1].eval()
    model.model.norm.weight.requires_grad_(requires_grad=False)
    before = traces(model)
    if fails:
        ids = ids + 300  # beyond the vocabulary
        with pytest.raises(IndexError), torch.no_grad():
            gradient_norms(model, ids, keep)
    else:
        with torch.inference_mode():
            gradient_norms(model, ids, keep)
    assert traces(model) == before


def test_a_window_of_one_token_predicts_nothing_and_has_no_norm(ids):
    keep = torch.zeros(3, 24, dtype=torch.bool)
    keep[:, 0] = True
    assert gradient_norms(tiny("llama"), ids, keep).isnan().all()


def missing():
    raise NotImplementedError


@pytest.mark.parametrize(
    ("embeddings", "reason"), [(missing, "cannot be found"), (lambda: nn.Embedding(300, 32), "was looked up 0 times")]
)
def test_an_embedding_that_cannot_be_reached_is_refused_in_a_line(embeddings, reason, ids, keep):
    model = tiny("llama")
    model.get_input_embeddings = embeddings
    with pytest.raises(UnsupportedModelError, match=f"^gradients cannot be had of LlamaForCausalLM: .* {reason}"):
        gradient_norms(model, ids, keep)


def test_an_embedding_without_influence_is_refused_in_a_line(ids, keep):
    model = tiny("llama")
    model.model.layers[0].register_forward_hook(lambda _, __, output: output.detach())
    with pytest.raises(UnsupportedModelError, match="its token embedding has no influence on its loss"):
        gradient_norms(model, ids, keep)


def test_ratios_are_means_over_windows_without_padding_and_the_last_token():
    nan = torch.nan
    norms = torch.tensor([[nan, 8.0, 1.0, 2.0, 3.0, 0.0], [6.0, 1.0, 2.0, 9.0, 0.0, nan]], dtype=torch.float64)
    found = gradient_figures(norms, ~norms.isnan())
    first, peak = [8 / 2, 6 / 4], [8 / 2, 9 / 2]
    assert found == pytest.approx(
        {
            "gradient_first_ratio": sum(first) / 2,
            "gradient_first_ratio_se": abs(first[0] - first[1]) / 2,
            "gradient_peak_ratio": sum(peak) / 2,
            "gradient_peak_ratio_se": abs(peak[0] - peak[1]) / 2,
        }
    )


def test_ratios_of_gradients_that_are_no_numbers_are_not_hidden():
    norms, keep = torch.ones(2, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.bool)
    norms[1, :2] = torch.nan
    assert torch.tensor(list(gradient_figures(norms, keep).values())).isnan().all()
    assert torch.tensor(list(gradient_figures(norms[:1, :2], keep[:1, :2]).values())).isnan().all()
