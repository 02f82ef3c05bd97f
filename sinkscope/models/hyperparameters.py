"""What the metadata of a GGUF file say of the forward pass: set in a configuration, or refused by name.

transformers maps a dozen keys of each architecture and drops the others. KEYS holds every key that llama.cpp's own
package lists for a language model's forward; a key that is not listed is refused, since what it does is unknown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.errors import UnsupportedModelError

Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class Hyperparameter:
    """A key: the attributes that it can set, of which a class has one, and the values that change nothing otherwise."""

    attributes: tuple[str, ...] = ()
    neutral: tuple[object, ...] = ()


_OFF = (0, False)
_ONE = (0, 1)
_EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")

KEYS: dict[str, Hyperparameter] = {
    "vocab_size": Hyperparameter(("vocab_size",)),
    "context_length": Hyperparameter(("max_position_embeddings",)),
    "embedding_length": Hyperparameter(("hidden_size",)),
    "block_count": Hyperparameter(("num_hidden_layers",)),
    "feed_forward_length": Hyperparameter(("intermediate_size", "ffn_hidden_size", "n_inner")),
    "leading_dense_block_count": Hyperparameter(("first_k_dense_replace",), _OFF),
    "use_parallel_residual": Hyperparameter(("use_parallel_residual", "parallel_attn"), _OFF),
    "logit_scale": Hyperparameter(("logit_scale",), _ONE),
    "residual_scale": Hyperparameter(("residual_multiplier",), _ONE),
    "embedding_scale": Hyperparameter(("embedding_multiplier",), _ONE),
    "attn_logit_softcapping": Hyperparameter(("attn_logit_softcapping",), _OFF),
    "final_logit_softcapping": Hyperparameter(("final_logit_softcapping",), _OFF),
    "router_logit_softcapping": Hyperparameter(("router_logit_softcapping",), _OFF),
    "expert_count": Hyperparameter(("num_experts", "num_local_experts"), _OFF),
    "expert_used_count": Hyperparameter(("num_experts_per_tok", "top_k_experts"), _OFF),
    "expert_feed_forward_length": Hyperparameter(("moe_intermediate_size", "intermediate_size"), _OFF),
    "expert_shared_feed_forward_length": Hyperparameter(("shared_expert_intermediate_size",), _OFF),
    "expert_shared_count": Hyperparameter(("n_shared_experts",), _OFF),
    "expert_group_count": Hyperparameter(("n_group",), _ONE),
    "expert_group_used_count": Hyperparameter(("topk_group",), _ONE),
    "expert_weights_scale": Hyperparameter(("routed_scaling_factor",), _ONE),
    "expert_weights_norm": Hyperparameter(("norm_topk_prob",), _OFF),
    "expert_gating_func": Hyperparameter((), _ONE),  # 1 is softmax
    "moe_every_n_layers": Hyperparameter(("decoder_sparse_step",), _ONE),
    "interleave_moe_layer_step": Hyperparameter(("decoder_sparse_step",), _ONE),
    "nextn_predict_layers": Hyperparameter((), _OFF),
    "pooling_type": Hyperparameter((), _OFF),
    "embedding_length_per_layer_input": Hyperparameter(("hidden_size_per_layer_input",), _OFF),
    "full_attention_interval": Hyperparameter(("full_attention_interval",), _ONE),
    "swin_norm": Hyperparameter((), _OFF),
    "rescale_every_n_layers": Hyperparameter((), _OFF),
    "attention.head_count": Hyperparameter(("num_attention_heads",)),
    "attention.head_count_kv": Hyperparameter(("num_key_value_heads",)),
    "attention.key_length": Hyperparameter(("head_dim",)),
    "attention.key_length_swa": Hyperparameter(),
    "attention.layer_norm_epsilon": Hyperparameter(_EPSILONS),
    "attention.layer_norm_rms_epsilon": Hyperparameter(_EPSILONS),
    "attention.causal": Hyperparameter((), (True,)),
    "attention.clamp_kqv": Hyperparameter((), _OFF),
    "attention.max_alibi_bias": Hyperparameter((), _OFF),
    "attention.output_scale": Hyperparameter((), _ONE),
    "attention.temperature_length": Hyperparameter((), _OFF),
    "attention.temperature_scale": Hyperparameter((), _OFF),
    "attention.q_lora_rank": Hyperparameter(("q_lora_rank",), _OFF),
    "attention.kv_lora_rank": Hyperparameter(("kv_lora_rank",), _OFF),
    "attention.shared_kv_layers": Hyperparameter(("num_kv_shared_layers",), _OFF),
    "attention.relative_buckets_count": Hyperparameter(("relative_attention_num_buckets",)),
}
"""Keys without the name of the architecture in front, and what they set in a configuration of transformers."""

EXCEPTIONS: dict[tuple[str, str], Hyperparameter] = {
    ("bloom", "attention.max_alibi_bias"): Hyperparameter((), (8,)),
    ("falcon", "attention.head_count_kv"): Hyperparameter((), (1,)),  # its configuration says multi_query instead
    ("gemma4", "attention.key_length"): Hyperparameter(("global_head_dim",)),
    ("gemma4", "attention.key_length_swa"): Hyperparameter(("head_dim",)),
    ("minimax-m2", "expert_gating_func"): Hyperparameter((), (2,)),  # the class always takes the sigmoid
    ("minimax-m2", "expert_weights_norm"): Hyperparameter((), (True,)),
    ("qwen2moe", "expert_shared_count"): Hyperparameter((), _ONE),
    ("qwen35moe", "expert_shared_count"): Hyperparameter((), _ONE),
    ("qwen35moe", "expert_weights_norm"): Hyperparameter((), (True,)),
}

_ELSEWHERE = ("rope.", "attention.sliding_window", "attention.value_length", "attention.scale")
_UNUSED = {"tensor_data_layout", "decoder_start_token_id"}
# Whatever else these name is read by transformers' own functions for them, which fail where it is missing.
_READ = {
    "lfm2": ("attention.head_count_kv", "shortconv."),
    "mamba": ("ssm.", "attention.head_count", "feed_forward_length"),
    "qwen35": ("ssm.", "block_count", "nextn_predict_layers", "full_attention_interval"),
    "qwen35moe": ("ssm.", "block_count", "nextn_predict_layers", "full_attention_interval"),
}


def set_hyperparameters(config: Any, metadata: Metadata) -> list[str]:
    """Give a configuration what the metadata of its GGUF file say, where transformers did not; what was changed.

    Raises UnsupportedModelError with the key that the configuration's class cannot apply.
    """
    arch = str(metadata.get("general.architecture"))
    notes: list[str] = []
    for key, value in of_architecture(metadata).items():
        if key in _UNUSED or key.startswith((*_ELSEWHERE, *_READ.get(arch, ()))):
            continue
        meaning = EXCEPTIONS.get((arch, key)) or KEYS.get(key)
        if meaning is None:
            raise refusal(config, key, value, "sinkscope does not know what this key changes")
        notes += _set_one(config, key, meaning, single(config, key, value))
    return notes + _set_window(config, metadata) + _set_scale(config, metadata) + _check_values(config, metadata)


def of_architecture(metadata: Metadata) -> dict[str, Any]:
    """The keys of the file's own architecture, without its name."""
    prefix = f"{metadata.get('general.architecture')}."
    return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def refusal(config: Any, key: str, value: object, reason: str) -> UnsupportedModelError:
    """The refusal of a file that says what its configuration cannot."""
    shown = f"{value:.9g}" if isinstance(value, float) else f"{value}"[:60]
    return UnsupportedModelError(
        f"the GGUF file has {key} = {shown}, which transformers' {type(config).__name__} cannot apply ({reason}): "
        "use the original checkpoint"
    )


