"""What a GGUF file says of the forward pass is applied to the last digit, or the file is refused by name.

Each file is written from a model of transformers with the setting in question, and has to give that model's logits.
"""

import math

import builders
import gguf
import pytest
import torch
from gguf_files import VOCABULARY, gguf_of
from transformers import AutoConfig, AutoModelForCausalLM

from sinkscope.errors import ModelNotFoundError, UnsupportedModelError
from sinkscope.models import cache, hyperparameters, load
from sinkscope.models.tensors import set_by_tensors
from sinkscope.progress import silent

IDS = torch.randint(3, 250, (1, 48), generator=torch.Generator().manual_seed(1))
BASE = builders.BASE | {"num_hidden_layers": 2, "vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None}
LENGTH = {"max_position_embeddings": 128}
LONG = {"short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.5, 2.0, 6.0, 20.0]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR_KEYS = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
SHARED = {"shared_expert_intermediate_size": 24}
GEMMA = {"query_pre_attn_scalar": 8, "sliding_window": 5}
WINDOW = {"attention.sliding_window": 5}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))


def model_of(model_type, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **(BASE | LENGTH | settings))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            # Flat attention would not show where the rotary positions are.
            if parameter.dim() > 1:
                parameter.data.mul_(12 if "q_proj" in name or "k_proj" in name else 4)
            else:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10000.0} | parameters}


def nested(full):
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_parameters": {"sliding_attention": plain, "full_attention": full}}


