"""The other ways to the same masses: all of them build attention maps, under eager attention, and reduce them."""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from timing import Clock
from torch import Tensor
from transformers import PreTrainedModel
from workload import Workload, embedded_model

Masses = dict[str, list[float]]
"""For each class the mean mass on it in every head, layer after layer; NaN where no query sees such a key."""

LENS = "transformer_lens"


@dataclass(frozen=True, eq=False)
class Reduction:
    """The mean mass on each class over the queries that see a key of it, query 0 left out: as sinkscope's."""

    names: tuple[str, ...]
    columns: Tensor
    """[key, class], up to the last key that belongs to any."""
    rows: Tensor
    """[query, class]"""

    @classmethod
    def of(cls, workload: Workload, names: tuple[str, ...]) -> "Reduction":
        """The reduction to these classes of the workload's window, or to all where none is named."""
        names = names or tuple(workload.marked)
        columns = torch.stack([workload.marked[name][0] for name in names], dim=-1)
        rows = columns.cumsum(0) > 0
        rows[0] = False
        last = int(columns.any(dim=-1).nonzero().max()) + 1
        device = workload.model.device
        return cls(names, columns[:last].float().to(device), rows.to(device))

    def __call__(self, weights: Tensor) -> Tensor:
        """[head, query, key] to [head, class]."""
        mass = weights[..., : len(self.columns)].float() @ self.columns
        return torch.where(self.rows, mass, 0).sum(dim=1) / self.rows.sum(dim=0)

    def masses(self, layers: list[Tensor]) -> Masses:
        """The reduced layers, each [head, class], by class."""
        heads = torch.cat(layers)
        return {name: heads[:, at].tolist() for at, name in enumerate(self.names)}


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """The implementation that makes maps, for as long as the block runs."""
    before = model.config._attn_implementation  # noqa: SLF001 - transformers has no public name for it
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def output_attentions(workload: Workload, clock: Clock, names: tuple[str, ...]) -> Masses:
    """All maps at once, reduced afterwards."""
    reduction = Reduction.of(workload, names)
    with clock.timing(), eager(workload.model):
        found = workload.model(workload.ids, use_cache=False, logits_to_keep=1, output_attentions=True)
        return reduction.masses([reduction(weights[0]) for weights in found.attentions])


@torch.no_grad()
def hooks(workload: Workload, clock: Clock, names: tuple[str, ...]) -> Masses:
    """Each layer's map reduced by a forward hook, and dropped before the next is made."""
    reduction, found = Reduction.of(workload, names), []

    def reduce(_module: object, _arguments: object, output: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        found.append(reduction(output[1][0]))
        return output[0], None

    with clock.timing(), eager(workload.model):
        handles = [layer.self_attn.register_forward_hook(reduce) for layer in workload.model.model.layers]
        try:
            workload.model(workload.ids, use_cache=False, logits_to_keep=1)
        finally:
            for handle in handles:
                handle.remove()
        return reduction.masses(found)


def has_lens() -> bool:
    """Whether TransformerLens is installed."""
    return importlib.util.find_spec(LENS) is not None


@functools.cache
def _bridge() -> Callable[..., tuple[object, dict[str, Tensor]]]:
    from transformer_lens.model_bridge import TransformerBridge  # noqa: PLC0415 - it need not be installed

    model, tokenizer = embedded_model()
    bridge = TransformerBridge.boot_transformers(model.name_or_path, hf_model=model, tokenizer=tokenizer)
    return bridge.run_with_cache


@torch.no_grad()
def transformer_lens(workload: Workload, clock: Clock, names: tuple[str, ...]) -> Masses:
    """TransformerLens' cache of all patterns, reduced afterwards; it changes the model, so it needs its own process."""
    reduction, run = Reduction.of(workload, names), _bridge()
    with clock.timing():
        _, cache = run(
            workload.ids, names_filter=lambda name: name.endswith("hook_pattern"), use_cache=False, logits_to_keep=1
        )
        return reduction.masses([reduction(weights[0]) for weights in cache.values()])
