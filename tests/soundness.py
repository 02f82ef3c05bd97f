"""What has to hold for a model that is measured or patched, whatever its architecture; each check gives a number."""

from dataclasses import dataclass

import numpy as np
import torch
from eager_maps import arguments, eager, figures
from transformers.modeling_utils import AttentionInterface

import sinkscope

TOLERANCE = 1e-4
IDS = torch.randint(3, 128, (2, 24), generator=torch.Generator().manual_seed(1))
PADDINGS = {"none": torch.ones(2, 24, dtype=torch.bool), "left": torch.arange(24) >= torch.tensor([[0], [7]])}


@dataclass(frozen=True)
class Agreement:
    """A report, and how far it is from the model's own eager maps."""

    report: sinkscope.Report
    difference: float | None = None
    """The largest of any figure's; NaN where a figure is defined on one side only, None where there are no maps."""
    remark: str = ""


@torch.no_grad()
def logits(model, keep=PADDINGS["none"], ids=IDS):
    """The model's own, in one prefill."""
    return model(**arguments(model, ids, keep)).logits


def difference(one, other):
    """max|one - other| ÷ max|other|."""
    return float((one.double() - other.double()).abs().max() / other.double().abs().max())


def agreements(model, keep, paths=("auto", "dense")) -> list[Agreement]:
    """Measure on each path, and compare first-token mass, entropy, row mass and received mass, head by head."""
    own, remark = eager(model, IDS, keep), ""
    if difference(own.logits[keep], logits(model, keep)[keep]) > TOLERANCE:
        # Where padding leaks into real tokens, another implementation is another model.
        model, remark = own.model, "its padding leaks into real tokens: compared on its eager implementation"
    if own.blind(keep):
        remark = "with padding its masks leave some real tokens nothing to see: identity without padding only"
    reports = [sinkscope.measure(model, input_ids=IDS, attention_mask=keep, attention=path) for path in paths]
    if not own.maps:
        return [Agreement(report, None, "it shows no causal attention maps to compare with") for report in reports]
    if own.unexplained():
        return [Agreement(report, float("nan"), "it has attention maps that were not measured") for report in reports]
    return [_compared(report, own, keep, remark) for report in reports]


def _compared(report, own, keep, remark) -> Agreement:
    theirs, heads = figures(own.in_order_of(report.layers["module"]), keep), report.heads
    if "sink_logit_mass" in heads and heads["sink_logit_mass"].notna().any() and np.allclose(theirs.row_mass, 1):
        gap = _gap(heads["entropy"].to_numpy(), theirs.entropy)
        return Agreement(report, gap, "its eager maps leave the learned sink out: only entropy compared")
    gaps = [_gap(heads[name].to_numpy(), getattr(theirs, name)) for name in ("first_mass", "entropy", "row_mass")]
    pairs = [(row.received, theirs.received.get((row.window, row.position))) for row in report.tokens.itertuples()]
    gaps.append(max(abs(ours - other) for ours, other in pairs if other is not None))
    return Agreement(report, float(np.max(gaps)), remark)


def _gap(ours, theirs):
    return float(np.nan) if (np.isnan(ours) != np.isnan(theirs)).any() else float(np.nanmax(np.abs(ours - theirs)))


def identity(model) -> float:
    """How far our own softmax moves the logits of real tokens, with padding and without.

    Padding under which the model's own masks leave a real token nothing to see is left out.
    """
    keeps = [keep for keep in PADDINGS.values() if not eager(model, IDS, keep).blind(keep)]
    native = [logits(model, keep)[keep] for keep in keeps]
    with sinkscope.patched(model, "softmax"):
        return max(difference(logits(model, keep)[keep], own) for keep, own in zip(keeps, native, strict=True))


def leak(model, normalizer="entmax:alpha=1.5") -> tuple[float, float]:
    """Under another normalizer: how far the last token moves earlier logits, and how far the swap moves all of them."""
    other = IDS.clone()
    other[:, -1] = (other[:, -1] + 5) % 128
    with sinkscope.patched(model, normalizer):
        swapped, changed = logits(model), logits(model, ids=other)
    return difference(changed[:, :-1], swapped[:, :-1]), difference(swapped, logits(model))


def state(model):
    """Everything a careless probe could leave on a model or in transformers."""
    found = {"config": model.config.to_dict(), "interface": vars(AttentionInterface)["get_interface"]}
    for name, module in model.named_modules():
        hooks = {key: list(each) for key, each in vars(module).items() if key.endswith("hooks") and each}
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        found[f"module {name}"] = sorted(vars(module)), hooks, module.training, implementation
    return found
