"""What has to hold for a model that is measured or patched, whatever its architecture; each check gives a number."""

import copy
import inspect
from dataclasses import dataclass

import numpy as np
import torch
from eager_maps import eager, figures, windows_of
from huggingface_hub.errors import StrictDataclassFieldValidationError
from tiny_models import tiny_model
from transformers.modeling_utils import AttentionInterface

import sinkscope
from sinkscope.hooks.probe import probed

TOLERANCE = 1e-4
IDS = torch.randint(3, 128, (2, 24), generator=torch.Generator().manual_seed(1))
PADDINGS = {
    "none": torch.ones(2, 24, dtype=torch.bool),
    "left": torch.arange(24) >= torch.tensor([[0], [7]]),
    "right": torch.arange(24) < torch.tensor([[24], [17]]),
}


@dataclass(frozen=True)
class Agreement:
    """A report, and how far it is from what the model makes of each window alone."""

    report: sinkscope.Report
    loss: float
    """The largest relative difference between a document's loss and that of a plain forward."""
    difference: float | None = None
    """The largest of any figure's; NaN where a figure is defined on one side only, None where there are no maps."""
    remark: str = ""


@torch.no_grad()
def logits(model, keep=PADDINGS["none"], ids=IDS):
    """The model's own, in one prefill; with padding by a mask and by positions that count real tokens, as generate."""
    arguments = {"input_ids": ids, "use_cache": False}
    if not keep.all():
        arguments["attention_mask"] = keep.long()
        if "position_ids" in inspect.signature(model.forward).parameters:
            arguments["position_ids"] = (keep.cumsum(-1) - 1).clamp(min=0)
    return model(**arguments).logits


@torch.no_grad()
def plain(model, ids):
    """What a user gets who passes ids and nothing else; a model that fails with its own default cache gets none."""
    try:
        return model(input_ids=ids).logits
    except Exception:  # noqa: BLE001 - whatever a type's own code raises
        return model(input_ids=ids, use_cache=False).logits


def difference(one, other):
    """max|one - other| ÷ max|other|."""
    return float((one.double() - other.double()).abs().max() / other.double().abs().max())


def agreements(model, keep, paths=("auto", "dense")) -> list[Agreement]:
    """Measure on each path, and compare first-token mass, entropy, row mass and received mass, head by head.

    The other side is the model itself, called over one window after the other.
    """
    windows = windows_of(IDS, keep)
    natives = [plain(copy.deepcopy(model), each) for each in windows]
    owns = [eager(model, each) for each in windows]
    gap = max(difference(own.logits, native) for own, native in zip(owns, natives, strict=True))
    if gap > TOLERANCE:
        raise AssertionError(f"the eager maps belong to other logits than a plain forward's ({gap:.0e})")
    nll = loss(natives, windows)
    reports = [sinkscope.measure(model, input_ids=IDS, attention_mask=keep, attention=path) for path in paths]
    return [_compared(report, owns, abs(float(report.summary["nll"].iloc[0]) / nll - 1)) for report in reports]