def divisors(model):
    """The tensor that llama.cpp's converter writes for rotary positions of a kind of its own."""
    plain = model_of("llama", **rope(rope_theta=model.config.rope_parameters["rope_theta"]))
    return {"rope_freqs.weight": (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy()}


CASES = {
    "linear": ("llama", rope(rope_type="linear", factor=8.0), LINEAR_KEYS),
    "linear is the default": ("qwen2", rope(rope_type="linear", factor=8.0), {"rope.scaling.factor": 8.0}),
    "linear, as it was once spelt": ("llama", rope(rope_type="linear", factor=8.0), {"rope.scale_linear": 8.0}),
    "none goes before a factor": ("llama", {}, {"rope.scaling.type": "none", "rope.scaling.factor": 8.0}),
    "yarn": ("llama", rope(**YARN), YARN_KEYS),
    "yarn in qwen3": ("qwen3", rope(**YARN), YARN_KEYS),
    "yarn in a part of the head": (
        "stablelm",
        rope(**YARN, partial_rotary_factor=0.5),
        YARN_KEYS | {"rope.dimension_count": 4},
    ),
    "yarn with its own bounds": (
        "qwen2",
        rope(**YARN, beta_fast=4.0, beta_slow=2.0),
        YARN_KEYS | {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 2.0},
    ),
    "yarn that sharpens": (
        "llama",
        rope(**YARN, attention_factor=1.5 * (1 + 0.1 * math.log(4))),
        YARN_KEYS | {"rope.scaling.attn_factor": 1.5},
    ),
    "base": ("llama", rope(rope_theta=500.0), {"rope.freq_base": 500.0}),
    "base that transformers drops": ("starcoder2", rope(rope_theta=500.0), {"rope.freq_base": 500.0}),
    "width that transformers drops": ("phi3", rope(partial_rotary_factor=0.5), {"rope.dimension_count": 4}),
    "epsilon that transformers drops": ("nemotron", {"norm_eps": 0.5}, {}),
    "width of a head that transformers drops": ("qwen3", {"head_dim": 12}, {}),
    "two bases": (
        "gemma3_text",
        GEMMA | nested({"rope_type": "default", "rope_theta": 5000.0}),
        WINDOW | {"rope.freq_base": 5000.0, "rope.freq_base_swa": 10000.0},
    ),
    "scaling of the layers without a window": (
        "gemma3_text",
        GEMMA | nested({"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}),
        WINDOW | LINEAR_KEYS | {"rope.freq_base": 5000.0},
    ),
    "pattern of windows": (
        "gemma3_text",
        GEMMA | {"layer_types": ["full_attention", "sliding_attention"]},
        WINDOW | {"rope.freq_base": 1e6, "attention.sliding_window_pattern": [False, True]},
    ),
    "pattern of windows, by its period": (
        "gemma3_text",
        GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
        WINDOW | {"rope.freq_base": 1e6, "attention.sliding_window_pattern": 2},
    ),
    "scale that no key holds": ("gemma2", GEMMA, WINDOW),
    "scale that is stated": (
        "gemma2",
        GEMMA | {"query_pre_attn_scalar": 50},
        WINDOW | {"attention.scale": 50**-0.5},
    ),
    "window": ("phi3", {"sliding_window": 5}, WINDOW),
    "caps": (
        "gemma2",
        GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 0.5},
        WINDOW | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 0.5},
    ),
    "experts": ("qwen2_moe", EXPERTS | SHARED, EXPERT_KEYS | {"expert_shared_feed_forward_length": 24}),
    "weights of experts that add up to one": (
        "qwen2_moe",
        EXPERTS | SHARED | {"norm_topk_prob": True},
        EXPERT_KEYS | {"expert_shared_feed_forward_length": 24, "expert_weights_norm": True},
    ),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "an output of its own": ("nemotron", {"tie_word_embeddings": False}, {}),
    "what changes nothing": (
        "llama",
        {},
        {"attention.causal": True, "expert_count": 0, "logit_scale": 1.0, "rope.scaling.finetuned": True}
        | {"tensor_data_layout": "Meta AI original pth", "rope.scaling.type": "linear", "attention.scale": 8**-0.5},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_file_says_is_what_the_model_does(case, tmp_path):
    model_type, settings, keys = CASES[case]
    model = model_of(model_type, **settings)
    loaded = load(gguf_of(model, tmp_path / "model.gguf", **keys))
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("key", ["rope.scaling.type", "rope.scaling.original_context_length", "rope.freq_base"])
def test_each_part_of_a_scaling_counts(key, tmp_path):
    model = model_of("llama", **rope(**YARN, rope_theta=500.0))
    keys = YARN_KEYS | {"rope.freq_base": 500.0, key: None}
    loaded = load(gguf_of(model, tmp_path / "model.gguf", **keys))
    assert (logits(loaded.model) - logits(model)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [(LLAMA3, "llama3"), (LLAMA3 | {"factor": 32.0}, "llama3"), (LLAMA3 | {"high_freq_factor": 8.0}, "longrope")],
)
def test_frequencies_in_a_tensor_are_those_of_the_model(parameters, kind, tmp_path):
    model = model_of("llama", **rope(**parameters, rope_theta=1e9))
    tensors = divisors(model)
    assert tensors["rope_freqs.weight"].max() > 7
    loaded = load(gguf_of(model, tmp_path / "model.gguf", tensors, **{"rope.freq_base": 1e9}))
    assert loaded.model.config.rope_parameters["rope_type"] == kind
    found, wanted = (each.model.rotary_emb.inv_freq for each in (loaded.model, model))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=5e-5, rtol=1e-4)
    assert any("rotary positions are the file's" in note for note in loaded.origin["notes"])


def test_frequencies_that_move_the_positions_seen_here_change_the_logits(tmp_path):
    model = model_of("llama", **rope(rope_type="linear", factor=8.0))
    loaded = load(gguf_of(model, tmp_path / "model.gguf", divisors(model)))
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=5e-5, rtol=1e-4)
    assert (logits(model_of("llama")) - logits(model)).abs().max() > 1e-2


@pytest.mark.parametrize("original", [32, 64])
def test_frequencies_for_short_and_long_texts_are_both_kept(original, tmp_path):
    # IDS are longer than the one limit and shorter than the other.
    parameters = {"rope_type": "longrope", "attention_factor": 1.2, "original_max_position_embeddings": original}
    model = model_of("phi3", **rope(**parameters, **LONG), original_max_position_embeddings=original)
    keys = {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": 1.2}
    tensors = {f"rope_factors_{name}.weight": LONG[f"{name}_factor"] for name in ("short", "long")}
    loaded = load(gguf_of(model, tmp_path / "model.gguf", tensors, **keys))
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=5e-5, rtol=1e-4)


REFUSALS = {
    "rope.scaling.type": ("llama", {"rope.scaling.type": "dynamic", "rope.scaling.factor": 2.0}),
    "rope.scaling.attn_factor": ("llama", {"rope.scaling.attn_factor": 1.5}),
    "rope.scaling.alpha": ("llama", {"rope.scaling.alpha": 1000.0}),
    "rope.scaling.yarn_log_multiplier": ("llama", YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 0.1}),
    "rope.dimension_count": ("llama", {"rope.dimension_count": 4}),
    "rope.dimension_sections": ("qwen2", {"rope.dimension_sections": [2, 1, 1]}),
    "rope.freq_base_swa": ("llama", {"rope.freq_base_swa": 500.0}),
    "attention.scale": ("llama", {"attention.scale": 1.0}),
    "attention.causal": ("llama", {"attention.causal": False}),
    "attention.clamp_kqv": ("llama", {"attention.clamp_kqv": 8.0}),
    "attention.max_alibi_bias": ("llama", {"attention.max_alibi_bias": 8.0}),
    "attention.sliding_window": ("llama", {"attention.sliding_window": 5}),
    "attention.sliding_window = 5": ("qwen2", {"attention.sliding_window": 5}),
    "attention.value_length": ("llama", {"attention.value_length": 4}),
    "num_key_value_heads": ("llama", {"attention.head_count_kv": [2, 4]}),
    "attention.scale = 0.3": ("gemma2", WINDOW | {"attention.scale": 0.3}),
    "key_length": ("gemma2", WINDOW | {"attention.key_length_swa": 4}),
    "logit_scale": ("llama", {"logit_scale": 0.0625}),
    "residual_scale": ("llama", {"residual_scale": 0.22}),
    "embedding_scale": ("llama", {"embedding_scale": 12.0}),
    "expert_count": ("llama", {"expert_count": 8}),
    "use_parallel_residual": ("llama", {"use_parallel_residual": True}),
    "attn_logit_softcapping": ("llama", {"attn_logit_softcapping": 2.0}),
    "a_new_invention": ("llama", {"a_new_invention": 3}),
}


