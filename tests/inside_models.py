"""Tiny models whose layers do not ask transformers' interface, and how they are run."""

import inspect

import pytest
import torch
from builders import ARCHITECTURES, tiny

DECODER = {
    "d_model": 32,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
}
FALCON = {"head_dim": None, "alibi": False}
GPT2 = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
SEEN_INSIDE = {
    "bloom": {"n_layer": 4, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": 64, "expansion_ratio": 2},
    "falcon": FALCON | {"multi_query": True},
    "falcon, new decoder": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, alibi": FALCON | {"multi_query": False, "alibi": True},
    "gpt_neo": {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": 4},
    "gpt2, upcast": GPT2 | {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
    "openai-gpt": GPT2,
    "xglm": {"d_model": 32, "num_layers": 4, "attention_heads": 4, "ffn_dim": 64},
    "gpt_neox_japanese": {"intermediate_multiple_size": 2},
    "rembert": {"is_decoder": True, "input_embedding_size": 32, "output_embedding_size": 32},
    "roformer": {"is_decoder": True, "embedding_size": 32},
    "megatron-bert": {"is_decoder": True},
    "big_bird, full": {"is_decoder": True, "attention_type": "original_full"},
    "trocr": DECODER,
    "mvp": DECODER,
    "git": {
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
    },
}


def built(name, **settings):
    model_type = name.partition(",")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, model_type, {})
        return tiny(model_type, **settings)


@torch.no_grad()
def run(model, ids, keep=None, **arguments):
    if keep is not None:
        arguments["attention_mask"] = keep.long()
        if "position_ids" in inspect.signature(model.forward).parameters:
            arguments["position_ids"] = (keep.long().cumsum(-1) - 1).clamp(min=0)
    return model(input_ids=ids, use_cache=False, **arguments)


def look(_site, _call, own):
    return own()


def distance(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max())
