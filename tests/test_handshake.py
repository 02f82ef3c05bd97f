"""Models are measured only if what is measured is what they compute."""

import pytest
import torch
from conftest import ARCHITECTURES, tiny
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

import sinkscope
from sinkscope.attention import Call, dense
from sinkscope.errors import UnsupportedModelError
from sinkscope.handshake import TOKENS, agreement, difference, handshake

NO_ATTENTION = {"mamba": {"state_size": 4}, "rwkv": {"attention_hidden_size": 32, "context_length": 64}}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_that_only_attend_are_accepted(architecture, ids):
    shown = handshake(tiny(architecture), ids)
    assert [site.layer for site in shown.sites] == [0, 1, 2, 3]
    assert shown.left_out == {}
    assert (shown.inside, shown.shows_values, shown.anchored) == (False, True, True)
    assert shown.delta < 1e-5


@pytest.mark.parametrize("architecture", NO_ATTENTION)
def test_models_without_attention_are_refused_by_name(architecture, ids, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, architecture, NO_ATTENTION[architecture])
    model = tiny(architecture)
    with pytest.raises(
        UnsupportedModelError, match=f"{type(model).__name__} .{architecture}. cannot be measured: none"
    ):
        sinkscope.measure(model, input_ids=ids)


@pytest.fixture
def replaced(monkeypatch):
    """Put a function in the place of sdpa: it gets the output and the query, and returns another output."""
    own = AttentionInterface._global_mapping["sdpa"]

    def replace(change):
        def attend(module, query, key, value, mask, **arguments):
            output, weights = own(module, query, key, value, mask, **arguments)
            return change(output, query), weights

        monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)

    return replace


def test_layers_that_do_more_than_softmax_are_refused(replaced, ids):
    replaced(lambda output, _: 1.01 * output)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .llama. cannot be measured: its layers do more"):
        sinkscope.measure(tiny("llama"), input_ids=ids)


def test_a_model_that_is_never_twice_the_same_is_refused(replaced, ids):
    replaced(lambda output, _: output + 1e-4 * torch.randn_like(output))
    with pytest.raises(UnsupportedModelError, match="its logits change from one forward to the next"):
        sinkscope.measure(tiny("llama"), input_ids=ids)


def test_a_model_whose_output_is_not_a_number_is_refused(replaced, ids):
    replaced(lambda output, _: output * torch.nan)
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM .* cannot be measured"):
        sinkscope.measure(tiny("llama"), input_ids=ids)


def test_what_a_layer_does_only_beyond_the_handshake_is_found_during_the_run(replaced, ids):
    replaced(lambda output, query: 1.01 * output if query.shape[2] > TOKENS else output)
    model = tiny("llama")
    assert handshake(model, ids).delta < 1e-5
    with pytest.raises(UnsupportedModelError, match=r"model.layers.0.self_attn cannot be measured: its output differs"):
        sinkscope.measure(model, input_ids=ids)


def calls_pooling(model):
    """The model with one more call in its first layer: a single query on a single key."""
    extra, one = model.model.layers[0].mlp, torch.zeros(1, 4, 1, 8)

    def pool(*_):
        AttentionInterface().get_interface("sdpa", eager_attention_forward)(extra, one, one, one, None, scaling=1.0)

    model.model.layers[0].register_forward_pre_hook(pool)
    return model


def test_calls_that_are_not_of_tokens_are_left_out_and_named(ids):
    report = sinkscope.measure(calls_pooling(tiny("llama")), input_ids=ids)
    reason = f"1 queries on 1 keys for {TOKENS} tokens"
    assert report.metadata["attention"]["calls_left_out"] == {"model.layers.0.mlp": reason}
    assert report.heads.equals(sinkscope.measure(tiny("llama"), input_ids=ids).heads)


def test_a_model_that_never_attends_from_token_to_token_is_refused(ids):
    model = calls_pooling(tiny("llama"))
    for layer in model.model.layers:
        layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UnsupportedModelError, match=r"none of its attention is from token to token .*layers.0.mlp"):
        sinkscope.measure(model, input_ids=ids)


def random_call(length, mask=None):
    generator = torch.Generator().manual_seed(length)
    tensors = (torch.randn(2, 4, length, 8, generator=generator) for _ in range(3))
    return Call(*tensors, scale=0.4, mask=mask, causal=mask is None)


@pytest.mark.parametrize("length", [1, 2, 3, 18, 40])
def test_our_own_output_agrees_with_itself_and_a_window_does_not(length):
    call, keep = random_call(length), torch.ones(2, length, dtype=torch.bool)
    assert agreement(call, dense.attend(call), keep) < 1e-6
    windowed = random_call(length, torch.ones(length, length, dtype=torch.bool).tril().triu(-16)[None, None])
    assert (agreement(call, dense.attend(windowed), keep) > 0.01) == (length > TOKENS)


def test_padding_may_come_out_as_anything_and_real_rows_may_not():
    call, keep = random_call(20), torch.arange(20) < torch.tensor([[20], [14]])
    output = dense.attend(call)
    output[1, 14:] = torch.nan
    assert agreement(call, output, keep) < 1e-6
    output[0, 19] = torch.nan
    assert not agreement(call, output, keep) < 1e-6


def test_a_difference_is_relative_to_the_largest_value():
    ours, theirs = torch.tensor([1.0, 10.0]), torch.tensor([1.5, 10.0])
    assert difference(ours, theirs) == pytest.approx(0.05)
    assert difference(torch.zeros(2), torch.zeros(2)) == 0
