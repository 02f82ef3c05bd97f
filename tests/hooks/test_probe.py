"""A probe sees every attention call of its model, touches nothing else, and leaves nothing behind."""

import json
import threading

import pytest
import torch
from builders import tiny
from compiled import compiled_forward, compiled_in_place, compiled_layer, compiled_whole
from soundness import on_model
from torch import nn
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.attention import dense
from sinkscope.errors import NothingObservedError, UnsupportedModelError
from sinkscope.hooks.probe import probed, refuse_compiled
from sinkscope.hooks.probing import _layer_number


@pytest.fixture(scope="module")
def model():
    return tiny("llama")


@pytest.fixture(scope="module")
def other():
    return tiny("qwen2")


@torch.no_grad()
def run(model, ids, **arguments):
    return model(input_ids=ids, use_cache=False, **arguments).logits


def look(_site, _call, own):
    return own()


def silence(_site, _call, own):
    return torch.zeros_like(own())


@pytest.fixture
def untouched(model, ids):
    """Whatever the test does, the model and transformers are as before, and the logits equal bit by bit."""
    method, before, logits = vars(AttentionInterface)["get_interface"], on_model(model), run(model, ids)
    yield
    assert vars(AttentionInterface)["get_interface"] is method
    assert on_model(model) == before
    assert torch.equal(run(model, ids), logits)


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_behind_by_a_block_that_ends(model, ids):
    with probed(model, silence):
        assert run(model, ids).isfinite().all()


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_by_a_block_that_raises(model, ids, raised):
    def enter():
        with probed(model, look):
            run(model, ids)
            raise raised("in the block")

    with pytest.raises(raised, match="in the block"):
        enter()


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind_by_a_handler_that_raises(model, ids, raised):
    def handler(site, _call, own):
        if site.layer == 2:
            raise raised("in the handler")
        return own()

    with pytest.raises(raised, match="in the handler"), probed(model, handler):
        run(model, ids)


@pytest.mark.usefixtures("untouched")
def test_a_block_in_which_nothing_ran_is_an_error(model):
    with (
        pytest.raises(NothingObservedError, match="no attention call of LlamaForCausalLM was seen"),
        probed(model, look),
    ):
        pass


@pytest.mark.usefixtures("untouched")
def test_observation_leaves_every_bit_of_the_logits(model, ids):
    native = run(model, ids)
    with probed(model, look) as probe:
        assert torch.equal(run(model, ids), native)
    assert probe.seen == 4


@pytest.mark.usefixtures("untouched")
def test_what_the_handler_returns_becomes_the_layers_output(model, ids):
    native = run(model, ids)
    with probed(model, lambda _site, call, _own: dense.attend(call)):
        torch.testing.assert_close(run(model, ids), native, rtol=1e-4, atol=1e-4)
    with probed(model, silence):
        assert (run(model, ids) - native).abs().max() > 0.1


@pytest.mark.usefixtures("untouched")
def test_another_model_is_not_affected(model, other, ids):
    native = run(other, ids)
    with probed(model, silence) as probe:
        assert torch.equal(run(other, ids), native)
        assert probe.seen == 0
        run(model, ids)


@pytest.mark.usefixtures("untouched")
def test_another_model_in_another_thread_is_not_affected(model, other, ids):
    native, found = run(other, ids), []
    with probed(model, silence) as probe:
        thread = threading.Thread(target=lambda: found.append(run(other, ids)))
        thread.start()
        run(model, ids)
        thread.join()
    assert torch.equal(found[0], native)
    assert probe.seen == 4


def test_a_second_probe_on_a_model_or_on_a_part_of_it_is_refused(model, ids):
    native = run(model, ids)
    with probed(model, look) as probe:
        for part in (model, model.model):
            with (
                pytest.raises(ValueError, match="without an open probe, got one that is being probed"),
                probed(part, look),
            ):
                pytest.fail("it was let in")
        assert torch.equal(run(model, ids), native)
    assert probe.seen == 4
    with probed(model, look):
        run(model, ids)


@pytest.mark.parametrize("inner_first", [False, True])
def test_two_models_can_be_probed_at_once(model, other, ids, inner_first):
    method = AttentionInterface.get_interface
    with probed(model, look) as outer:
        with probed(other, look) as inner:
            for each in (other, model) if inner_first else (model, other):
                run(each, ids)
        run(model, ids)
    assert (outer.seen, inner.seen) == (8, 4)
    assert AttentionInterface.get_interface is method


