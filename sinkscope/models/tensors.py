"""Which tensors of a GGUF file end up in the model that transformers makes of it."""

from collections.abc import Collection
from typing import Any

import torch
from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils

from sinkscope.errors import UnsupportedModelError
from sinkscope.models.hyperparameters import changed, declared
from sinkscope.models.rotary import FACTORS

# Frequencies of the plain rotary positions, which very old files hold and nothing reads.
_UNREAD = "attn_rot_embd.weight"
_BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"}


def set_by_tensors(config: Any, names: Collection[str]) -> list[str]:
    """Give a configuration what shows in the names of a file's tensors only; what was changed."""
    notes = changed(config, "tie_word_embeddings", "output.weight" not in names)
    for attribute, name in _BIASES.items():
        if declared(config, attribute) and any(each.endswith(f".{name}") for each in names):
            notes += changed(config, attribute, value=True)
    return notes


def require_used(config: Any, arch: str, names: Collection[str]) -> None:
    """Raise UnsupportedModelError if the file has a tensor that no parameter of the model is made of."""
    if _read_by_name(arch):
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    kind = modeling_gguf_pytorch_utils.TENSOR_PROCESSORS.get(arch, modeling_gguf_pytorch_utils.TensorProcessor)
    used = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map(model, kind(config=config.to_dict()))
    # Experts are stored side by side, and a parameter that holds them all has no suffix.
    unused = [name for name in names if name not in used and name.removesuffix(".weight") not in used]
    refuse_unused(config, [name for name in unused if name not in FACTORS and not name.endswith(_UNREAD)])


def refuse_unused(config: Any, unused: Collection[str]) -> None:
    """Raise UnsupportedModelError if there are any."""
    if unused:
        raise UnsupportedModelError(
            f"the GGUF file has {len(unused)} tensors ({min(unused)}, …) that {type(config).__name__} of transformers "
            "does not use: use the original checkpoint"
        )


def _read_by_name(arch: str) -> bool:
    """Whether transformers has a newer reader for it, which reports the tensors that it did not use."""
    try:
        from transformers.integrations.gguf import GGUF_ARCHS  # noqa: PLC0415 - older releases have none
    except ImportError:
        return False
    return arch in GGUF_ARCHS
