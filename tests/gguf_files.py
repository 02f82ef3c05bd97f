"""Small GGUF files, written from models of transformers as llama.cpp's converter would write them."""

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

VOCABULARY = 264
WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2
_TYPES = {"gemma3_text": "gemma3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
_MOVED_NORMS = {"gemma2", "gemma3", "nemotron"}


def byte_level_tokens(writer):
    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|end|>", *letters, "th", "the", *(f"<|{number}|>" for number in range(5))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * 258 + [3] * 5)
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_pad_token_id(0)
    return len(tokens)


def sentencepiece_tokens(writer):
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 260 + [-1.0, -2.0, -3.0, -4.0])
    writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [1] * 4)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    return len(pieces)


def gguf_of(model, path, tensors=None, **keys):
    """The file of a model with VOCABULARY tokens; `keys` replace what the file says, None leaves a key out."""
    config = model.config
    arch = _TYPES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    (sentencepiece_tokens if "gemma" in arch or arch == "phi3" else byte_level_tokens)(writer)
    for key, value in (_said(config) | keys).items():
        if value is not None:
            _add(writer, key if key.startswith("split.") else f"{arch}.{key}", value)
    for name, value in _tensors(model, arch).items():
        writer.add_tensor(name, value)
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _said(config):
    """What every converter writes, with the names of the file."""
    eps = next(name for name in ("rms_norm_eps", "norm_eps", "layer_norm_eps", "norm_epsilon") if hasattr(config, name))
    kind = "layer_norm_rms_epsilon" if eps == "rms_norm_eps" else "layer_norm_epsilon"
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        f"attention.{kind}": float(getattr(config, eps)),
    }


def _add(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _tensors(model, arch):
    config = model.config
    names = gguf.get_tensor_name_map(
        next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch), config.num_hidden_layers
    )
    written = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        whole, _, suffix = name.rpartition(".")
        data = value.detach().to(torch.float32).numpy()
        if whole.endswith("mlp.experts"):
            written |= _experts(f"blk.{name.split('.')[2]}", suffix, data)
            continue
        if name.endswith("shared_expert_gate.weight"):
            data = data[0]
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            data = _interleaved(data, config.num_key_value_heads if "k_proj" in name else config.num_attention_heads)
        if arch in _MOVED_NORMS and name.endswith("norm.weight"):
            data = data + 1
        written[f"{names.get_name(whole)}.{suffix}"] = data
    return written


def _experts(block, name, data):
    """The experts of a layer, whose gates llama.cpp keeps apart."""
    if name == "down_proj":
        return {f"{block}.ffn_down_exps.weight": data}
    gate, up = np.split(data, 2, axis=1)
    parts = {"gate": gate, "up": up}
    return {f"{block}.ffn_{part}_exps.weight": np.ascontiguousarray(value) for part, value in parts.items()}


def _interleaved(data, heads):
    """The rows of queries or keys in the order in which llama.cpp turns them."""
    half = data.shape[0] // heads // 2
    return np.ascontiguousarray(data.reshape(heads, 2, half, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape))


def write_gguf(path, arch="llama", **caps):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(WIDTH // HEADS)
    for cap, value in caps.items():
        writer.add_float32(f"{arch}.{cap}", value)
    vocabulary = (byte_level_tokens if arch == "llama" else sentencepiece_tokens)(writer)
    for name, shape in shapes(arch, vocabulary).items():
        seed = np.random.default_rng(len(name) * 31 + sum(name.encode()))
        # Large queries and keys give scores that a soft cap can be seen on.
        scale = 4.0 if "attn_q" in name or "attn_k" in name else 0.3
        writer.add_tensor(name, seed.normal(0, scale, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shapes(arch, vocabulary):
    size = WIDTH // HEADS
    shapes = {"token_embd.weight": (vocabulary, WIDTH), "output_norm.weight": (WIDTH,)}
    norms = ["attn_norm", "ffn_norm"]
    if arch == "gemma2":
        norms += ["post_attention_norm", "post_ffw_norm"]
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q.weight": (HEADS * size, WIDTH),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * size, WIDTH),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * size, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, HEADS * size),
            f"blk.{layer}.ffn_gate.weight": (HIDDEN, WIDTH),
            f"blk.{layer}.ffn_up.weight": (HIDDEN, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, HIDDEN),
        }
        shapes |= {f"blk.{layer}.{norm}.weight": (WIDTH,) for norm in norms}
    return shapes