@pytest.mark.parametrize("form", [compiled_whole, compiled_layer, compiled_in_place])
def test_a_compiled_model_is_refused_with_the_remedy(form):
    with pytest.raises(UnsupportedModelError, match=r"is compiled.*pass the model as it was before torch.compile"):
        refuse_compiled(form(tiny("llama")))


def test_a_model_whose_forward_alone_is_compiled_is_not_measured(ids):
    model = compiled_forward(tiny("llama"))
    run(model, ids)
    with pytest.raises(UnsupportedModelError, match="is compiled"):
        sinkscope.measure(model, input_ids=ids)


def sites(model, ids, times=1):
    found = []

    def note(site, _call, own):
        found.append(site)
        return own()

    with probed(model, note):
        for _ in range(times):
            run(model, ids)
    return found


def test_calls_are_named_by_module_number_and_layer(model, ids):
    found = sites(model, ids, times=2)
    assert [(site.name, site.layer, site.call) for site in found] == [
        (f"model.layers.{layer}.self_attn", layer, 0) for layer in (0, 1, 2, 3)
    ] * 2


def test_a_layer_that_runs_twice_has_two_calls_in_each_forward(ids):
    looped = tiny("llama")
    looped.model.layers[1] = looped.model.layers[0]
    found = [(site.layer, site.call) for site in sites(looped, ids, times=2)]
    assert found == [(0, 0), (0, 1), (2, 0), (3, 0)] * 2


def test_types_and_windows_of_layers_are_their_own(ids):
    found = sites(tiny("gemma3_text"), ids)
    assert [site.layer_type for site in found] == ["sliding_attention", "full_attention"] * 2
    assert [site.window for site in found] == [5, None] * 2


def test_what_is_saved_while_a_probe_is_open_is_what_was_loaded(model, ids, tmp_path):
    model.save_pretrained(tmp_path / "before")
    with probed(model, look):
        run(model, ids)
        model.save_pretrained(tmp_path / "during")
    saved = sorted(path.name for path in (tmp_path / "before").iterdir())
    assert saved == sorted(path.name for path in (tmp_path / "during").iterdir())
    for name in saved:
        assert (tmp_path / "during" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()
    assert "sinkscope" not in json.dumps(json.loads((tmp_path / "during" / "config.json").read_text()))


@pytest.mark.parametrize("raised", [None, RuntimeError])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_model_on_another_implementation_is_switched_and_switched_back(architecture, raised, ids, monkeypatch):
    fused = AttentionInterface._global_mapping["sdpa"]
    monkeypatch.setitem(AttentionInterface._global_mapping, "unheard_of", fused)
    model = tiny(architecture)
    model.set_attn_implementation("unheard_of")
    before, during = on_model(model), []

    def note(_site, _call, own):
        during.append(model.config._attn_implementation)
        if raised:
            raise raised("in the handler")
        return own()

    if raised:
        with pytest.raises(raised, match="in the handler"), probed(model, note):
            run(model, ids)
    else:
        with probed(model, note):
            run(model, ids)
    assert set(during) == {"sdpa" if architecture == "llama" else "eager"}
    assert on_model(model) == before


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", [False, True])
def test_a_call_sees_what_the_model_sees(model, ids, implementation, padding):
    keep = torch.arange(24) >= torch.tensor([[0], [7], [13]]) if padding else torch.ones(3, 24, dtype=torch.bool)
    seen = []
    model.set_attn_implementation(implementation)
    with probed(model, lambda _site, call, own: [own(), seen.append(call.visible().expand(3, -1, -1, -1))][0]):
        run(model, ids, **({"attention_mask": keep.long()} if padding else {}))
    model.set_attn_implementation("sdpa")
    wanted = keep[:, None, :] & torch.ones(24, 24, dtype=torch.bool).tril()
    for visible in seen:
        assert torch.equal(visible[:, 0] & keep[:, :, None], wanted & keep[:, :, None])


def test_training_goes_on_where_it_was_and_dropout_is_not_measured(ids):
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5).train()
    model.transformer.h[1].eval()
    before = on_model(model)
    once, again = (sinkscope.measure(model, input_ids=ids) for _ in range(2))
    assert once.heads.equals(again.heads)
    assert once.summary.equals(again.summary)
    assert (once.heads["row_mass"] - 1).abs().max() < 1e-5
    assert on_model(model) == before


def test_modules_without_a_number_of_their_own_take_that_of_their_name():
    assert _layer_number(nn.Linear(1, 1), "decoder.blocks.3.attention.0") == 3
    assert _layer_number(nn.Linear(1, 1), "attention") == 0
