"""Models are measured only if what is measured is what they compute."""

import pytest
import torch
from builders import ARCHITECTURES, tiny
from torch import nn
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

import sinkscope
from sinkscope.attention import Call, dense
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.handshake import TOKENS, agreement, difference, handshake

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
    call = random_call(length)
    assert agreement(call, dense.attend(call)) < 1e-6
    windowed = random_call(length, torch.ones(length, length, dtype=torch.bool).tril().triu(-16)[None, None])
    assert (agreement(call, dense.attend(windowed)) > 0.01) == (length > TOKENS)


def test_an_output_that_is_no_number_agrees_with_nothing():
    call = random_call(20)
    output = dense.attend(call)
    output[0, 19] = torch.nan
    assert not agreement(call, output) < 1e-6


def test_a_difference_is_relative_to_the_largest_value():
    ours, theirs = torch.tensor([1.0, 10.0]), torch.tensor([1.5, 10.0])
    assert difference(ours, theirs) == pytest.approx(0.05)
    assert difference(torch.zeros(2), torch.zeros(2)) == 0


def by_itself(model, name, attend):
    """The model with one of its attention modules attending by itself: attend(module, states of its heads)."""
    module = model.get_submodule(name)

    def forward(hidden_states, *_, **__):
        heads = hidden_states.unflatten(-1, (4, -1)).transpose(1, 2)
        return attend(module, heads).transpose(1, 2).flatten(2), None

    module.forward = forward
    return model


def fused(_module, heads):
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def own_softmax(_module, heads):
    hidden = torch.ones(heads.shape[2], heads.shape[2], dtype=torch.bool).triu(1)
    return (heads @ heads.mT).masked_fill(hidden, -1e9).softmax(-1) @ heads


def one_head(_module, heads):
    """Without an axis of heads, and of a batch of one without that as well."""
    flat = heads.transpose(1, 2).flatten(2).squeeze(0)
    found = functional.softmax(flat @ flat.mT + torch.full(flat.shape[:1] * 2, -1e9).triu(1), dim=1) @ flat
    return found[None].unflatten(-1, (4, -1)).transpose(1, 2)


def whole(module, heads):
    attention = vars(module).setdefault("whole", nn.MultiheadAttention(32, 4, batch_first=True).eval())
    states = heads.transpose(1, 2).flatten(2)
    hidden = torch.ones(states.shape[1], states.shape[1], dtype=torch.bool).triu(1)
    found, _ = attention(states, states, states, attn_mask=hidden, need_weights=False)
    return found.unflatten(-1, (4, -1)).transpose(1, 2)


@pytest.mark.parametrize("attend", [fused, own_softmax, one_head, whole])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_layer_that_attends_past_the_seam_is_not_listed_as_one_without_attention(architecture, attend, ids):
    name = {"llama": "model.layers.1.self_attn", "gpt2": "transformer.h.1.attn"}[architecture]
    model = by_itself(tiny(architecture), name, attend)
    reason = f"cannot be measured: {name} attends from token to token where that cannot be seen"
    with pytest.raises(UnsupportedModelError, match=reason):
        sinkscope.measure(model, input_ids=ids)
    with pytest.raises(UnsupportedModelError, match=reason), sinkscope.patched(model, "softmax1"):
        pytest.fail("it was let in")


def test_attention_as_a_whole_among_layers_that_call_softmax_is_not_left_out_either(ids):
    model = tiny("gpt2", reorder_and_upcast_attn=True, attn_implementation="eager")
    model = by_itself(model, "transformer.h.1.attn", whole)
    with pytest.raises(UnsupportedModelError, match=r"transformer.h.1.attn attends from token to token where that"):
        handshake(model, ids)


def routing(states):
    functional.softmax(states[..., :TOKENS], dim=-1)


def depth(states):
    functional.softmax(torch.stack([states, states], dim=2) @ states[..., None], dim=2)


def patches(states):
    few = states[:, ::2].unflatten(-1, (4, -1)).transpose(1, 2)
    functional.scaled_dot_product_attention(few, few, few)


def crossing(states):
    heads = states.unflatten(-1, (4, -1)).transpose(1, 2)
    functional.scaled_dot_product_attention(heads, heads[:, :, :5], heads[:, :, :5])


@pytest.mark.parametrize("other", [routing, depth, patches, crossing])
def test_what_is_not_from_token_to_token_may_be_weighed_anywhere(other, ids):
    model = tiny("llama")
    handle = model.model.layers[1].mlp.register_forward_pre_hook(lambda _, given: other(given[0]))
    shown = handshake(model, ids)
    assert [site.layer for site in shown.sites] == [0, 1, 2, 3]
    handle.remove()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_texts_do_not_look_like_attention_that_is_missing(length, ids):
    model = tiny("gpt_oss")
    model.model.layers[1].mlp.register_forward_pre_hook(lambda _, given: depth(given[0]))
    assert len(handshake(model, ids[:, :length]).sites) == 4