def changed(config: Any, attribute: str, value: Any) -> list[str]:
    """Set an attribute to a value of the file, and the note about it; nothing if it is that already."""
    before = getattr(config, attribute, None)
    if equal(before, value):
        return []
    setattr(config, attribute, value)
    return [f"{attribute} is {_shown(value)}, from the file; transformers' default was {_shown(before)}"]


def declared(config: Any, attribute: str) -> bool:
    """Whether the configuration's class knows an attribute; any other can be set, and has no effect."""
    kind = type(config)
    return attribute in kind().to_dict() or attribute in kind.attribute_map


def equal(one: object, other: object) -> bool:
    """Whether two values are the same number to the precision of a GGUF file, or the same thing."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return bool(np.float32(one) == np.float32(other))
    return one == other


def head_width(config: Any) -> int:
    """The width of a head's keys."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def single(config: Any, key: str, value: Any) -> Any:
    """The one value of a key, which can be written once for each layer."""
    if not isinstance(value, list):
        return float(str(np.float32(value))) if isinstance(value, float) else value
    if not value or value.count(value[0]) != len(value):
        raise refusal(config, key, value, "its layers differ")
    return single(config, key, value[0])


def _set_one(config: Any, key: str, meaning: Hyperparameter, value: Any) -> list[str]:
    attribute = next((name for name in meaning.attributes if declared(config, name)), None)
    if attribute is None or getattr(config, attribute) is None:
        neutral = any(equal(value, each) for each in (*meaning.neutral, *_implied(config, key)))
        if neutral or (attribute is None and key == "context_length"):  # a class without this has no limit
            return []
    if attribute is None:
        raise refusal(config, key, value, "the class has no setting for it")
    return changed(config, attribute, value)


