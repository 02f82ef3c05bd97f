"""patched(): another normalizer for as long as a block runs, and nothing of it afterwards."""

import copy

import pytest
import torch
from builders import ARCHITECTURES, tiny
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.attention import dense
from sinkscope.attention.swap import Swap
from sinkscope.hooks.handshake import handshake
from sinkscope.hooks.patch import plan
from sinkscope.hooks.probe import probed
from sinkscope.normalizers import NORMALIZERS, Modifier, Normalizer


def logits(model, ids, **arguments):
    with torch.no_grad():
        return model(input_ids=ids, **arguments).logits


def swapped(model, ids, normalizer, **arguments):
    with sinkscope.patched(model, normalizer, **arguments):
        return logits(model, ids)


def difference(one, other):
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_softmax_is_the_models_own(architecture, ids):
    model = tiny(architecture)
    assert difference(swapped(model, ids, "softmax"), logits(model, ids)) < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_under_every_normalizer_no_row_sees_a_later_token(architecture, ids):
    model = tiny(architecture)
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 5) % 300
    sites = handshake(model, ids).sites
    for card in NORMALIZERS.values():
        chosen = plan(sites, Swap(card))
        with probed(model, lambda site, call, _, chosen=chosen: dense.attend(call, chosen.swap(site))):
            before, after = logits(model, ids)[:, :-1], logits(model, other)[:, :-1]
        assert torch.isfinite(before).all(), card.name
        assert difference(after, before) < 1e-5, card.name


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss", "gpt2"])
@pytest.mark.parametrize("normalizer", ["softmax1", "entmax:alpha=1.5", "topk:k=3"])
def test_generation_with_a_cache_is_generation_without_one(architecture, normalizer, ids):
    model = tiny(architecture)
    length = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
    with sinkscope.patched(model, normalizer):
        cached = model.generate(ids, **length)
        plain = model.generate(ids, use_cache=False, **length)
    assert torch.equal(cached, plain)
    assert difference(swapped(model, ids, normalizer), logits(model, ids)) > 1e-3


# Along the gradient, in steps that the model's own single-precision parts can resolve; softpick has kinks to avoid.
@pytest.mark.parametrize(
    ("normalizer", "size"),
    [("softmax1", 3e-3), ("sink_logit:s=1", 3e-3), ("entmax:alpha=1.5", 3e-3), ("softpick", 3e-4), ("sigmoid", 3e-3)],
)
def test_gradients_are_those_of_the_swapped_model(normalizer, size, ids):
    model = tiny("llama").double()
    weight = model.model.layers[1].self_attn.q_proj.weight

    def loss():
        with sinkscope.patched(model, normalizer):
            return model(input_ids=ids, labels=ids).loss

    loss().backward()
    slope = weight.grad.norm()
    step = weight.grad / slope * size
    with torch.no_grad():
        weight += step
        above = loss()
        weight -= 2 * step
        below = loss()
    assert float((above - below) / (2 * size)) == pytest.approx(float(slope), rel=0.03)


def test_training_keeps_its_dropout(ids):
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.0, embd_pdrop=0.0).train()
    with sinkscope.patched(model, "softmax"):
        assert model.training
        one, other = logits(model, ids), logits(model, ids)
    assert difference(one, other) > 1e-3


def test_chosen_layers_and_heads_are_swapped_and_no_others(ids):
    model = tiny("llama")
    seen = {}

    def record(name):
        def hook(_, __, output):
            seen[name] = output[0].detach().clone()

        return hook

    handles = [layer.self_attn.register_forward_hook(record(index)) for index, layer in enumerate(model.model.layers)]
    logits(model, ids)
    before = dict(seen)
    swapped(model, ids, "topk:k=1", layers=[2])
    assert torch.allclose(seen[0], before[0], atol=1e-6)
    assert torch.allclose(seen[1], before[1], atol=1e-6)
    assert not torch.allclose(seen[2], before[2], atol=1e-3)
    for handle in handles:
        handle.remove()
    per_head = sinkscope.compare(model, input_ids=ids, normalizers=["topk:k=1"], heads=[(1, 3), (3, None)]).heads
    after = per_head[per_head["normalizer"] == "topk:k=1"].set_index(["layer", "head"])
    support = after["effective_support"]
    assert support[1, 3] == pytest.approx(1)
    assert support.loc[3].to_numpy() == pytest.approx(1)
    assert (support.loc[[(0, 0), (1, 0), (1, 2), (2, 3)]] > 1.5).all()


