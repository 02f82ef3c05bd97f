"""The output projection is found by what it does, and what it does to a head's vectors is what its weights say."""

import pytest
import torch
from builders import tiny
from soundness import IDS, state
from tiny_models import tiny_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from sinkscope.hooks.handshake import handshake
from sinkscope.hooks.projections import find_projections


def found(model):
    return find_projections(model, IDS, handshake(model, IDS))


def slices(module, heads):
    """W_O of each head, [head value_width width], in double precision."""
    weight = module.weight if isinstance(module, Conv1D) else module.weight.T
    return weight.detach().double().reshape(heads, -1, weight.shape[1])


WHERE = {
    "llama": "o_proj",
    "gpt2": "c_proj",
    "gemma2": "o_proj",
    "deepseek_v3": "o_proj",
    "gpt_neox": "dense",
    "opt": "out_proj",
    "gpt_oss": "o_proj",
}
"""Where these types have their projection, below the attention module."""


@pytest.mark.parametrize("kind", WHERE)
def test_norms_through_the_gram_matrix_are_norms_through_the_weights(kind):
    model = tiny(kind)
    projections = found(model)
    assert projections.undefined == {}
    assert len(projections.grams) == model.config.num_hidden_layers
    for name, gram in projections.grams.items():
        heads, width, _ = gram.shape
        own = slices(model.get_submodule(f"{name}.{WHERE[kind]}"), heads)
        vectors = torch.randn(heads, 5, width, generator=torch.Generator().manual_seed(0))
        squares = ((vectors @ gram) * vectors).sum(-1)
        assert gram.dtype == torch.float32
        torch.testing.assert_close(squares.sqrt().double(), (vectors.double() @ own).norm(dim=-1), rtol=1e-5, atol=1e-6)


def test_a_projection_need_not_be_below_the_attention_module():
    model = tiny_model("bert")
    gram = found(model).grams["bert.encoder.layer.0.attention.self"]
    own = slices(model.get_submodule("bert.encoder.layer.0.attention.output.dense"), 4)
    torch.testing.assert_close(gram.double(), own @ own.mT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("qwen3_next", "nothing takes its heads' output as it is"),  # a gate
        ("diffllama", "nothing takes its heads' output as it is"),  # heads subtracted from each other
        ("bitnet", "a BitNetRMSNorm takes its heads' output"),
        ("bloom", "it shows its scores only, not its heads' output"),
    ],
)
def test_what_is_no_plain_projection_is_undefined_and_says_why(kind, reason):
    projections = found(tiny_model(kind))
    assert projections.grams == {}
    assert projections.undefined
    assert set(projections.undefined.values()) == {reason}


class Gated(nn.Linear):
    """Writes over its input, which the layer's own output shares memory with."""

    def forward(self, given):
        return super().forward(given.mul_(0.5))


class Scaled(nn.Linear):
    def forward(self, given):
        return 2 * super().forward(given)


class Adapted(nn.Linear):
    """A linear map beside the linear map, as LoRA has it."""

    def __init__(self, inputs, outputs, *, bias):
        super().__init__(inputs, outputs, bias=bias)
        self.beside = nn.Linear(inputs, outputs)

    def forward(self, given):
        return super().forward(given) + self.beside(given)


class Packed(nn.Linear):
    """Weights in integers, as quantized modules have them."""

    def __init__(self, inputs, outputs, *, bias):
        super().__init__(inputs, outputs, bias=bias)
        whole = (100 * self.weight.detach()).round().to(torch.int8)
        self.weight = nn.Parameter(whole, requires_grad=False)

    def forward(self, given):
        return nn.functional.linear(given, self.weight.float() / 100, self.bias)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Gated, "nothing takes its heads' output as it is"),
        (Scaled, "its Scaled does more than multiply by its weights"),
        (Packed, "the weights of its Packed cannot be read"),
        (Adapted, r"several modules take its heads' output: model.layers.1.self_attn.o_proj.beside, "),
    ],
)
def test_a_projection_that_does_something_else_is_undefined_in_its_layer_only(kind, reason):
    model = tiny("llama")
    layer = model.model.layers[1].self_attn
    layer.o_proj = kind(layer.o_proj.in_features, layer.o_proj.out_features, bias=False)
    projections = found(model)
    assert [*projections.undefined] == ["model.layers.1.self_attn"]
    assert projections.undefined["model.layers.1.self_attn"].startswith(reason)
    assert len(projections.grams) == model.config.num_hidden_layers - 1


def test_a_projection_in_half_precision_is_kept_in_fp32():
    model = tiny("llama").to(torch.bfloat16)
    projections = found(model)
    own = slices(model.model.layers[0].self_attn.o_proj, 4)
    gram = projections.grams["model.layers.0.self_attn"]
    assert gram.dtype == torch.float32
    torch.testing.assert_close(gram.double(), own @ own.mT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "bloom"])
def test_nothing_is_left_on_a_model_that_was_looked_at(kind):
    model = tiny_model(kind)
    shown = handshake(model, IDS)
    before = state(model)
    find_projections(model, IDS, shown)
    assert state(model) == before


def test_nothing_is_left_on_a_model_whose_forward_failed(monkeypatch):
    model = tiny("llama")
    shown, before = handshake(model, IDS), state(model)

    def failing(*_):
        raise RuntimeError("interrupted")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="interrupted"):
        patch.setattr("sinkscope.hooks.projections._fault", failing)
        find_projections(model, IDS, shown)
    assert state(model) == before