def loss(natives, windows) -> float:
    """The mean negative log-likelihood of every token but the first of each window."""
    found = [
        -native[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        for native, ids in zip(natives, windows, strict=True)
    ]
    return float(torch.cat(found).mean())


def _compared(report, owns, gap_of_loss) -> Agreement:
    if not owns[0].maps:
        return Agreement(report, gap_of_loss, None, "it shows no causal attention maps to compare with")
    if any(own.unexplained() for own in owns):
        return Agreement(report, gap_of_loss, float("nan"), "it has attention maps that were not measured")
    theirs, heads = figures([own.in_order_of(report.layers["module"]) for own in owns]), report.heads
    if "sink_logit_mass" in heads and heads["sink_logit_mass"].notna().any() and np.allclose(theirs.row_mass, 1):
        gap = _gap(heads["entropy"].to_numpy(), theirs.entropy)
        return Agreement(report, gap_of_loss, gap, "its eager maps leave the learned sink out: only entropy compared")
    gaps = [_gap(heads[name].to_numpy(), getattr(theirs, name)) for name in ("first_mass", "entropy", "row_mass")]
    pairs = [(row.received, theirs.received.get((row.window, row.position))) for row in report.tokens.itertuples()]
    gaps.append(max(abs(ours - other) for ours, other in pairs if other is not None))
    return Agreement(report, gap_of_loss, float(np.max(gaps)))


def _gap(ours, theirs):
    return float(np.nan) if (np.isnan(ours) != np.isnan(theirs)).any() else float(np.nanmax(np.abs(ours - theirs)))


def identity(model) -> float:
    """How far our own softmax moves the logits of real tokens in a user's own forward, with padding and without.

    Padding under which the model's own masks leave a real token nothing to see is left out: its softmax is of nothing,
    and gives anything.
    """
    keeps = [keep for keep in PADDINGS.values() if not _blind(model, keep)]
    native = [logits(model, keep)[keep] for keep in keeps]
    with sinkscope.patched(model, "softmax"):
        return max(difference(logits(model, keep)[keep], own) for keep, own in zip(keeps, native, strict=True))


def _blind(model, keep) -> bool:
    """Whether a mask hides every key from some real token."""
    found = []

    def look(_, call, own):
        if call.query.shape[2] == call.key.shape[2] == keep.shape[1]:
            found.append(bool((~call.sight.visible.any(-1) & keep[:, None]).any()))
        return own()

    try:
        with probed(model, look):
            logits(model, keep)
    except sinkscope.NothingObservedError:
        return False
    return any(found)


def leak(model, normalizer="entmax:alpha=1.5") -> tuple[float, float]:
    """Under another normalizer: how far the last token moves earlier logits, and how far the swap moves all of them."""
    other = IDS.clone()
    other[:, -1] = (other[:, -1] + 5) % 128
    with sinkscope.patched(model, normalizer):
        swapped, changed = logits(model), logits(model, ids=other)
    return difference(changed[:, :-1], swapped[:, :-1]), difference(swapped, logits(model))


SETTINGS = {"is_decoder": False, "is_causal": False, "use_bidirectional_attention": True}
"""Settings of configurations that may let tokens see later ones."""


def bidirectional(model_type):
    """Models of a type with each of SETTINGS, by name; whether it does anything there is another question."""
    for name, value in SETTINGS.items():
        model = tiny_model(model_type)
        known = {id(each): each for each in (model.config, model.config.get_text_config())}.values()
        if name != "is_causal" and not any(hasattr(each, name) for each in known):
            continue
        try:
            for config in known:
                setattr(config, name, value)
            other = type(model)(model.config).eval()
        except (StrictDataclassFieldValidationError, AssertionError):  # other values have that name, or it has to be
            continue
        yield name, other


def leaks(model) -> bool:
    """Whether a model's own logits depend on later tokens; False for one that cannot be run."""
    other = IDS.clone()
    other[:, -1] = (other[:, -1] + 5) % 128
    try:
        one, two = plain(model, IDS), plain(model, other)
    except Exception:  # noqa: BLE001 - whatever a type's own code raises
        return False
    return difference(two[:, :-1], one[:, :-1]) > TOLERANCE


def on_model(model):
    """Everything that a careless probe could leave on a model."""
    found = {"config": model.config.to_dict(), "keys": sorted(vars(model.config))}
    found["buffers"] = {name: str(each.tolist()) for name, each in model.named_buffers()}
    for name, module in model.named_modules():
        hooks = {key: list(each) for key, each in vars(module).items() if key.endswith("hooks") and each}
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        plain_values = {key: each for key, each in vars(module).items() if isinstance(each, int | float | str)}
        found[f"module {name}"] = sorted(vars(module)), plain_values, hooks, implementation
    return found


def state(model):
    """The same, and what could be left in transformers."""
    return on_model(model) | {"interface": vars(AttentionInterface)["get_interface"]}
