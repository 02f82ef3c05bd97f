"""Tiny models of many architectures, and a tokenizer to go with them; nothing of sinkscope is imported here."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

BASE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2_NAMES = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt2": GPT2_NAMES,
    "gpt_neox": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi3": {},
    "olmo2": {},
    "gpt_oss": {
        "sliding_window": 5,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "cohere2": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "head_dim": None,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "moe_intermediate_size": 16,
    },
}
"""Model types with what their configurations need beside BASE; None leaves a key of BASE out."""


def tiny(model_type: str, **extra: object) -> PreTrainedModel:
    """A random model whose attention is far from uniform."""
    settings = {key: value for key, value in (BASE | ARCHITECTURES[model_type] | extra).items() if value is not None}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **settings)
        # Older releases of transformers put Gemma 2 on sdpa, which drops its soft cap in silence.
        eager = {"attn_implementation": "eager"} if "attn_logit_softcapping" in settings else {}
        model = AutoModelForCausalLM.from_config(config, **eager).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                # Random initial weights give flat maps, and flat maps hide mistakes.
                parameter.data.mul_(4 if "embed" not in name and "wte" not in name else 2)
    return model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, with <s> (id 1), </s> (2) and a padding token (0) that the tokenizer itself never adds."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {piece: index + 3 for index, piece in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")  # noqa: S106
