"""What takes the heads' outputs into the model's width: each layer's output projection, found by what it does.

While a few tokens pass, it is the module whose input is the layer's attention output, to the last bit. Of its weights
only each head's Gram matrix is kept: it gives the norm of whatever the head sends through.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sinkscope.attention import Call, Site
from sinkscope.attention.given import Given
from sinkscope.hooks.forward import logits
from sinkscope.hooks.handshake import TOKENS, Handshake
from sinkscope.hooks.module_calls import intercepted
from sinkscope.hooks.outside import not_of_tokens
from sinkscope.hooks.tolerances import TOLERANCES, difference


@dataclass(frozen=True, eq=False)
class Projections:
    """What is known of the output projections, by the qualified names of the attention modules."""

    grams: dict[str, Float[Tensor, "head value_width value_width"]] = field(default_factory=dict)
    """W_O·W_Oᵀ of each head's slice W_O [value_width width], in fp32 on the layer's device."""
    undefined: dict[str, str] = field(default_factory=dict)
    """Why the other modules have none."""

    def of(self, site: Site, call: Call) -> Call:
        """The call with what is known of its own."""
        gram = self.grams.get(site.name)
        return call if gram is None else replace(call, gram=gram.to(call.query.device))


@torch.no_grad()
def find_projections(model: PreTrainedModel, ids: Int[Tensor, "batch position"], shown: Handshake) -> Projections:
    """Run up to TOKENS of the ids through the model, and see which module takes each layer's heads as they are.

    There is none to be found where outputs are gated, normalised or mixed on the way, where several modules take them,
    and where one does more than multiply by weights that can be read, as quantized and adapted ones do.
    """
    ids = ids[:1, :TOKENS]
    watch = _Watch(ids.shape[1])
    with shown.seam(model, watch.see), _listened(model, watch.hear):
        logits(model, ids)
    found = Projections()
    for name, calls in watch.calls.items():
        gram = _gram(calls)
        if isinstance(gram, str):
            found.undefined[name] = gram
        else:
            found.grams[name] = gram
    return found


@dataclass(eq=False)
class _Passed:
    """One attention call: its output, and what took it."""

    output: Tensor | None
    """None where the layer does not show it."""
    takers: dict[str, nn.Module] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class _Watch:
    """Looks for each attention output among the inputs of what runs until the next one."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.calls: dict[str, list[_Passed]] = {}
        self.last = _Passed(None)

    def see(self, site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        """Take note of an attention output."""
        output = own()
        if not_of_tokens(call, self.tokens) is None:
            # A copy, because a layer may gate its own in place.
            self.last = _Passed(None if isinstance(call, Given) else output.clone())
            self.calls.setdefault(site.name, []).append(self.last)
        return output

    def hear(self, name: str, module: nn.Module, given: Any, output: Any) -> None:
        """Take note of a module whose input is the last attention output."""
        wanted = self.last.output
        if wanted is None or not isinstance(given, Tensor):
            return
        if (given.dtype, given.device) != (wanted.dtype, wanted.device):
            return
        width = wanted.shape[-2] * wanted.shape[-1]
        if given.shape[-1:] != (width,) or not torch.equal(given.reshape(-1, width), wanted.reshape(-1, width)):
            return
        self.last.takers[name] = module
        if fault := _fault(module, given, output):
            self.last.faults.append(fault)


@contextmanager
def _listened(model: nn.Module, hear: Callable[[str, nn.Module, Any, Any], None]) -> Iterator[None]:
    """Tell of every module that has weights of its own, what it was given first and what it made of it."""
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) or _is_leaf(module)
    }

    def tell(module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = call(*args, **kwargs)
        hear(names[module], module, next(iter((*args, *kwargs.values())), None), output)
        return output

    with intercepted(names, tell):
        yield


def _is_leaf(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return bool(own) and not any(module.children())


def _fault(module: nn.Module, given: Float[Tensor, "*rows inputs"], output: Any) -> str | None:
    """Why what a module does is no product with its weights; None if it is."""
    kind = type(module).__name__
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear | Conv1D) or not isinstance(weight, Tensor):
        return f"a {kind} takes its heads' output"
    if weight.is_meta or not weight.is_floating_point() or weight.dim() != 2 or given.shape[-1] not in weight.shape:
        return f"the weights of its {kind} cannot be read"
    exact = torch.promote_types(given.dtype, torch.float32)
    product = given.to(exact) @ _matrix(module).to(exact)
    if module.bias is not None:
        product = product + module.bias
    same = isinstance(output, Tensor) and output.shape == product.shape
    if same and difference(product, output) <= TOLERANCES.get(given.dtype, TOLERANCES[torch.float32]):
        return None
    return f"its {kind} does more than multiply by its weights"


def _matrix(module: nn.Linear | Conv1D) -> Float[Tensor, "inputs width"]:
    weight: Tensor = module.weight
    return weight if isinstance(module, Conv1D) else weight.T


def _gram(calls: list[_Passed]) -> Float[Tensor, "head value_width value_width"] | str:
    """The Gram matrices behind all calls of a module; else, in words, why there are none."""
    output = calls[0].output
    if output is None:
        return "it shows its scores only, not its heads' output"
    takers = {name: module for each in calls for name, module in each.takers.items()}
    if not all(each.takers for each in calls):
        return "nothing takes its heads' output as it is"
    if len(takers) > 1:
        return f"several modules take its heads' output: {', '.join(takers)}"
    if faults := [fault for each in calls for fault in each.faults]:
        return faults[0]
    [module] = takers.values()
    _, _, heads, value_width = output.shape
    slices = _matrix(module).float().reshape(heads, value_width, -1)
    return slices @ slices.mT
