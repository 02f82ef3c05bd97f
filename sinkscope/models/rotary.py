"""Rotary positions as a GGUF file has them: base, width, scaling, and frequencies of its own."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sinkscope.models.hyperparameters import Metadata, changed, equal, head_width, of_architecture, refusal, single

Factors = Mapping[str, Float[Tensor, "frequency"]]

FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors by which frequencies are divided."""

# What each of these has to be where it is stated, for nothing here can apply another value.
_FIXED = {
    "alpha": (0, 1),
    "yarn_log_multiplier": (0,),
    "yarn_ext_factor": (-1, 1),
    "yarn_attn_factor": (1,),
}
_SECTIONED = ("qwen35", "qwen35moe")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def set_rotary(config: Any, metadata: Metadata, factors: Factors) -> list[str]:
    """Give a configuration the rotary positions of its GGUF file; what was changed.

    `factors` are the tensors of the file that are named in FACTORS. Raises UnsupportedModelError with the key, or the
    tensor, that the configuration's class cannot apply.
    """
    keys = {
        key.removeprefix("rope."): value if key == "rope.dimension_sections" else single(config, key, value)
        for key, value in of_architecture(metadata).items()
        if key.startswith("rope.")
    }
    if getattr(config, "rope_parameters", None) is None:
        _refuse_all(config, keys, factors)
        return []
    before = repr(config.rope_parameters)
    if "dimension_sections" in keys and metadata.get("general.architecture") not in _SECTIONED:
        raise refusal(config, "rope.dimension_sections", keys["dimension_sections"], "it has one position for a token")
    _set_base(config, keys)
    _set_width(config, keys)
    _set_scaling(config, keys, factors)
    if repr(config.rope_parameters) == before:
        return []
    return [f"the rotary positions are the file's: {_shown(config)}"]


def _parameters(config: Any) -> Any:
    """The parameters that a file's keys are about: those of the layers without a window, where these differ."""
    return config.rope_parameters.get("full_attention") or config.rope_parameters


def _refuse_all(config: Any, keys: Mapping[str, Any], factors: Factors) -> None:
    """Refuse whatever turns queries and keys in a model whose positions are of another kind."""
    scaled = {key: value for key, value in keys.items() if value not in (0, 1, "none")}
    for name, value in (*scaled.items(), *((name, "a tensor") for name in factors)):
        raise refusal(config, name if name in factors else f"rope.{name}", value, "its positions are not rotary")


def _set_base(config: Any, keys: Mapping[str, Any]) -> None:
    parameters = _parameters(config)
    base = keys.get("freq_base")
    if base is not None and not equal(parameters["rope_theta"], base):
        parameters["rope_theta"] = base
    own = keys.get("freq_base_swa")
    windowed = config.rope_parameters.get("sliding_attention", parameters)
    if own is None or equal(windowed["rope_theta"], own):
        return
    if windowed is parameters:
        raise refusal(config, "rope.freq_base_swa", own, "all its layers have one base")
    windowed["rope_theta"] = own


def _set_width(config: Any, keys: Mapping[str, Any]) -> None:
    parameters = _parameters(config)
    if parameters is not config.rope_parameters:
        return _check_nested_width(config, keys)
    width, wanted = head_width(config), keys.get("dimension_count")
    if "dimension_count_swa" in keys and not equal(keys["dimension_count_swa"], keys.get("dimension_count", width)):
        raise refusal(config, "rope.dimension_count_swa", keys["dimension_count_swa"], "all its layers have one width")
    if not wanted or wanted == int(width * parameters.get("partial_rotary_factor", 1.0)):
        return None
    if "partial_rotary_factor" not in parameters or not 0 < wanted < width + 1:
        raise refusal(config, "rope.dimension_count", wanted, f"it turns heads of {width} as a whole")
    parameters["partial_rotary_factor"] = wanted / width
    return None


def _check_nested_width(config: Any, keys: Mapping[str, Any]) -> None:
    widths = {"dimension_count": getattr(config, "global_head_dim", None) or head_width(config)}
    widths["dimension_count_swa"] = head_width(config)
    for key, width in widths.items():
        if key in keys and not equal(keys[key], width):
            raise refusal(config, f"rope.{key}", keys[key], f"it turns heads of {width} as a whole")


def _set_scaling(config: Any, keys: Mapping[str, Any], factors: Factors) -> None:
    scaling = {key.removeprefix("scaling."): value for key, value in keys.items() if key.startswith("scaling.")}
    for key, values in _FIXED.items():
        if key in scaling and not any(equal(scaling[key], value) for value in values):
            raise refusal(config, f"rope.scaling.{key}", scaling[key], "it is not applied here")
    kind = str(scaling.get("type", "linear"))  # llama.cpp's own default
    factor = float(scaling.get("factor", keys.get("scale_linear", 0)) or 1) if kind != "none" else 1.0
    attention = float(scaling.get("attn_factor", 1.0))
    if FACTORS[1] in factors or FACTORS[2] in factors:
        _set_long(config, keys, factors, factor, attention)
    elif FACTORS[0] in factors:
        _set_frequencies(config, factors[FACTORS[0]] * _plain(config, kind, factor), attention)
    elif kind == "yarn" and (factor > 1 or attention != 1):
        _set_yarn(config, scaling, factor, attention)
    elif attention != 1:
        raise refusal(config, "rope.scaling.attn_factor", attention, f"it belongs to yarn, and the type is {kind}")
    elif _plain(config, kind, factor) != 1:
        _replace(config, {"rope_type": "linear", "factor": factor})
    elif _parameters(config)["rope_type"] not in {"default", "proportional"}:
        _replace(config, {"rope_type": "default"})


