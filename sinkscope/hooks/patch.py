"""patched(): another normalizer in place of softmax, for any use of the model while a block runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope import arguments
from sinkscope.attention import Call, Site
from sinkscope.attention.paths import attend
from sinkscope.attention.swap import Swap
from sinkscope.errors import UnknownNameError, UnsupportedModelError
from sinkscope.hooks.forward import embedding
from sinkscope.hooks.handshake import TOKENS, Handshake, handshake
from sinkscope.normalizers import Modifier, Normalizer, resolve

Head = tuple[int, int | None]
"""A layer's number and a head of it, or None for all of them."""


@dataclass(frozen=True)
class Plan:
    """Which swap each attention module of a model gets; modules that are not named keep what they have."""

    swaps: Mapping[str, Swap]

    def swap(self, site: Site) -> Swap | None:
        """The swap of a call, or None if its layer is left alone."""
        return self.swaps.get(site.name)

    def missed(self, seen: Collection[str]) -> list[str]:
        """The modules that were to be swapped and never called."""
        return [name for name in self.swaps if name not in seen]

    def by_layer(self, sites: Iterable[Site]) -> list[tuple[int, "Plan"]]:
        """The same swaps one layer at a time, by the layers' numbers."""
        found: dict[int, dict[str, Swap]] = {}
        for site in sites:
            if site.name in self.swaps:
                found.setdefault(site.layer, {})[site.name] = self.swaps[site.name]
        return [(layer, Plan(found[layer])) for layer in sorted(found)]


def plan(
    sites: Iterable[Site], swap: Swap, layers: Collection[int] | None = None, heads: Collection[Head] | None = None
) -> Plan:
    """Choose whole layers and single heads, by the model's own layer numbers; with neither, everything.

    Raises UnknownNameError for a layer without attention. Head numbers are checked when the layer is called.
    """
    sites = list(sites)
    there = {site.layer for site in sites}
    asked = {*(layers or ()), *(layer for layer, _ in heads or ())}
    if unknown := sorted(asked - there):
        raise UnknownNameError(
            f"layer {unknown[0]} has no attention that could be swapped: there are layers {_runs(there)}"
        )
    if layers is None and heads is None:
        return Plan({site.name: swap for site in sites})
    chosen: dict[int, frozenset[int] | None] = {}
    for layer, head in heads or ():
        before = chosen.get(layer, frozenset())
        chosen[layer] = None if head is None or before is None else before | {head}
    chosen |= dict.fromkeys(layers or ())
    return Plan({site.name: replace(swap, heads=chosen[site.layer]) for site in sites if site.layer in chosen})


@contextmanager
def patched(
    model: PreTrainedModel,
    normalizer: str | Normalizer | Callable[[Tensor], Tensor] = "softmax",
    *,
    layers: Collection[int] | None = None,
    heads: Collection[Head] | None = None,
    modifier: Modifier | None = None,
) -> Iterator[None]:
    """Swap softmax for another normalizer while the block runs: forward, generate with a cache, or training.

    Learned sinks, soft caps, windows, position biases and dropout stay as they are; gradients are those of the swapped
    model. The model is as it was afterwards, whatever happened. A single-token step of `generate` swaps too.

    Raises UnknownNameError for an unknown normalizer or layer, UnsupportedModelError for a model whose attention cannot
    be swapped, or if a chosen layer was never called, NothingObservedError if nothing ran, ValueError inside another
    probe or patch of the same model.
    """
    arguments.checked_model(model)
    arguments.checked_normalizer(normalizer)
    arguments.checked_modifier(modifier)
    layers, heads = arguments.checked_layers(layers), arguments.checked_heads(heads)
    swap = Swap(resolve(normalizer), modifier)
    vocabulary = embedding(model).shape[0]
    shown = handshake(model, torch.arange(TOKENS)[None] % vocabulary)
    chosen = plan(shown.sites, swap, layers, heads)
    check_anchored(model, shown, chosen)
    with swapped(model, shown, chosen):
        yield


@contextmanager
def swapped(model: PreTrainedModel, shown: Handshake, chosen: Plan) -> Iterator[None]:
    """Follow a plan while the block runs, for a model whose handshake is done; raises what `patched` raises there."""
    seen: set[str] = set()

    def replace_call(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        found = chosen.swap(site)
        if found is None:
            return own()
        check_heads(site, call, found)
        seen.add(site.name)
        return attend(call, found)

    with shown.seam(model, replace_call):
        yield
    if missed := chosen.missed(seen):
        raise UnsupportedModelError(
            f"{len(missed)} of {len(chosen.swaps)} layers were never called while "
            f"{chosen.swaps[missed[0]].label} was in place "
            f"({missed[0]}): nothing was swapped there"
        )


def check_anchored(model: PreTrainedModel, shown: Handshake, chosen: Plan) -> None:
    """Raise UnsupportedModelError if weights would depend on how long the text goes on after them."""
    swap = next((each for each in chosen.swaps.values() if not each.normalizer.shift_invariant), None)
    if swap is not None and not shown.anchored:
        raise UnsupportedModelError(
            f"{swap.label} has no meaning in {type(model).__name__}: its scores hold a constant that depends on the "
            "length of the text, which softmax cancels; choose a normalizer that does so too, like entmax or topk"
        )


def check_heads(site: Site, call: Call, swap: Swap) -> None:
    """Raise UnknownNameError if the swap names a head that the layer has not."""
    count = call.query.shape[1]
    if swap.heads is not None and max(swap.heads) >= count:
        raise UnknownNameError(f"layer {site.layer} has no head {max(swap.heads)}: its heads are 0 to {count - 1}")


def _runs(numbers: Collection[int]) -> str:
    """Numbers as runs: 0-3, 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