@pytest.mark.parametrize("word", REFUSALS)
def test_what_the_class_cannot_apply_is_refused_by_name(word, tmp_path):
    model_type, keys = REFUSALS[word]
    path = gguf_of(model_of(model_type), tmp_path / "model.gguf", **keys)
    with pytest.raises(UnsupportedModelError, match=word) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert cache.entries() == []


@pytest.mark.parametrize(
    ("model_type", "name", "shape"),
    [
        ("llama", "blk.0.attn_q_norm.weight", (8,)),
        ("llama", "blk.1.attn_sinks.weight", (4,)),
        ("qwen2", "blk.0.attn_output.bias", (32,)),
        ("llama", "output.bias", (VOCABULARY,)),
        ("llama", "rope_factors_long.weight", (4,)),
    ],
)
def test_a_tensor_that_would_be_left_out_is_refused_by_name(model_type, name, shape, tmp_path):
    path = gguf_of(model_of(model_type), tmp_path / "model.gguf", {name: torch.ones(shape).numpy()})
    with pytest.raises(UnsupportedModelError, match=name):
        load(path)


def test_every_key_is_one_that_the_package_for_gguf_files_knows():
    groups = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
    names = [name for group in groups for name in vars(group).values() if isinstance(name, str)]
    known = {name.removeprefix("{arch}.") for name in names if name.startswith("{arch}.")}
    assert set(hyperparameters.KEYS) <= known


@pytest.mark.parametrize("model_type", ["falcon", "bloom"])
def test_an_output_that_transformers_would_replace_with_the_embedding_is_kept(model_type):
    config = AutoConfig.for_model(model_type)
    assert config.tie_word_embeddings
    set_by_tensors(config, ["token_embd.weight", "output.weight"])
    assert not config.tie_word_embeddings


def test_what_an_older_program_has_converted_is_not_used(tmp_path):
    model = model_of("llama", **rope(rope_type="linear", factor=8.0))
    path = gguf_of(model, tmp_path / "model.gguf", **{"rope.scaling.factor": 8.0})
    sha256 = cache.digest(path, silent)
    old = cache.directory() / f"{sha256[:32]}-v1"
    with cache.locked(sha256, silent), cache.building(sha256, path, ()) as folder:
        model_of("llama").save_pretrained(folder)
    cache.lookup(sha256).path.rename(old)
    torch.testing.assert_close(logits(load(path).model), logits(model), atol=5e-5, rtol=1e-4)


def test_a_part_of_a_model_is_refused_whatever_its_name(tmp_path):
    path = gguf_of(model_of("llama"), tmp_path / "renamed.gguf", **{"split.count": 3, "split.no": 1})
    with pytest.raises(ModelNotFoundError, match=r"renamed\.gguf is part 2 of 3 of a model: merge .*--merge"):
        load(path)
