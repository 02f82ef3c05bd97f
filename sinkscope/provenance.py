"""Everything about a run that is not in its record, and the metadata that it takes to repeat the run."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedModel

from sinkscope import __version__
from sinkscope.accumulate import LEAST_DOCUMENTS, document_blocks
from sinkscope.attention import OF_VECTORS
from sinkscope.corpus import Windows
from sinkscope.handshake import Handshake
from sinkscope.metrics import METRICS
from sinkscope.observe import Batches
from sinkscope.options import Options
from sinkscope.protocols import Protocol
from sinkscope.record import Record
from sinkscope.sampling import systematic
from sinkscope.tokens import PUNCTUATION_RULE, TOKEN_CLASSES, Tokens, classify

LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "pandas")

BY_DOCUMENT = "windows of different documents are independent"
BY_WINDOW = "windows of one document are alike, so that errors over windows can be too small"

SEEN_AT = {
    False: "transformers' attention interface",
    True: "the softmax or fused attention that the model's own layers call",
}
"""Where the calls were seen, by whether that is inside the layers."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything about a run that is not in its record."""

    model: PreTrainedModel
    tokenizer: Any
    windows: Windows
    tokens: Tokens
    batches: Batches
    shown: Handshake
    options: Options


def metadata(record: Record, setting: Setting, others: Sequence[Record] = ()) -> dict[str, Any]:
    """What the run was, in values that JSON can hold."""
    model, windows, options = setting.model, setting.windows, setting.options
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": None if options.command is None else list(options.command),
        "model": dict(options.origin) if options.origin is not None else _origin(model),
        "text": windows.provenance,
        "classes": {name: TOKEN_CLASSES[name].summary for name in setting.batches.marked},
        "punctuation_rule": PUNCTUATION_RULE,
        "initial": setting.tokens.initial,
        "epsilon": options.epsilon,
        "protocol": _protocol(options.protocol, windows.ids.shape[0]),
        "queries": _queries(setting),
        "standard_errors": _standard_errors(setting.windows),
        "bootstrap": _bootstrap(setting),
        "attention": {
            "implementation": model.config._attn_implementation,  # noqa: SLF001 - transformers has no public name
            "seen_at": SEEN_AT[setting.shown.inside],
            "layers": {layer.name: {"type": layer.kind, "path": layer.path} for layer in record.in_order()},
            "layers_without": _layers_without(record, model),
            "calls_left_out": setting.shown.left_out,
            "identity_delta": setting.shown.delta,
            "largest_output_difference": record.largest_difference,
        },
        "undefined": _undefined(record, setting) | _undefined_after(others),
        "versions": {"python": platform.python_version(), "sinkscope": __version__}
        | {name: version(name) for name in LIBRARIES},
    }


def _protocol(card: Protocol, windows: int) -> dict[str, Any]:
    """The conventions that were followed, and how far."""
    shortfall = card.shortfall(windows)
    return {
        "name": card.name,
        "source": card.source,
        "figures": [metric.name for metric in card.metrics],
        "samples": windows,
        "samples_of_the_paper": card.windows if card.published else None,
        "conventions": list(card.conventions) + ([] if shortfall is None else [f"{shortfall}."]),
    }


def _queries(setting: Setting) -> dict[str, Any]:
    """Whose weights were reduced: all queries of each window, or which sample of them."""
    sample, keep = setting.batches.sample, setting.windows.keep
    if sample is None:
        return {"sampled": False}
    lengths = keep.sum(-1).tolist()
    starts = [
        int(systematic(length, min(sample.count, length), sample.seed, window)[0])
        for window, length in enumerate(lengths)
    ]
    return {
        "sampled": True,
        "method": "systematic: equal distances from a random start of each window's own",
        "number": sample.count,
        "of": max(lengths),
        "windows_taken_whole": sum(length <= sample.count for length in lengths),
        "seed": sample.seed,
        "start": starts[0],
        "starts": starts,
        "exact": "frequencies of classes, and the numbers of rows that figures stand for",
        "standard_errors": "*_sampling_se: of the sample alone; *_se over windows or documents contains it",
    }


def _standard_errors(windows: Windows) -> dict[str, Any]:
    """The rule that every standard error over windows follows, except that of a document alone."""
    number = len(set(windows.documents))
    by_document = document_blocks(windows.documents) is not None
    return {
        "over": "documents" if by_document else "windows",
        "number": number if by_document else len(windows.documents),
        "documents": number,
        "rule": f"over documents, each with all its windows, from {LEAST_DOCUMENTS} documents on; else over windows",
        "note": BY_DOCUMENT if by_document or number == len(windows.documents) else BY_WINDOW,
    }


