"""The same checks as the census of every architecture, on those that have something peculiar; `make architectures`."""

import functools

import pytest
import torch
from soundness import IDS, PADDINGS, TOLERANCE, agreements, identity, leak, logits, state
from tiny_models import tiny_model

import sinkscope
from sinkscope.attention.band import Band, band
from sinkscope.hooks.outside import not_of_tokens
from sinkscope.hooks.probe import probed

pytestmark = pytest.mark.slow

PECULIAR = (
    *("exaone", "gpt_bigcode", "bert", "granite"),
    *("deepseek_v2", "minicpm3", "kimi_linear"),
    *("dots3_note_text", "mimo_v2_flash", "olmo3", "qwen2", "llama4_text"),
    *("vaultgemma", "flint", "granite_swa", "inkling2_text", "inkling_text"),
    *("deepseek_v32", "hy_v4", "minimax_m3_vl_text", "doge", "deepseek_v4"),
    *("jamba", "minimax", "recurrent_gemma", "qwen3_next"),
    *("dory", "diffllama", "bigbird_pegasus"),
    *("gemma3", "got_ocr2", "mllama", "musicgen"),
)
REFUSED = ("mamba", "rwkv", "xlstm", "gemma4_unified_assistant")


@functools.cache
def built(model_type):
    return tiny_model(model_type, layers=2)


def calls(model):
    """Every token-to-token call of one forward, and the layers that made another or none."""
    found, left_out = [], []

    def look(site, call, own):
        (left_out if not_of_tokens(call, IDS.shape[1]) else found).append((site, call))
        return own()

    with probed(model, look):
        logits(model)
    return found, left_out


def traits(model, site, call):
    """What is peculiar about one call."""
    heads, groups, width = call.query.shape[1], call.key.shape[1], call.query.shape[-1]
    read = band(call)
    return {
        "query heads share key heads": 1 < groups < heads,
        "all query heads share one key head": 1 == groups < heads,
        "values of another width": call.value.shape[-1] != width,
        "a scale of its own": abs(call.scale * width**0.5 - 1) > 1e-3,
        "normalised queries": hasattr(model.get_submodule(site.name), "q_norm"),
        "a soft cap": call.softcap is not None,
        "a learned sink": call.sink is not None and call.sink.shape[-1] == 1,
        "a sink per token": call.sink is not None and call.sink.shape[-1] > 1,
        "a position bias": call.bias is not None,
        "a mask per head": call.mask is not None and call.mask.shape[1] > 1,
        "a window": isinstance(read, Band) and read.window < read.length,
        "chosen keys": isinstance(read, str) and read.startswith("the mask is more"),
        "a module called twice": site.call > 0,
        "a part of a larger model": model.config.get_text_config() is not model.config,
    }


def test_every_peculiarity_is_among_them():
    found = dict.fromkeys(("heads that differ by layer", "layers without attention", "calls left out"), False)
    for model_type in PECULIAR:
        model = built(model_type)
        seen, left_out = calls(model)
        for site, call in seen:
            found |= {trait: found.get(trait) or has for trait, has in traits(model, site, call).items()}
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
        found["heads that differ by layer"] |= len({call.query.shape[1] for _, call in seen}) > 1
        found["layers without attention"] |= len({site.layer for site, _ in seen}) < layers
        found["calls left out"] |= bool(left_out)
    assert all(found.values()), found


# Without padding the dense path is what the identity swap takes.
@pytest.mark.parametrize(("padding", "paths"), [("none", ["auto"]), ("left", ["auto", "dense"])])
@pytest.mark.parametrize("model_type", PECULIAR)
def test_figures_are_those_of_the_models_own_eager_maps_on_either_path(model_type, padding, paths):
    for found in agreements(built(model_type), PADDINGS[padding], paths):
        assert found.difference < TOLERANCE


@pytest.mark.parametrize("model_type", PECULIAR)
def test_our_softmax_in_place_of_the_models_changes_nothing(model_type):
    assert identity(built(model_type)) < TOLERANCE


@pytest.mark.parametrize("model_type", PECULIAR)
def test_a_swap_lets_no_token_see_a_later_one_and_leaves_no_trace(model_type):
    model = built(model_type)
    before, native = state(model), logits(model)
    leaked, moved = leak(model)
    assert leaked < TOLERANCE < moved
    assert state(model) == before
    assert torch.equal(logits(model), native)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_without_attention_of_its_own_is_refused_by_name(model_type):
    model = built(model_type)
    with pytest.raises(sinkscope.UnsupportedModelError, match=type(model).__name__):
        sinkscope.measure(model, input_ids=IDS)
    with pytest.raises(sinkscope.UnsupportedModelError, match=type(model).__name__), sinkscope.patched(model):
        pass