def _implied(config: Any, key: str) -> tuple[object, ...]:
    """The value of a key that a class without an attribute for it goes by."""
    heads, width = config.num_attention_heads, config.hidden_size
    if key == "feed_forward_length":
        return (4 * width,)
    if key == "attention.key_length":
        return (width // heads,)
    return (heads,) if key == "attention.head_count_kv" else ()


def _set_window(config: Any, metadata: Metadata) -> list[str]:
    keys = of_architecture(metadata)
    window = single(config, "attention.sliding_window", keys.get("attention.sliding_window", 0))
    pattern = keys.get("attention.sliding_window_pattern")
    layer_types = getattr(config, "layer_types", None)
    notes: list[str] = []
    if window and pattern is not None and layer_types is not None:
        wanted = _layer_types(pattern, len(layer_types))
        if wanted != layer_types and "sliding_attention" not in layer_types:
            raise refusal(config, "attention.sliding_window_pattern", pattern, "its layers have no window")
        notes += changed(config, "layer_types", wanted)
    elif window and isinstance(pattern, list) and not all(pattern):
        raise refusal(config, "attention.sliding_window_pattern", pattern, "its layers are alike")
    if not window:
        if "attention.sliding_window" in keys and "sliding_attention" in (layer_types or []):
            raise refusal(config, "attention.sliding_window", window, "its layers have a window")
        return notes
    if not declared(config, "sliding_window") or "sliding_attention" not in (layer_types or ["sliding_attention"]):
        raise refusal(config, "attention.sliding_window", window, "its layers have no window")
    return notes + changed(config, "sliding_window", window)


def _layer_types(pattern: Any, layers: int) -> list[str]:
    """The kind of each layer: a list marks those with a window, a number n makes each n-th one without."""
    marks = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(layers)]
    return ["sliding_attention" if mark else "full_attention" for mark in marks]


# llama.cpp knows the two Gemma models of 27B by their layers, and scales their queries by another width.
_GEMMA_27B = {"gemma2": 46, "gemma3": 62}


def _set_scale(config: Any, metadata: Metadata) -> list[str]:
    """The scale of the scores: stated, or for Gemma a rule of llama.cpp's that no key holds."""
    arch = str(metadata.get("general.architecture"))
    stated = single(config, "attention.scale", of_architecture(metadata).get("attention.scale", 0))
    if arch in _GEMMA_27B:
        large = config.num_hidden_layers == _GEMMA_27B[arch]
        width = config.hidden_size // config.num_attention_heads if large else head_width(config)
        if stated:
            width = round(stated**-2)
        if stated and not math.isclose(width**-0.5, stated, rel_tol=1e-6):
            raise refusal(config, "attention.scale", stated, "the class takes 1 / √n of a whole number n only")
        return changed(config, "query_pre_attn_scalar", width)
    if stated and declared(config, "attention_multiplier"):
        return changed(config, "attention_multiplier", stated)
    if stated and not equal(stated, head_width(config) ** -0.5):
        raise refusal(config, "attention.scale", stated, "the class has no setting for it")
    return []


def _check_values(config: Any, metadata: Metadata) -> list[str]:
    """Values are as wide as keys in every class that has no v_head_dim."""
    keys = of_architecture(metadata)
    for suffix in ("", "_swa"):
        value = keys.get(f"attention.value_length{suffix}")
        key = keys.get(f"attention.key_length{suffix}", None if suffix else head_width(config))
        if value is not None and not equal(value, key):
            raise refusal(config, f"attention.value_length{suffix}", value, "its values are as wide as its keys")
    return []


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"[:80]
