"""Where values first stop being finite in a forward, why, and what to do about it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from sinkscope.hooks.forward import logits
from sinkscope.hooks.module_calls import intercepted

WIDER = {
    torch.float16: "float16 ends at 65504; load the model in bfloat16 or float32",
    torch.bfloat16: "load the model in float32",
    torch.float32: "load the model in float64",
}
"""What to do where the values themselves leave a number format."""


def advice(dtype: torch.dtype) -> str:
    """What to do about values that are not finite in this dtype, though all weights are."""
    return WIDER.get(dtype, "look at what its code computes there")


def overflowed(values: Float[Tensor, "*axes"]) -> bool:
    """Whether any is NaN or +inf. -inf rules a token out, as padded vocabularies and masks do."""
    return bool((values.isnan() | (values == torch.inf)).any())


def fault(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Float[Tensor, "batch position token"]
) -> str | None:
    """Why a model's logits are no numbers: the first module whose output is not finite, the cause and the remedy.

    None where they are numbers.
    """
    if not overflowed(native):
        return None
    first = _first(model, ids)
    if first is None:
        return "its logits are not finite"
    where = f"the output of {first.name or 'the whole model'} is not finite"
    weights = dict(first.module.named_parameters()) | dict(first.module.named_buffers())
    for name, each in weights.items():
        if each.is_floating_point() and not each.is_meta and (count := int((~each.float().isfinite()).sum())):
            whole = ".".join(part for part in (first.name, name) if part)
            return f"{where}, because {count} of the {each.numel()} values of {whole} are not: the weights are broken"
    if any(each.is_meta for each in weights.values()):
        return f"{where}: {advice(first.dtype)}, if its weights, which are offloaded, are finite"
    return f"{where} although its input and its weights are: {advice(first.dtype)}"


@dataclass(frozen=True)
class _First:
    """A module whose output is not finite, of finite input."""

    name: str
    module: nn.Module
    dtype: torch.dtype


def _first(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> _First | None:
    names = {module: name for name, module in model.named_modules()}
    found: list[_First] = []

    def look(module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Looked at before the call: a layer may change its input in place.
        sound = bool(found) or not any(overflowed(each) for each in _tensors((args, kwargs)))
        output = call(*args, **kwargs)
        if sound and not found:
            # A part without weights may make masks, in which -inf is meant.
            least = overflowed if next(module.parameters(), None) is None else _not_finite
            broken = next((each for each in _tensors(output) if least(each)), None)
            if broken is not None:
                found.append(_First(names[module], module, broken.dtype))
        return output

    with intercepted(names, look):
        logits(model, ids)
    return found[0] if found else None


def _not_finite(values: Tensor) -> bool:
    return not bool(values.isfinite().all())


def _tensors(given: Any) -> Iterator[Tensor]:
    """The floating-point tensors in what a module takes or returns."""
    if isinstance(given, Tensor):
        if given.is_floating_point() and not given.is_meta:
            yield given
    elif isinstance(given, Mapping):
        for each in given.values():
            yield from _tensors(each)
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _tensors(each)
