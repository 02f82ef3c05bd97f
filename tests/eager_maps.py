"""What every figure is held against: the attention maps that a model's own eager functions return.

Windows are run one at a time, without padding, mask or positions: what the model makes of a window alone is what a
report has to say of it, whatever the window was batched with.
"""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

UNNAMED = ""


@dataclass(frozen=True, eq=False)
class Map:
    """One call's weights, and what its mask shows, both [batch head query key]."""

    module: str
    weights: torch.Tensor
    visible: torch.Tensor


@dataclass(frozen=True, eq=False)
class Eager:
    """An eager forward: its token-to-token maps in order, what it called attentions, and its logits.

    A model whose layers do not ask for their attention function has its `attentions` as maps, of modules unnamed; if
    they are no causal attention over the tokens, it has none.
    """

    model: PreTrainedModel
    maps: list[Map]
    attentions: list[torch.Tensor]
    logits: torch.Tensor

    def in_order_of(self, modules: Sequence[str]) -> list[Map]:
        """The maps in the order of a report's layers; KeyError unless these are just the modules that were called."""
        if all(each.module == UNNAMED for each in self.maps) and len(self.maps) == len(modules):
            return self.maps
        waiting = defaultdict(list)
        for each in self.maps:
            waiting[each.module].append(each)
        found = [waiting[module].pop(0) if waiting[module] else None for module in modules]
        if None in found or any(waiting.values()):
            raise KeyError(f"{[each.module for each in self.maps]} were called, and {list(modules)} measured")
        return found

    def unexplained(self) -> int:
        """How many maps over the tokens among the model's `attentions` are those of no call."""
        size = self.logits.shape[1]
        return sum(
            each.shape[-2:] == (size, size) and not any(_same(each, known.weights) for known in self.maps)
            for each in self.attentions
        )


@dataclass(frozen=True, eq=False)
class Figures:
    """What maps say by the definitions; the arrays hold one entry per call and head, NaN where nothing is defined."""

    first_mass: np.ndarray
    entropy: np.ndarray
    row_mass: np.ndarray
    received: dict[tuple[int, int], float]
    """By window and position, the mean over all calls and heads."""


@torch.no_grad()
def eager(model, ids) -> Eager:
    """Run a copy of the model on its eager functions over windows of one length, keeping what they return.

    `output_attentions` alone is not enough: some models leave calls out of it, or put other things into it. And it
    leaves hooks behind, which is why a copy is run.
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = "eager"
    names = {module: name for name, module in twin.named_modules()}
    original, seen = AttentionInterface.get_interface, []

    def get_interface(interface, name, default):
        own = original(interface, name, default)

        def recording(module, query, key, value, attention_mask, **others):
            output, weights = own(module, query, key, value, attention_mask, **others)
            seen.append((names[module], weights, attention_mask))
            return output, weights

        return recording

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        found = twin(input_ids=ids, use_cache=False, output_attentions=True)
    size = (ids.shape[1],) * 2
    maps = [
        Map(name, weights.double(), _visible(mask, size).expand(weights.shape))
        for name, weights, mask in seen
        if weights.shape[-2:] == size
    ]
    attentions = [each for each in found.get("attentions") or () if each is not None]
    if not seen and all(_causal(each, size) for each in attentions):
        maps = [Map(UNNAMED, each.double(), each > 0) for each in attentions]
    return Eager(twin, maps, attentions, found.logits)


def windows_of(ids, keep):
    """Each window alone, [1, position], without its padding."""
    return [row[real][None] for row, real in zip(ids, keep, strict=True)]


def figures(windows: Sequence[Sequence[Map]]) -> Figures:
    """First-token mass, entropy, row mass and received mass over windows, each of which gives its maps in one order."""
    rows, received = [], defaultdict(list)
    for calls in zip(*windows, strict=True):
        sums = torch.zeros(3, calls[0].weights.shape[1], 2, dtype=torch.float64)
        for window, each in enumerate(calls):
            visible = each.visible[0]
            weights = torch.where(visible, each.weights[0], 0)
            sums += _by_row(weights, visible)
            later = visible.tril(-1)
            mean = torch.where(later, weights, 0).sum(-2) / later.sum(-2)
            for place in range(mean.shape[-1]):
                received[window, place] += mean[:, place][~mean[:, place].isnan()].tolist()
        rows.append(sums)
    first, entropy, mass = (torch.cat(rows, dim=1)[..., 0] / torch.cat(rows, dim=1)[..., 1]).numpy()
    return Figures(first, entropy, mass, {place: float(np.mean(each)) for place, each in received.items() if each})


def _by_row(weights, visible):
    """Sums and counts of first-token mass, entropy and row mass over every query but the first, [figure head 2]."""
    mass = weights.sum(-1)
    share = weights / mass[..., None]
    entropy = -torch.special.xlogy(share, share).sum(-1)
    counts = visible[..., 0], visible.any(-1), visible.any(-1)
    return torch.stack(
        [
            torch.stack([torch.where(count, value, 0)[:, 1:].nansum(-1), count[:, 1:].sum(-1)], dim=-1)
            for value, count in zip((weights[..., 0], entropy, mass), counts, strict=True)
        ]
    )


def _causal(each, size):
    if each.dim() != 4 or each.shape[-2:] != size:
        return False
    return bool((each >= 0).all() and (each.sum(-1) <= 1 + 1e-4).all() and not each[0].triu(1).any())


def _visible(mask, size):
    if mask is None:
        return torch.ones(size, dtype=torch.bool).tril()
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _same(one, other):
    return one.shape == other.shape and torch.allclose(one.double(), other, atol=1e-5)