def _plain(config: Any, kind: str, factor: float) -> float:
    """The factor by which every frequency is divided, unless the kind of scaling is another."""
    if kind not in {"none", "linear"} and (factor != 1 or kind not in {"yarn", "longrope"}):
        raise refusal(config, "rope.scaling.type", kind, "it does not go with what else the file says")
    return factor


def _set_yarn(config: Any, scaling: Mapping[str, Any], factor: float, attention: float) -> None:
    _require_one(config, "rope.scaling.type", "yarn")
    original = int(scaling.get("original_context_length", config.max_position_embeddings))
    parameters: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for key in ("beta_fast", "beta_slow"):
        if f"yarn_{key}" in scaling:
            parameters[key] = scaling[f"yarn_{key}"]
    if attention != 1:
        # llama.cpp multiplies; the class replaces.
        parameters["attention_factor"] = attention * (1 + 0.1 * math.log(factor))
    _replace(config, parameters)


def _set_long(config: Any, keys: Mapping[str, Any], factors: Factors, factor: float, attention: float) -> None:
    """Phi 3: one division of the frequencies for short texts, another for those longer than the original limit."""
    if set(factors) != set(FACTORS[1:]) or factor != 1:
        raise refusal(config, "+".join(sorted(factors)), "tensors", "these do not go with what else the file says")
    original = int(keys.get("scaling.original_context_length", config.max_position_embeddings))
    _set_divided(config, factors[FACTORS[2]], factors[FACTORS[1]], original, attention)


def _set_frequencies(config: Any, divisors: Float[Tensor, "frequency"], attention: float) -> None:
    """Llama 3.1 and its like: each frequency divided by a number of its own."""
    if _parameters(config)["rope_type"] == "proportional":
        _check_proportional(config, divisors)
    elif attention != 1 or not torch.equal(divisors, torch.ones_like(divisors)):
        largest = round(float(divisors.max()), 4)
        llama3 = {"rope_type": "llama3", "factor": largest, **_LLAMA3}
        if attention == 1 and _divides_as(config, llama3, divisors):
            _replace(config, llama3)
        else:
            _set_divided(config, divisors, divisors, int(config.max_position_embeddings), attention)


def _divides_as(config: Any, parameters: dict[str, Any], divisors: Float[Tensor, "frequency"]) -> bool:
    """Whether parameters of the class lead to these divisors."""
    plain = _frequencies(config, {"rope_type": "linear", "factor": 1.0})
    made = _frequencies(config, parameters)
    return made.shape == divisors.shape and torch.allclose(plain / divisors, made, rtol=1e-5, atol=0)


def _frequencies(config: Any, parameters: dict[str, Any]) -> Float[Tensor, "frequency"]:
    copy = type(config).from_dict(config.to_dict())
    _replace(copy, parameters)
    frequencies: Tensor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](copy, torch.device("cpu"))[0]
    return frequencies


def _check_proportional(config: Any, divisors: Float[Tensor, "frequency"]) -> None:
    """Gemma 4: the class turns the first part of a head and not the rest, which its files say by huge divisors."""
    share = _parameters(config).get("partial_rotary_factor", 1.0)
    turned = int(share * len(divisors))
    wanted = divisors[:turned].eq(1).all() and divisors[turned:].gt(1e20).all()
    if not wanted:
        raise refusal(config, FACTORS[0], "a tensor", f"it turns the first {turned} pairs and no others")


def _set_divided(
    config: Any,
    short: Float[Tensor, "frequency"],
    long: Float[Tensor, "frequency"],
    original: int,
    attention: float,
) -> None:
    _require_one(config, FACTORS[0], "a tensor")
    pairs = int(head_width(config) * _parameters(config).get("partial_rotary_factor", 1.0)) // 2
    if len(short) != pairs or len(long) != pairs:
        raise refusal(config, FACTORS[0], f"{len(short)} numbers", f"it has {pairs} frequencies")
    divided = {"short_factor": short.tolist(), "long_factor": long.tolist()}
    parameters: dict[str, Any] = {"rope_type": "longrope", **divided}
    parameters |= {"factor": 1.0, "attention_factor": attention, "original_max_position_embeddings": original}
    _replace(config, parameters)


def _require_one(config: Any, key: str, value: object) -> None:
    if _parameters(config) is not config.rope_parameters:
        raise refusal(config, key, value, "its layers have rotary positions of two kinds")


def _replace(config: Any, scaling: dict[str, Any]) -> None:
    """Scale the rotary positions so, and in no other way."""
    parameters = _parameters(config)
    kept = {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters}
    parameters.clear()
    parameters.update(kept | scaling)
    if "original_max_position_embeddings" in scaling and hasattr(config, "original_max_position_embeddings"):
        # Phi 3 keeps it twice, and this one has the last word.
        changed(config, "original_max_position_embeddings", scaling["original_max_position_embeddings"])


def _shown(config: Any) -> str:
    parameters = _parameters(config)
    return ", ".join(f"{key} {value}" for key, value in parameters.items() if not isinstance(value, list))