def test_unknown_names_are_refused_with_advice(ids):
    model = tiny("llama")
    with pytest.raises(sinkscope.UnknownNameError, match="softpick"), sinkscope.patched(model, "softpik"):
        pass
    with pytest.raises(sinkscope.UnknownNameError, match="layers 0-3"), sinkscope.patched(model, layers=[4]):
        pass
    with pytest.raises(sinkscope.UnknownNameError, match="heads are 0 to 3"):
        swapped(model, ids, "softmax1", heads=[(0, 4)])


def test_a_patch_in_which_nothing_ran_is_an_error():
    with pytest.raises(sinkscope.NothingObservedError), sinkscope.patched(tiny("llama"), "softmax1"):
        pass


def test_a_patch_that_did_not_reach_every_layer_is_an_error(ids):
    model = tiny("llama")
    with (
        pytest.raises(sinkscope.UnsupportedModelError, match="3 of 4 layers were never called"),
        sinkscope.patched(model, "softmax1"),
    ):
        kept, model.model.layers = model.model.layers, model.model.layers[:1]
        model.config.num_hidden_layers = 1
        logits(model, ids)
    model.model.layers = kept


def test_a_patch_within_a_patch_of_the_same_model_is_refused(ids):
    model = tiny("llama")
    with sinkscope.patched(model, "softmax1"):
        logits(model, ids)
        with pytest.raises(ValueError, match="probed already"), sinkscope.patched(model, "softpick"):
            pass


@pytest.mark.parametrize("model_type", ["mamba"])
def test_models_that_cannot_be_patched_are_refused_by_name(model_type):
    sizes = {"hidden_size": 32, "vocab_size": 300, "num_hidden_layers": 2, "n_layer": 2, "n_head": 4, "state_size": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes))
    with pytest.raises(sinkscope.UnsupportedModelError, match=type(model).__name__), sinkscope.patched(model):
        pass


def broken(scores):
    raise RuntimeError("in the normalizer")


