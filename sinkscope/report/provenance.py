"""Everything about a run that is not in its record, and the metadata that it takes to repeat the run."""

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

from transformers import PreTrainedModel

from sinkscope import __version__
from sinkscope.activations.layers import Layer as DecoderLayer
from sinkscope.activations.layers import decoder_layers
from sinkscope.hooks.handshake import Handshake
from sinkscope.hooks.probe import implementation
from sinkscope.protocols import Protocol
from sinkscope.runs.observe import Batches
from sinkscope.runs.options import Options
from sinkscope.runs.record import Record
from sinkscope.statistics.accumulate import LEAST_DOCUMENTS, document_blocks
from sinkscope.statistics.sampling import systematic
from sinkscope.text.corpus import Windows
from sinkscope.tokens import PUNCTUATION_RULE, TOKEN_CLASSES, Tokens

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

    @cached_property
    def decoder_layers(self) -> tuple[DecoderLayer, ...]:
        """The decoder layers, with attention or without: a configuration may count what runs several times."""
        return decoder_layers(self.model, self.shown.sites).layers

    @cached_property
    def layers_without(self) -> list[DecoderLayer]:
        """Those in which no attention was seen."""
        names = {site.name for site in self.shown.sites}
        seen = {id(module) for name, module in self.model.named_modules() if name in names}
        # Layers may share one module, which goes by another name in each.
        aliases = [name for name, module in self.model.named_modules(remove_duplicate=False) if id(module) in seen]
        return [
            layer
            for layer in self.decoder_layers
            if not any(name == layer.name or name.startswith(f"{layer.name}.") for name in aliases)
        ]

    @property
    def knows_bos(self) -> bool:
        """Whether anything says which token is BOS: a tokenizer without one says that there is none."""
        return self.tokenizer is not None or self.tokens.bos is not None


def metadata(record: Record, setting: Setting) -> dict[str, Any]:
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
            "implementation": implementation(model),
            "observed_under": None if setting.shown.switched is None else setting.shown.switched[1],
            "observed_difference": None if setting.shown.switched is None else setting.shown.switch_delta,
            "windows_alone": setting.shown.alone,
            "seen_at": SEEN_AT[setting.shown.inside],
            "layers": {layer.name: {"type": layer.kind, "path": layer.path} for layer in record.in_order()},
            "decoder_layers": len(setting.decoder_layers),
            "layers_without": [layer.number for layer in setting.layers_without],
            "calls_left_out": setting.shown.left_out,
            "identity_delta": setting.shown.delta,
            "largest_output_difference": record.largest_difference,
        },
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
