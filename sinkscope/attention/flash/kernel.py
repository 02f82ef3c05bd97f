"""The one door to PyTorch's fused attention kernels, which also return the log-sum-exp of every row."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

ALIGNED = 8
"""The CUDA kernel reads vectors of 16 bytes."""


def has_kernel(device: torch.device) -> bool:
    """Whether causal attention on this device has a kernel here."""
    return device.type in ("cpu", "cuda")


def causal(
    query: Float[Tensor, "batch head query width"],
    key: Float[Tensor, "batch group key width"],
    value: Float[Tensor, "batch group key value_width"],
    scale: float,
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query"]]:
    """Causal softmax attention and log Σ exp(scale·q·k) in fp32; queries behind the last key see all keys.

    On the CPU the output is that of sdpa, bit for bit, where there are as many queries as keys. The log-sum-exp has
    no gradient.
    """
    if query.shape[1] % key.shape[1]:
        # The kernel dies on more kv heads than query heads, and cannot be caught.
        raise ValueError(f"expected query heads to be a multiple of kv heads, got {query.shape[1]} and {key.shape[1]}")
    width = value.shape[-1]
    if query.device.type == "cuda":
        return _cuda(query, key, value, scale, width)
    widest = max(query.shape[-1], width)
    parts = [_wide(each, widest) for each in (query, key, value)]
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 - no public call returns the LSE
    output, lse = run(*parts, is_causal=True, scale=scale)
    return output[..., :width], lse.contiguous()


def _cuda(
    query: Tensor, key: Tensor, value: Tensor, scale: float, width: int
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query"]]:
    repeats = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(repeats, dim=1) for each in (key, value))
    parts = [_wide(each, -(-each.shape[-1] // ALIGNED) * ALIGNED) for each in (query, key, value)]
    run = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001 - no public call returns the LSE
    output, lse, _, _ = run(*parts, None, compute_log_sumexp=True, is_causal=True, scale=scale)
    # The kernel rounds the number of rows up.
    return output[..., :width], lse[..., : query.shape[2]]


def _wide(tensor: Tensor, width: int) -> Tensor:
    """The same vectors with zeros behind, each in one piece."""
    wide = pad(tensor, (0, width - tensor.shape[-1])) if width > tensor.shape[-1] else tensor
    return wide if wide.stride(-1) == 1 else wide.contiguous()
