"""Models that do not ask transformers' interface are seen and swapped inside their layers, or refused by name."""

import threading
from functools import cache

import pytest
import torch
from eager_maps import windows_of
from inside_models import SEEN_INSIDE, built, distance, look, run
from soundness import on_model
from torch.nn import functional

import sinkscope
from sinkscope.attention.given import given
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.handshake import TOKENS, handshake
from sinkscope.hooks.inside import probed_inside
from sinkscope.hooks.probe import probed

pytestmark = pytest.mark.slow

REFUSED = {
    "big_bird": ({"is_decoder": True}, "its forward exchanges some of its modules"),
    "megatron-bert": ({}, r"not causal: a token attends to later ones .* is_decoder=True"),
    "xlm": ({"emb_dim": 32, "n_layers": 4, "n_heads": 4}, "not causal"),
    "xlnet": ({"d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 64, "max_position_embeddings": None}, "not causal"),
    "cpmant": ({"dim_head": 8, "dim_ff": 64, "prompt_length": 4}, "none of its attention is from token to token"),
    "prophetnet": (
        {
            "num_hidden_layers": None,
            "num_decoder_layers": 4,
            "num_encoder_layers": 4,
            "num_decoder_attention_heads": 4,
            "num_encoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
            "add_cross_attention": False,
        },
        "prophetnet.decoder.layers.0.self_attn weighs more than once",
    ),
    "reformer": (
        {
            "is_decoder": True,
            "attention_head_size": 8,
            "feed_forward_size": 64,
            "axial_pos_shape": [4, 16],
            "axial_pos_embds_dim": [16, 16],
            "local_attn_chunk_length": 8,
            "attn_layers": ["local"] * 4,
        },
        "none of its layers uses",
    ),
    "mamba": ({"state_size": 4}, "none of its layers uses transformers' attention interface, softmax, or"),
    "rwkv": ({"attention_hidden_size": 32, "context_length": 64}, "none of its layers uses"),
    "xlstm": ({"num_heads": 4, "embedding_dim": 32, "num_blocks": 4}, "none of its layers uses"),
}
NORMALIZERS = ("sigmoid", "sparsemax", "relu", "softpick")

SOME = ("bloom", "falcon, alibi", "gpt_neo", "openai-gpt", "xglm", "megatron-bert")

# The weights that Falcon returns with ALiBi are not those that it applies: ALiBi is in them twice.
RETURNED = [name for name in SEEN_INSIDE if name != "falcon, alibi"]


@cache
def model_of(name):
    return built(name, **SEEN_INSIDE[name])


@pytest.fixture
def padded():
    """Three windows, one of them padded on the left."""
    return torch.arange(24) >= torch.tensor([[0], [7], [0]])


@pytest.mark.parametrize("name", SEEN_INSIDE)
def test_layers_are_seen_inside_under_their_own_numbers(name, ids):
    shown = handshake(model_of(name), ids)
    assert shown.inside
    assert [site.layer for site in shown.sites] == [0, 1, 2, 3]
    assert shown.left_out == {}
    assert shown.delta < 1e-5
    assert shown.anchored == (name != "mpt")


@pytest.mark.parametrize("name", RETURNED)
def test_masses_are_those_of_the_weights_that_the_model_returns(name, ids, padded):
    model = model_of(name)
    heads = sinkscope.measure(model, input_ids=ids, attention_mask=padded).heads
    # Only a model that was made for it returns the weights that it applies.
    eager = built(name, **(SEEN_INSIDE[name] | {"attn_implementation": "eager"}))
    windows = [torch.stack(run(eager, each, output_attentions=True).attentions) for each in windows_of(ids, padded)]
    on_first = torch.cat([weights[:, 0, :, 1:, 0] for weights in windows], dim=-1)
    by_hand = on_first.sum(-1) / (on_first > 0).sum(-1)
    found = torch.tensor(heads.sort_values(["layer", "head"])["first_mass"].tolist()).view(4, 4)
    torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SEEN_INSIDE)
def test_our_own_softmax_changes_nothing_and_another_normalizer_does(name, ids):
    model = model_of(name)
    native, before = run(model, ids).logits, on_model(model)
    with sinkscope.patched(model):
        assert distance(run(model, ids).logits, native) < 2e-6
    with sinkscope.patched(model, "sparsemax"):
        assert distance(run(model, ids).logits, native) > 1e-3
    assert torch.equal(run(model, ids).logits, native)
    assert on_model(model) == before


@pytest.mark.parametrize(
    ("name", "normalizer"),
    [*((name, "softmax1") for name in SOME), *(("gpt_neo", each) for each in NORMALIZERS)],
)
def test_no_normalizer_lets_a_token_see_later_ones(name, normalizer, ids):
    model, other = model_of(name), ids.clone()
    other[:, 12:] = 3 + (other[:, 12:] + 50) % 297
    with sinkscope.patched(model, normalizer):
        once, again = run(model, ids).logits, run(model, other).logits
    assert distance(again[:, :12], once[:, :12]) < 1e-5
    assert distance(again[:, 12:], once[:, 12:]) > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_no_normalizer_lets_a_token_see_padding(name, ids, padded):
    model, other = model_of(name), torch.where(padded, ids, 9)
    with sinkscope.patched(model, "sigmoid"):
        once, again = run(model, ids, padded).logits, run(model, other, padded).logits
    assert distance(again[padded], once[padded]) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_right_is_refused_by_name(name, ids):
    settings, reason = REFUSED[name]
    model = built(name, **settings)
    with pytest.raises(UnsupportedModelError, match=rf"{type(model).__name__} .{name}. cannot be measured: .*{reason}"):
        handshake(model, ids)


def test_scores_that_depend_on_the_length_of_the_text_take_only_what_does_not_see_it(ids):
    model = model_of("mpt")
    with (
        pytest.raises(UnsupportedModelError, match="softmax1 has no meaning in MptForCausalLM"),
        sinkscope.patched(model, "softmax1"),
    ):
        pytest.fail("it was let in")
    with sinkscope.patched(model, "entmax"):
        whole, part = run(model, ids).logits, run(model, ids[:, :9]).logits
    assert distance(part, whole[:, :9]) < 1e-4


def test_values_are_seen_only_where_the_layer_shows_them(ids):
    report = sinkscope.measure(model_of("bloom"), input_ids=ids)
    assert report.heads[["value_norm_ratio", "output_norm"]].isna().all(axis=None)
    assert "not their values" in report.metadata["undefined"]["value_norm_ratio, output_norm"]
    assert "own layers call" in report.metadata["attention"]["seen_at"]
    report = sinkscope.measure(model_of("falcon"), input_ids=ids)
    assert report.heads[["value_norm_ratio", "output_norm"]].notna().all(axis=None)
    assert "value_norm_ratio, output_norm" not in report.metadata["undefined"]


def test_local_layers_are_told_by_what_they_see(ids):
    layers = sinkscope.measure(model_of("gpt_neo"), input_ids=ids).metadata["attention"]["layers"].values()
    assert [layer["type"] for layer in layers] == ["full_attention", "sliding_attention"] * 2


@pytest.mark.parametrize("name", ["bloom", "gpt_neo", "xglm", "falcon, alibi"])
def test_a_comparison_goes_through_the_same_seam(name, ids, padded):
    report = sinkscope.compare(model_of(name), input_ids=ids, attention_mask=padded, normalizers=["softmax1"])
    assert report.metadata["comparison"]["identity_delta"] < 1e-5
    before, after = report.summary["first_mass"]
    assert after < before


@pytest.mark.parametrize("name", ["bloom", "falcon", "gpt_neo", "megatron-bert"])
def test_generation_with_a_cache_is_generation_without(name, ids, padded):
    model, found = model_of(name), []
    with sinkscope.patched(model, "sparsemax"):
        for use_cache in (True, False):
            given_ids = {"input_ids": ids, "attention_mask": padded.long()}
            found.append(
                model.generate(**given_ids, max_new_tokens=6, do_sample=False, use_cache=use_cache, pad_token_id=0)
            )
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_gradients_are_those_of_the_model(name, ids):
    model, found = built(name, **SEEN_INSIDE[name]), []
    for patch in (False, True):
        model.zero_grad()
        if patch:
            with sinkscope.patched(model):
                model(input_ids=ids, labels=ids).loss.backward()
        else:
            model(input_ids=ids, labels=ids).loss.backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    assert distance(*found) < 1e-5


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_by_a_handler_that_raises(ids, raised):
    model = model_of("bloom")
    native, before = run(model, ids).logits, on_model(model)

    def handler(site, _call, own):
        if site.layer == 2:
            raise raised("in the handler")
        return own()

    with pytest.raises(raised, match="in the handler"), probed_inside(model, handler):
        run(model, ids)
    assert on_model(model) == before
    assert torch.equal(run(model, ids).logits, native)


def test_only_the_modules_of_the_model_are_watched_and_only_while_they_run(ids):
    model, other, found = model_of("bloom"), model_of("xglm"), []
    native = run(other, ids).logits
    with probed_inside(model, lambda _site, _call, own: torch.zeros_like(own())) as probe:
        thread = threading.Thread(target=lambda: found.append(run(other, ids).logits))
        thread.start()
        run(model, ids)
        thread.join()
        assert torch.equal(run(other, ids).logits, native)
        assert functional.softmax(torch.zeros(1, 1, 4, 4), dim=-1).sum() == 4
    assert torch.equal(found[0], native)
    assert probe.seen == 4


@pytest.mark.parametrize("outer", [probed, probed_inside])
@pytest.mark.parametrize("inner", [probed, probed_inside])
def test_a_second_probe_is_refused_wherever_it_looks(ids, outer, inner):
    model = model_of("gpt2, upcast" if outer is probed_inside else "bloom")
    with pytest.raises(ValueError, match="without an open probe"), outer(model, look), inner(model, look):
        run(model, ids)


def changed(model, name, change):
    """The model with one of its modules doing more: `change` gets the module's own forward and its arguments."""
    module = model.get_submodule(name)
    own = module.forward
    module.forward = lambda *args, **kwargs: change(own, *args, **kwargs)
    return model


def test_softmax_that_is_no_attention_passes_and_is_named(ids):
    def route(own, states, residual):
        functional.softmax(states.flatten(0, 1)[:, :8], dim=-1)
        return own(states, residual)

    model = changed(built("bloom", **SEEN_INSIDE["bloom"]), "transformer.h.1.mlp", route)
    report = sinkscope.measure(model, input_ids=ids)
    assert report.metadata["attention"]["calls_left_out"] == {"transformer.h.1.mlp": "not of queries and keys"}
    assert report.heads.equals(sinkscope.measure(model_of("bloom"), input_ids=ids).heads)


def test_a_module_that_weighs_twice_is_refused(ids):
    def twice(own, *args, **kwargs):
        own(*args, **kwargs)
        return own(*args, **kwargs)

    model = changed(built("bloom", **SEEN_INSIDE["bloom"]), "transformer.h.1.self_attention", twice)
    with pytest.raises(UnsupportedModelError, match=r"transformer.h.1.self_attention weighs more than once"):
        handshake(model, ids)


def test_weights_that_are_changed_after_softmax_are_refused(ids):
    def gated(_own, weights):
        return 0.5 * weights

    model = changed(built("bloom", **SEEN_INSIDE["bloom"]), "transformer.h.1.self_attention.attention_dropout", gated)
    with pytest.raises(UnsupportedModelError, match="returns other weights than its softmax gives"):
        handshake(model, ids)


def test_weights_that_the_model_does_not_return_are_refused(ids):
    def silent(own, *args, **kwargs):
        output, _ = own(*args, **kwargs)
        return output, None

    model = changed(built("bloom", **SEEN_INSIDE["bloom"]), "transformer.h.1.self_attention", silent)
    with pytest.raises(UnsupportedModelError, match="4 of its layers call softmax and 3 return their weights"):
        handshake(model, ids)


def test_what_a_layer_does_only_beyond_the_handshake_is_found_during_the_run(ids):
    def look_ahead(own, states, residual, alibi, attention_mask, **kwargs):
        if states.shape[1] > TOKENS:
            attention_mask = torch.zeros_like(attention_mask)
        return own(states, residual, alibi, attention_mask, **kwargs)

    model = changed(built("bloom", **SEEN_INSIDE["bloom"]), "transformer.h.1.self_attention", look_ahead)
    with pytest.raises(UnsupportedModelError, match=r"h.1.self_attention cannot be measured: its output differs"):
        sinkscope.measure(model, input_ids=ids)


@torch.no_grad()
def saturated(name, model):
    """The model with scores so large that softmax1 is softmax to the last bit."""
    for key, module in model.named_modules():
        if key.endswith("query_key_value"):
            module.bias.view(4, 3, 8)[:, :2] = 10
        elif key.endswith(("q_proj", "k_proj", "query", "key")):
            module.bias.fill_(10)
        elif key.endswith("Wqkv"):
            more = torch.tensor([10.0, 10, 0]).repeat_interleave(32)
            module.register_forward_hook(lambda _, __, output, more=more: output + more)
    return model


@pytest.mark.parametrize("name", ["bloom", "xglm", "megatron-bert", "mpt"])
def test_scores_at_which_softmax1_is_softmax_are_no_reason_to_refuse_nor_to_take_them_for_anchored(name, ids):
    model = saturated(name, built(name, **SEEN_INSIDE[name]))
    shown = handshake(model, ids)
    assert [site.layer for site in shown.sites] == [0, 1, 2, 3]
    assert shown.anchored == (name != "mpt")
    if shown.anchored:
        found = []
        for normalizer in ("softmax", "softmax1"):
            with sinkscope.patched(model, normalizer):
                found.append(run(model, ids).logits)
        assert torch.equal(*found)


@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_softmax_that_decides_nothing_is_refused(name, ids):
    model = built(name, **SEEN_INSIDE[name])
    with torch.no_grad():
        for layer in model.transformer.h:
            layer.self_attention.dense.weight.zero_()
    with pytest.raises(UnsupportedModelError, match="its logits do not depend on the weights that were seen"):
        handshake(model, ids)


@pytest.mark.parametrize("masked", [-torch.inf, -3.4e38, -1e9, -1e4])
def test_hidden_keys_are_told_by_any_constant_a_mask_may_hold(masked):
    keep = torch.tensor([[False, True, True, True, True]])
    seen = keep[:, None, None] & torch.ones(5, 5, dtype=torch.bool).tril()
    call = given(torch.zeros(1, 2, 5, 5).masked_fill(~seen, masked), torch.float32, -3.4e38, keep)
    assert torch.equal(call.visible(), seen.expand(1, 2, 5, 5))


def test_a_low_score_of_an_earlier_token_is_a_score():
    call = given(torch.full((1, 1, 4, 4), -9e4), torch.float32, -3.4e38)
    assert torch.equal(call.visible()[0, 0], torch.ones(4, 4, dtype=torch.bool).tril())


def test_the_lowest_half_float_is_a_mask_in_a_model_of_half_floats():
    scores = torch.full((1, 1, 1, 2), -65504.0)
    assert not given(scores, torch.float16, torch.finfo(torch.float16).min).visible().any()
    assert given(scores, torch.float32, torch.finfo(torch.float32).min).visible().all()


def test_padding_that_a_layer_shows_is_visible():
    call = given(torch.zeros(1, 1, 3, 3), torch.float32, -3.4e38, torch.tensor([[False, True, True]]))
    assert torch.equal(call.visible()[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())


def test_the_output_of_given_scores_is_their_weights():
    scores = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    weights = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    call = given(weights, torch.float32, -3.4e38)
    torch.testing.assert_close(sinkscope.attention.dense.attend(call), weights.softmax(-1).transpose(1, 2))