def interrupted(scores):
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["body", "normalizer", "Ctrl-C"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_after_a_failure_everything_is_as_it_was(architecture, how, ids):
    model, other = tiny(architecture), tiny("qwen2")
    method = AttentionInterface.get_interface
    before, untouched = logits(model, ids), logits(other, ids)
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    config = copy.deepcopy(model.config.to_dict())
    hooks = {name: len(module._forward_pre_hooks) for name, module in model.named_modules()}
    function = {"body": torch.relu, "normalizer": broken, "Ctrl-C": interrupted}[how]
    expected = KeyboardInterrupt if how == "Ctrl-C" else RuntimeError
    with pytest.raises(expected), sinkscope.patched(model, function):
        assert torch.equal(logits(other, ids), untouched)
        logits(model, ids)
        raise RuntimeError("in the body")
    assert AttentionInterface.get_interface is method
    assert torch.equal(logits(model, ids), before)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert {name: len(module._forward_pre_hooks) for name, module in model.named_modules()} == hooks
    assert model.config.to_dict() == config


def test_a_learned_sink_stays_one_more_key_without_a_value(ids):
    model = tiny("gpt_oss")
    heads = sinkscope.compare(model, input_ids=ids, normalizers=["entmax:alpha=1.5"]).heads
    after = heads[heads["normalizer"] == "entmax:alpha=1.5"]
    assert (after["row_mass"] + after["sink_logit_mass"]).to_numpy() == pytest.approx(1, abs=1e-4)
    assert (after["sink_logit_mass"] > 0).any()


@pytest.mark.parametrize("padding", ["left", "none"])
def test_a_window_with_sinks_shows_the_last_keys_and_the_first(padding, ids):
    model = tiny("llama")
    keep = torch.ones_like(ids)
    if padding == "left":
        keep[0, :5] = 0
    modifier = Modifier(window=3, keep_sinks=True, initial=2)
    report = sinkscope.compare(model, input_ids=ids, attention_mask=keep, modifier=modifier)
    heads = report.heads[report.heads["normalizer"] == "softmax + window=3,keep_sinks,initial=2"]
    positions = report.positions[report.positions["normalizer"] == "softmax + window=3,keep_sinks,initial=2"]
    assert (positions["first_mass"] > 0).all()
    # Two sinks and three keys: five visible keys in every row from the fifth on.
    assert (heads["effective_support"] <= 5).all()
    hidden = sinkscope.compare(model, input_ids=ids, attention_mask=keep, modifier=Modifier(window=3)).positions
    late = hidden[(hidden["normalizer"] != "softmax") & (hidden["query_from"] >= 3)]
    assert late["first_mass"].isna().all()


@pytest.mark.parametrize("architecture", ["llama", "opt", "gemma3_text", "gpt_oss"])
def test_a_modifier_finds_the_first_token_behind_padding(architecture, ids):
    model = tiny(architecture)
    keep = torch.arange(24) >= torch.tensor([[0], [7], [13]])
    modifier = Modifier(initial=1, sink_bias=-float("inf"))
    padded = sinkscope.compare(model, input_ids=ids, attention_mask=keep, modifier=modifier).summary
    assert padded["first_share"].isna().tolist() == [False, True]
    rows = [
        sinkscope.compare(model, input_ids=row[real][None], modifier=modifier)
        for row, real in zip(ids, keep, strict=True)
    ]
    scored = [int(each.summary["tokens_scored"][1]) for each in rows]
    loss = sum(float(each.summary["nll"][1]) * count for each, count in zip(rows, scored, strict=True)) / sum(scored)
    assert padded["nll"][1] == pytest.approx(loss, rel=1e-5)


def test_a_modifier_finds_it_in_a_static_cache_and_by_position_too(ids):
    model = tiny("llama")
    keep = (torch.arange(24) >= torch.tensor([[0], [7], [13]])).long()
    length = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "attention_mask": keep}
    scores = {"output_scores": True, "return_dict_in_generate": True}
    with sinkscope.patched(model, modifier=Modifier(initial=2, sink_bias=-2.0)):
        dynamic = model.generate(ids, **length, **scores)
        static = model.generate(ids, cache_implementation="static", **length, **scores)
        by_position, by_name = model(ids, keep).logits, model(ids, attention_mask=keep).logits
    torch.testing.assert_close(torch.stack(static.scores), torch.stack(dynamic.scores), atol=1e-4, rtol=1e-4)
    assert torch.equal(by_position, by_name)


def test_a_bias_of_minus_infinity_hides_the_first_keys(ids):
    model = tiny("llama")
    report = sinkscope.compare(model, input_ids=ids, modifier=Modifier(initial=1, sink_bias=-float("inf")))
    after = report.summary.iloc[1]
    assert after["row_mass"] == pytest.approx(1)
    assert after["first_mass"] != after["first_mass"]  # nobody can see it, so it is undefined
    assert report.summary.iloc[0]["first_mass"] > 0


def test_alibi_lowers_scores_with_distance_by_the_published_slopes():
    modifier = Modifier(alibi=True)
    scores, visible = torch.zeros(1, 8, 3, 3), torch.ones(3, 3).tril().bool()[None, None]
    found = modifier.apply(scores, visible, torch.zeros(1, dtype=torch.int64))
    slopes = torch.tensor([2.0 ** -(head + 1) for head in range(8)])
    assert torch.allclose(found[0, :, 2], -slopes[:, None] * torch.tensor([2.0, 1.0, 0.0]))


def test_a_card_from_outside_needs_no_registration(ids):
    card = Normalizer(
        name="half", function=lambda scores: scores.softmax(-1) / 2, summary="", formula="", source="", published=False
    )
    summary = sinkscope.compare(tiny("llama"), input_ids=ids, normalizers=[card]).summary
    assert summary["row_mass"].tolist() == pytest.approx([1, 0.5])
