"""Logits that are no numbers are refused with the module, the cause and the remedy; ruled-out tokens are no fault."""

import math

import pytest
import torch
from accelerate import cpu_offload
from builders import tiny
from inside_models import SEEN_INSIDE, built
from torch import nn

import sinkscope
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.finite import fault
from sinkscope.hooks.handshake import handshake
from sinkscope.hooks.tolerances import difference


def made(name):
    return built(name, **SEEN_INSIDE[name]) if name in SEEN_INSIDE else tiny(name)


@torch.no_grad()
def put(model, name, value, where=(1, 2)):
    model.get_parameter(name)[where if model.get_parameter(name).dim() > 1 else where[:1]] = value
    return model


@pytest.mark.parametrize(
    ("architecture", "module", "weight"),
    [
        ("llama", "model.layers.1.mlp.up_proj", "weight"),
        ("llama", "model.layers.2.input_layernorm", "weight"),
        ("qwen2", "model.layers.1.self_attn.k_proj", "bias"),
        ("llama", "lm_head", "weight"),
        ("bloom", "transformer.h.0.self_attention.query_key_value", "weight"),
    ],
)
def test_a_weight_that_is_no_number_is_named(architecture, module, weight, ids):
    model = put(made(architecture), f"{module}.{weight}", math.inf if weight == "bias" else math.nan)
    reason = rf"output of {module} is not finite, because 1 of the \d+ values of {module}.{weight} are not"
    with pytest.raises(UnsupportedModelError, match=f"cannot be measured: the {reason}"):
        sinkscope.measure(model, input_ids=ids)


@pytest.mark.parametrize(
    ("architecture", "module"),
    [("llama", "model.layers.2.mlp.down_proj"), ("gpt2", "transformer.h.1.mlp.c_proj"), ("llama", "lm_head")],
)
def test_an_overflow_in_half_precision_names_the_layer_and_what_would_do(architecture, module, ids):
    model = made(architecture).half()
    with torch.no_grad():
        model.get_submodule(module).weight.copy_(6e4 * model.get_submodule(module).weight.sign())
    reason = f"the output of {module} is not finite although .* float16 ends at 65504; load the model in bfloat16 or"
    with pytest.raises(UnsupportedModelError, match=reason):
        handshake(model, ids)
    for dtype in (torch.bfloat16, torch.float32):
        assert fault(model.to(dtype), ids, model(input_ids=ids).logits) is None


def test_what_goes_wrong_between_modules_is_the_layers(ids):
    model = made("llama")
    layer = model.model.layers[1]
    own = layer.post_attention_layernorm.forward
    layer.post_attention_layernorm.forward = lambda states: own(states) if states.isfinite().all() else states
    attention = layer.self_attn.forward
    layer.self_attn.forward = lambda *args, **kwargs: (torch.full_like(attention(*args, **kwargs)[0], 3e38), None)
    model.model.layers[0].mlp.register_forward_hook(lambda *given: torch.full_like(given[2], 3e38))
    with pytest.raises(UnsupportedModelError, match=r"the output of model.layers.1 is not finite .* in float64"):
        handshake(model, ids)


def test_weights_that_are_elsewhere_are_not_called_sound(ids):
    model = put(made("llama"), "model.layers.1.mlp.up_proj.weight", math.nan)
    cpu_offload(model, execution_device="cpu")
    with pytest.raises(UnsupportedModelError, match=r"output of model.layers.1.mlp.up_proj is not .* are offloaded"):
        handshake(model, ids)


def test_values_that_leave_the_format_only_in_the_text_itself_are_told_from_more_than_softmax(ids):
    model = put(made("llama"), "model.embed_tokens.weight", math.nan, (299,))
    text = ids.clamp(max=298)
    text[:, 20] = 299
    assert handshake(model, text).delta < 1e-5
    with pytest.raises(UnsupportedModelError, match=r"self_attn cannot be measured: its output is not finite over"):
        sinkscope.measure(model, input_ids=text)
    with pytest.raises(UnsupportedModelError, match=r"cannot be compared: its output is not finite over this text"):
        sinkscope.compare(model, input_ids=text, normalizers=["softmax1"])


@torch.no_grad()
def ruling_out(name, tokens):
    """A model with a padded vocabulary: the last tokens have logits of -inf."""
    model = made(name)
    model.lm_head.bias = nn.Parameter(torch.zeros(300))
    model.lm_head.bias[tokens:] = -math.inf
    return model


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_a_padded_vocabulary_is_measured_and_compared_like_any_other(name, ids):
    model, same, ids = ruling_out(name, 290), made(name), ids.clamp(max=289)
    with torch.no_grad():
        assert model(input_ids=ids).logits[..., 290:].isinf().all()
    shown, wanted = handshake(model, ids), handshake(same, ids)
    assert (shown.chunked, shown.delta < 1e-5) == (wanted.chunked, True)
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax1"])
    assert report.heads.equals(sinkscope.compare(same, input_ids=ids, normalizers=["softmax1"]).heads)
    after = report.summary.iloc[1]
    assert math.isfinite(after["perplexity"])
    assert 0 < after["kl_to_baseline"] < 10
    assert report.metadata["comparison"]["identity_delta"] < 1e-5


def test_equal_infinities_are_equal_and_others_are_not():
    low, high = -math.inf, math.inf
    assert difference(torch.tensor([1.0, low]), torch.tensor([2.0, low])) == pytest.approx(0.5)
    assert difference(torch.tensor([high, low]), torch.tensor([high, low])) == 0
    for ours, theirs in (([1, 0], [1, low]), ([1, low], [1, 0]), ([1, low], [1, high]), ([1, math.nan], [1, low])):
        assert not difference(torch.tensor(ours).float(), torch.tensor(theirs).float()) < 1e30