def _bootstrap(setting: Setting) -> dict[str, Any] | None:
    """How the intervals came about, or None without any."""
    options = setting.options
    if options.bootstrap is None or setting.windows.ids.shape[0] < 2:
        return None
    return {
        "samples": options.bootstrap,
        "seed": options.seed,
        "of": "windows" if document_blocks(setting.windows.documents) is None else "documents",
        "interval": "2.5th to 97.5th percentile",
    }


def _origin(model: PreTrainedModel) -> dict[str, object]:
    return {
        "name": model.config._name_or_path or type(model).__name__,  # noqa: SLF001 - transformers has no public name
        "architecture": type(model).__name__,
        "model_type": model.config.model_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "parameters": model.num_parameters(),
    }


def _undefined_after(others: Sequence[Record]) -> dict[str, str]:
    """Why a figure is null in a comparison, beside what holds for any run."""
    if not others:
        return {}
    reasons = {
        "*_delta": "the baseline has no change, and a figure that is undefined before or after has none either",
        "degenerate_rows": "only some normalizers have rows that their formula does not define",
    }
    for record in others:
        if bool(record.loss.by_window()[0].isnan().any()):
            reasons[record.normalizer] = "the model's output is no longer a number"
        if not any(layer.by_position.by_window()[1].any() for layer in record.layers.values()):
            reasons[f"first_*, sink_rate* under {record.normalizer}"] = "no query can see the first token"
    return reasons


def _layers_without(record: Record, model: PreTrainedModel) -> list[int]:
    """The numbers of the model's layers in which no attention was seen."""
    seen = {layer.layer for layer in record.layers.values()}
    count = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    return [number for number in range(count) if number not in seen]


def _undefined(record: Record, setting: Setting) -> dict[str, str]:
    """Why a figure is null wherever it is."""
    reasons = _without_classes(setting) | _not_asked_for(record, setting)
    if record.hidden is not None:
        reasons["attention_*"] = "the attention of the layer ran never, or more than once"
        reasons |= {f"activations of {name}": reason for name, reason in record.hidden.undefined.items()}
    reasons |= {f"projected norms of {name}": why for name, why in setting.batches.projections.undefined.items()}
    if not any(layer.learned_sink for layer in record.layers.values()):
        reasons["sink_logit_mass"] = "no layer of this model has a learned sink"
    figures = ", ".join(metric.name for metric in record.metrics if metric.needs & OF_VECTORS)
    if figures and not setting.shown.shows_values:
        reasons[figures] = "the layers of this model show their scores only, not their values"
    if setting.batches.sample is not None and any(metric.name == "lthon" for metric in record.metrics):
        reasons["lthon, lthon_ln"] = "of a window whose last token is not among the sampled queries there is none"
    if setting.windows.ids.shape[0] < 2:
        reasons["*_se, *_low, *_high"] = "an error needs at least two windows"
    if not bool((record.loss.by_window()[1] > 0).any()):
        reasons["perplexity"] = "no token has one before it to be predicted from"
    return reasons


def _without_classes(setting: Setting) -> dict[str, str]:
    """Why classes of tokens have no figures."""
    reasons: dict[str, str] = {}
    marked = classify(setting.tokens)
    for name in TOKEN_CLASSES:
        if name not in marked:
            reasons[f"{name}_*"] = "there is no tokenizer, and so no text to decide on"
        elif name not in setting.batches.marked:
            reasons[f"{name}_*"] = "the class was not asked for"
        elif not bool(marked[name].any()):
            reasons[f"{name}_*"] = f"no token of the windows is in the class {name}"
    return reasons


def _not_asked_for(record: Record, setting: Setting) -> dict[str, str]:
    measured = {metric.name for metric in record.metrics}
    reasons = {
        name: "the metric was not asked for"
        for name, card in METRICS.items()
        if not card.optional and name not in measured
    }
    if setting.batches.sample is not None and setting.options.also is not None:
        reasons["*_sampling_se"] = "scores of dormancy are means over windows, and tell nothing of a sample of queries"
    if record.hidden is None:
        reasons["activations, massive"] = "the figures of hidden states were not asked for"
    if not setting.batches.received:
        reasons["received"] = "the mass that each token receives was not asked for"
    return reasons
