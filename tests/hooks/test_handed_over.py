"""What is measured is the model as it was handed over: with its own attention function, and causal."""

import pytest
import torch
from builders import tiny
from soundness import IDS, state
from tiny_models import tiny_model
from transformers import AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

import sinkscope

BIDIRECTIONAL = {
    "bert": {"is_decoder": False},
    "roberta": {"is_decoder": False},
    "electra": {"is_decoder": False},
    "rembert": {"is_decoder": False},
    "megatron-bert": {"is_decoder": False},
    "llama": {"is_causal": False},
    "qwen2": {"is_causal": False},
    "gemma3_text": {"use_bidirectional_attention": True},
}
"""Settings under which a token attends to later ones: of types that ask the interface, and of types that do not."""


@pytest.fixture
def registered():
    """Registers an attention function that scales its scores, beside transformers' eager mask."""
    names = []

    def register(name, factor):
        def scaled(module, query, *rest, **others):
            return eager_attention_forward(module, query * factor, *rest, **others)

        AttentionInterface.register(name, scaled)
        AttentionMaskInterface.register(name, eager_mask)
        names.append(name)
        return name

    yield register
    for name in names:
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name)


def test_an_attention_function_of_the_callers_own_that_gives_other_logits_is_refused_by_name(registered):
    model = tiny("llama")
    model.set_attn_implementation(registered("quarter", 0.25))
    before = state(model)
    for run in (
        lambda: sinkscope.measure(model, input_ids=IDS),
        lambda: sinkscope.compare(model, input_ids=IDS, normalizers=["softmax1"]),
        lambda: sinkscope.patched(model, "softmax1").__enter__(),
    ):
        with pytest.raises(sinkscope.UnsupportedModelError, match="'quarter' gives other logits than 'sdpa'"):
            run()
    assert state(model) == before


def test_one_that_gives_the_same_is_measured_under_another_and_that_is_said(registered):
    model = tiny("llama")
    plain = sinkscope.measure(model, input_ids=IDS)
    model.set_attn_implementation(registered("same", 1.0))
    before = state(model)
    report = sinkscope.measure(model, input_ids=IDS)
    attention = report.metadata["attention"]
    assert (attention["implementation"], attention["observed_under"]) == ("same", "sdpa")
    assert 0 <= attention["observed_difference"] < 1e-5
    assert plain.metadata["attention"]["observed_under"] is None
    assert report.heads["first_mass"].tolist() == pytest.approx(plain.heads["first_mass"].tolist(), abs=1e-6)
    assert state(model) == before


def test_what_differs_only_in_longer_windows_is_refused_too(registered):
    def short_only(module, query, *rest, **others):
        factor = 1.0 if query.shape[2] <= 17 else 0.25
        return eager_attention_forward(module, query * factor, *rest, **others)

    model, name = tiny("llama"), registered("short only", 1.0)
    AttentionInterface.register(name, short_only)
    model.set_attn_implementation(name)
    with pytest.raises(sinkscope.UnsupportedModelError, match="gives other logits"):
        sinkscope.measure(model, input_ids=IDS)


@pytest.mark.parametrize("model_type", BIDIRECTIONAL)
def test_a_model_in_which_tokens_attend_to_later_ones_is_refused(model_type):
    config = tiny_model(model_type, layers=2).config
    for name, value in BIDIRECTIONAL[model_type].items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(sinkscope.UnsupportedModelError, match="not causal: a token attends to later ones"):
        sinkscope.measure(model, input_ids=IDS)
    with pytest.raises(sinkscope.UnsupportedModelError, match="not causal"), sinkscope.patched(model, "softmax1"):
        pass


def test_a_model_that_looks_ahead_elsewhere_than_in_its_attention_is_refused():
    model = tiny("llama")
    model.model.layers[1].register_forward_hook(lambda _, __, output: output + output.mean(1, keepdim=True))
    with pytest.raises(sinkscope.UnsupportedModelError, match="depend on later tokens"):
        sinkscope.measure(model, input_ids=IDS)


def test_a_model_that_looks_ahead_in_long_windows_only_is_refused():
    model = tiny("llama")

    def unmask(_, args, given):
        length = given["input_ids"].shape[1]
        if length > 17:
            given["attention_mask"] = torch.ones(1, 1, length, length, dtype=torch.bool)
        return args, given

    model.model.register_forward_pre_hook(unmask, with_kwargs=True)
    sinkscope.measure(model, input_ids=IDS[:, :17])
    with pytest.raises(sinkscope.UnsupportedModelError, match="attends to later ones"):
        sinkscope.measure(model, input_ids=IDS)
