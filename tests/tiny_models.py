"""Every causal language model of transformers, shrunk until it runs in a moment; nothing here touches a network."""

import math
import warnings
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

MODEL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""What AutoModelForCausalLM knows."""

LAYERS, HIDDEN, VOCABULARY, WINDOW = 4, 64, 128, 16

SHARPNESS = 1.5
"""A projection's output for an input of unit variance: with it attention is far from uniform, and far from one-hot."""

DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
DEPTHS += ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")

NAMES: dict[float, str] = {
    # heads
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads linear_num_value_heads "
    "linear_num_heads mamba_n_heads mamba_num_heads index_n_heads indexer_n_heads "
    # experts
    "num_experts n_routed_experts num_local_experts moe_num_experts zero_expert_num index_block_size",
    HIDDEN: "hidden_size d_model n_embd emb_dim embedding_size embedding_dim attention_hidden_size lru_width "
    "word_embed_proj_dim input_embedding_size output_embedding_size hidden_size_global adapter_in_dim "
    "adapter_out_dim adapter_input_size "
    # positions
    "max_position_embeddings n_positions n_ctx max_seq_len context_length",
    2: "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads num_query_groups "
    "num_experts_per_tok num_experts_per_token moe_topk moe_k index_topk_blocks indexer_compress_ratio eos_token_id",
    WINDOW: "sliding_window attention_chunk_size window_size attention_window_size sliding_window_size "
    "local_attention "
    # widths of a head, and the scale that goes with them
    "head_dim swa_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim "
    "indexer_head_dim qk_nope_head_dim d_head dim_head attention_head_size kv_channels mamba_head_dim d_rel "
    "query_pre_attn_scalar q_lora_rank kv_lora_rank pronunciation_embed_dim shape_embed_dim",
    32: "intermediate_size moe_intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner "
    "shared_expert_intermediate_size shared_intermediate_size dff dim_ff feed_forward_size "
    "expert_ffn_hidden_size ffn_hidden_size",
    VOCABULARY: "vocab_size unpadded_vocab_size vocab_size_per_layer_input pronunciation_vocab_size "
    "shape_vocab_size encoder_hash_byte_group_vocab",
    # the width of MLA's values differs from that of its queries
    20: "v_head_dim",
    8: "qk_rope_head_dim rotary_dim mamba_d_state state_size ssm_state_size index_topk indexer_budget keep_window_size",
    5.0: "attn_logit_softcapping",
    1: "n_group num_expert_group topk_group n_groups mamba_n_groups indexer_kv_heads index_local_blocks bos_token_id",
    0: "pad_token_id num_kv_shared_layers",
}
SIZES = dict.fromkeys(DEPTHS, LAYERS) | {name: size for size, names in NAMES.items() for name in names.split()}
"""What every configuration with an attribute of that name gets for it; no size is that of two things by chance."""

UNSET = (
    "head_dim",
    "num_key_value_heads",
    "num_experts_per_tok",
    "indexer_n_heads",
    "indexer_head_dim",
    "indexer_kv_heads",
)
UNSET += ("indexer_budget", "indexer_compress_ratio", "query_pre_attn_scalar")
"""Attributes that are given a size even where they have none by default."""

PATTERNS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")
"""Attributes that name the kind of each layer: of every kind that there is, in turn."""

ALTERNATING = ["sliding_attention", "full_attention"] * 2
SPARSE = ["full_attention", "minimax_m3_sparse"] * 2
SLIDING_HEADS = {
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 20,
}
VISION = {"mlp_layer_types": ["dense", "sparse"] * 2, "per_layer_config": {}}

SPECIAL: dict[str, dict[str, Any]] = {
    # Hybrids whose default pattern has no attention within four layers.
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    # Patterns that have to be asked for.
    "cohere_compass_text": {
        "layer_types": ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": None,
        },
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "minimax_m3_vl_text": {"layer_types": SPARSE},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ALTERNATING},
    # Layers with heads of their own number and width.
    "dots3_note": {"text_config": SLIDING_HEADS, "vision_config": VISION},
    "dots3_note_text": SLIDING_HEADS,
    # Sizes that depend on each other.
    "bailing_hybrid": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {"activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0]},
    "mamba2": {"num_heads": 8},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "reformer": {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (4, 6), "is_decoder": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 128, "num_key_value_heads": 4},
    "zamba2": {"attention_hidden_size": 128, "num_key_value_heads": 4, "num_query_groups": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs beside its sizes."""

DECODERS = {"musicgen": "musicgen_decoder", "musicgen_melody": "musicgen_melody_decoder"}
"""Types whose language model is not built from the configuration that the mapping names."""


def tiny_model(model_type: str, layers: int = LAYERS, **extra: Any) -> PreTrainedModel:
    """A random model of that type, at most LAYERS deep, in evaluation, with attention far from uniform."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # special tokens outside of the small vocabulary
        torch.manual_seed(0)
        config = shrunk(model_type, layers, **extra)
        if model_type in DECODERS:
            model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])._from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if not name.endswith("bias") and not parameter.any():
                # Temperatures, gates and learned sinks that start at zero would switch off what is to be tested.
                nn.init.normal_(parameter, std=0.5)
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D, nn.Embedding)):
            _sharpen(module)
    return model.eval()


def shrunk(model_type: str, layers: int = LAYERS, **extra: Any) -> PreTrainedConfig:
    """The type's default configuration with every size cut down."""
    kind = CONFIG_MAPPING[DECODERS.get(model_type, model_type)]
    config = kind(**_cut(_merged(_small(kind()), SPECIAL.get(model_type, {}) | extra), layers))
    config.is_decoder = True
    return config


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    known = vars(config)
    found = {name: size for name, size in SIZES.items() if name in known and (known[name] is not None or name in UNSET)}
    if "qk_rope_head_dim" in known:  # multi-head latent attention
        found |= {"head_dim": found["qk_rope_head_dim"], "num_key_value_heads": found["num_attention_heads"]}
    for name in PATTERNS:
        if kinds := known.get(name):
            found[name] = (list(dict.fromkeys(kinds)) * LAYERS)[:LAYERS]
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            found[name] = _small(part)
    return found


def _cut(settings: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same settings for fewer layers."""
    found = {name: _cut(value, layers) if isinstance(value, dict) else value for name, value in settings.items()}
    found |= dict.fromkeys(found.keys() & set(DEPTHS), layers)
    return found | {name: found[name][:layers] for name in PATTERNS if name in found}


def _merged(settings: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(settings[name], value) if isinstance(settings.get(name), dict) else value
        for name, value in others.items()
    }
    return settings | both


@torch.no_grad()
def _sharpen(module: nn.Module) -> None:
    """Scale random weights, whatever they were drawn with, until they neither flatten nor freeze what comes in."""
    weight = module.weight
    inputs = 1 if isinstance(module, nn.Embedding) else weight.shape[0 if isinstance(module, Conv1D) else 1]
    gain = 1 if isinstance(module, nn.Embedding) else SHARPNESS
    weight.mul_(gain / math.sqrt(inputs) / weight.std().clamp(min=1e-6))
