"""How much each position's input matters for the loss: gradient norms at the model's embeddings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.forward import embedding, evaluating
from sinkscope.hooks.model_state import restored
from sinkscope.hooks.module_calls import intercepted
from sinkscope.statistics.accumulate import Blocks, influences, ratio, standard_error


def gradient_norms(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], keep: Bool[Tensor, "batch position"]
) -> Float[Tensor, "batch position"]:
    """The L2 norm of d(loss)/d(embedding) at every position, in nats per unit of the embedding; NaN on padding.

    The loss is the mean next-token loss of the position's own window, and the embedding what the model's embedding
    module returns. The last token has no influence, and a gradient of 0. In fp64, on the CPU. Inside `patched` the
    gradients are those of the swapped model. Parameters get no gradients, and the model is left as it was.

    Raises UnsupportedModelError for a model whose embedding of the tokens cannot be reached.
    """
    # Tensors that were made in inference mode cannot be part of a graph, but copies can.
    with torch.inference_mode(mode=False), torch.enable_grad(), evaluating(model), _frozen(model):
        norms = torch.full(ids.shape, torch.nan, dtype=torch.float64)
        # One window at a time, without its padding: what a backward pass keeps is that of one window.
        for row, (window, real) in enumerate(zip(ids.clone(), keep.clone(), strict=True)):
            if int(real.sum()) > 1:
                norms[row, real] = _norms(model, window[real])
    return norms


def gradient_figures(
    norms: Float[Tensor, "window position"], keep: Bool[Tensor, "window position"], blocks: Blocks | None = None
) -> dict[str, float]:
    """Means over windows of two ratios of gradient norms, each with its standard error in `_se`.

    `gradient_first_ratio` is the norm at the first token ÷ the mean at the others, `gradient_peak_ratio` the largest
    norm ÷ the median. The last token, whose gradient is 0, is left out, and so is padding. A window whose
    gradients are no numbers, or with fewer than three tokens, leaves them undefined.
    """
    ratios = torch.stack([_ratios(row[real][:-1]) for row, real in zip(norms, keep, strict=True)])
    counts = torch.ones_like(ratios)
    means = ratio(ratios, counts).tolist()
    errors = standard_error(influences(ratios, counts), counts, blocks).tolist()
    return {
        "gradient_first_ratio": means[0],
        "gradient_first_ratio_se": errors[0],
        "gradient_peak_ratio": means[1],
        "gradient_peak_ratio_se": errors[1],
    }


def _ratios(norms: Float[Tensor, "token"]) -> Float[Tensor, "2"]:
    if len(norms) < 2:
        return torch.full((2,), torch.nan, dtype=norms.dtype)
    return torch.stack([norms[0] / norms[1:].mean(), norms.max() / norms.median()])


def _norms(model: PreTrainedModel, ids: Int[Tensor, "position"]) -> Float[Tensor, "position"]:
    with restored(model), _leaf(model, len(ids)) as leaves:
        logits = model(input_ids=ids[None].to(embedding(model).device), use_cache=False).logits[0, :-1]
    if len(leaves) != 1:
        raise _unreachable(model, f"was looked up {len(leaves)} times for a window of tokens")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # The sum, and the mean of it afterwards: in half precision the small gradients of a mean would vanish.
    loss = nn.functional.cross_entropy(wide, ids[1:].to(wide.device), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else (None,)
    if gradient is None:
        raise _unreachable(model, "has no influence on its loss")
    norms: Tensor = gradient[0].cpu().double().norm(dim=-1) / (len(ids) - 1)
    return norms


@contextmanager
def _leaf(model: PreTrainedModel, tokens: int) -> Iterator[list[Tensor]]:
    """Cut the graph behind the token embedding while the block runs: the list gets what takes its place."""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = call(*args, **kwargs)
        if not isinstance(output, Tensor) or output.shape[:-1] != (1, tokens):
            return output
        leaves.append(output.detach().requires_grad_())
        # Layers may change their input in place, which a leaf forbids.
        return leaves[-1].clone()

    try:
        module = model.get_input_embeddings()
    except NotImplementedError:
        module = None
    if not isinstance(module, nn.Module):
        raise _unreachable(model, "cannot be found")
    with intercepted([module], cut):
        yield leaves


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient, nor for what it takes to be kept; afterwards those that did ask again."""
    asking = [each for each in model.parameters() if each.requires_grad]
    try:
        for each in asking:
            each.requires_grad = False
        yield
    finally:
        for each in asking:
            each.requires_grad = True


def _unreachable(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"gradients cannot be had of {type(model).__name__}: its token embedding {reason}; leave them out"
    )
