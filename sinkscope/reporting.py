"""A record and its setting to a report: the tables joined with the tokens, and the metadata to repeat the run."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from sinkscope import __version__, deltas, tables
from sinkscope.comparison import Comparison, Contender
from sinkscope.corpus import Windows
from sinkscope.handshake import Handshake
from sinkscope.metrics import METRICS
from sinkscope.observe import Batches
from sinkscope.options import Options
from sinkscope.record import Record
from sinkscope.report import Report
from sinkscope.tokens import PUNCTUATION_RULE, TOKEN_CLASSES, Tokens, classify

LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "pandas")

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


def report(record: Record, setting: Setting) -> Report:
    """The report of one run."""
    columns, fixed = _columns(setting), _fixed(setting)
    return Report(
        heads=tables.heads(record, columns, fixed),
        layers=tables.layers(record, columns, fixed),
        tokens=_tokens(record, setting),
        positions=tables.positions(record),
        summary=tables.summary(record, columns, fixed),
        metadata=_metadata(record, setting),
    )


def compared(comparison: Comparison, contenders: Sequence[Contender], setting: Setting) -> Report:
    """The report of a comparison: plain softmax first, then each contender beside its change."""
    columns, fixed, baseline = _columns(setting), _fixed(setting), comparison.baseline
    both = list(zip(contenders, comparison.records, strict=True))
    records = [record for contender, record in both if contender.layer is None]
    swept = [(each.layer, each.label, record) for each, record in both if each.layer is not None]
    everything = [baseline, *records]
    summaries = [tables.summary(baseline, columns, fixed)]
    for record in records:
        change = pd.DataFrame([deltas.summary(baseline, record, columns)])
        summaries.append(pd.concat([tables.summary(record, columns, fixed), change], axis=1))
    heads = [tables.heads(baseline, columns, fixed)]
    heads += [deltas.heads(baseline, record, columns, fixed) for record in records]
    told = {
        "identity_delta": comparison.identity_delta,
        "identity_kl": comparison.identity_kl,
        "normalizers": _cards(contenders),
    }
    return Report(
        heads=_joined(heads),
        layers=_joined([tables.layers(record, columns, fixed) for record in everything]),
        tokens=_joined([_tokens(record, setting) for record in everything]),
        positions=_joined([tables.positions(record) for record in everything]),
        summary=_joined(summaries),
        metadata=_metadata(baseline, setting, records) | {"comparison": told},
        lse=deltas.levels(everything),
        sweep=deltas.sweep(baseline, swept),
    )


def _columns(setting: Setting) -> tuple[str, ...]:
    return tuple(setting.batches.marked)


def _fixed(setting: Setting) -> tables.Row:
    marked = classify(setting.tokens)
    return {
        "windows": setting.windows.ids.shape[0],
        "bos": bool(marked["bos"].any()) if "bos" in marked else False,
        "epsilon": setting.options.epsilon,
    }


def _cards(contenders: Sequence[Contender]) -> dict[str, Any]:
    """What each contender does, in the words of its card."""
    found: dict[str, Any] = {}
    for contender in contenders:
        if contender.layer is not None:
            continue
        swap = next(iter(contender.plan.swaps.values()))
        card = swap.normalizer
        found[contender.label] = {
            "formula": card.formula,
            "source": card.source,
            "published": card.published,
            "settings": card.settings,
            "caveat": card.caveat,
            "modifier": "" if swap.modifier is None else swap.modifier.label,
            "modules": {
                name: "all heads" if each.heads is None else sorted(each.heads)
                for name, each in contender.plan.swaps.items()
            },
        }
    return found


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)


def _tokens(record: Record, setting: Setting) -> pd.DataFrame:
    """Each token of each window with its id, text and class, beside the mass that it receives; padding left out."""
    tokens, windows = setting.tokens, setting.windows
    table = tables.received(record)
    length = windows.ids.shape[1]
    table.insert(2, "document", [name for name in windows.documents for _ in range(length)])
    table.insert(4, "token_id", windows.ids.flatten().numpy())
    spelled = tokens.spelling
    texts = [None] * len(table) if spelled is None else [_text(piece) for row in spelled for piece in row]
    table.insert(5, "token", pd.Series(texts, dtype=object))
    table.insert(6, "class", _classes(tokens))
    return table[windows.keep.flatten().numpy()].reset_index(drop=True)


def _text(spelling: bytes) -> str:
    r"""The token's text; bytes that are no whole character are written as \xNN."""
    return spelling.decode("utf-8", "backslashreplace")


def _classes(tokens: Tokens) -> list[str | None]:
    """The part of the partition that each position belongs to; None for padding."""
    names: list[str | None] = [None] * tokens.ids.numel()
    for name, marks in classify(tokens).items():
        if not TOKEN_CLASSES[name].overlay:
            for index in marks.flatten().nonzero().flatten().tolist():
                names[index] = name
    return names


def _metadata(record: Record, setting: Setting, others: Sequence[Record] = ()) -> dict[str, Any]:
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
        "protocol": "sinkscope: query 0 of each window is left out of the means, rows that see nothing too",
        "queries": _queries(setting),
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


def _queries(setting: Setting) -> dict[str, Any]:
    """Whose weights were reduced: all queries of each window, or which sample of them."""
    positions = setting.batches.positions
    if positions is None:
        return {"sampled": False}
    return {
        "sampled": True,
        "method": "systematic: equal distances from a random start, the same in every window",
        "number": len(positions),
        "of": setting.windows.ids.shape[1],
        "seed": setting.options.seed,
        "start": int(positions[0]),
        "standard_errors": "*_sampling_se, of which *_se over windows knows nothing",
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
    reasons: dict[str, str] = {}
    marked = classify(setting.tokens)
    for name in TOKEN_CLASSES:
        if name not in marked:
            reasons[f"{name}_*"] = "there is no tokenizer, and so no text to decide on"
        elif name not in setting.batches.marked:
            reasons[f"{name}_*"] = "the class was not asked for"
        elif not bool(marked[name].any()):
            reasons[f"{name}_*"] = f"no token of the windows is in the class {name}"
    measured = {metric.name for metric in record.metrics}
    reasons |= {
        name: "the metric was not asked for"
        for name, card in METRICS.items()
        if not card.optional and name not in measured
    }
    if not setting.batches.received:
        reasons["received"] = "the mass that each token receives was not asked for"
    if not any(layer.learned_sink for layer in record.layers.values()):
        reasons["sink_logit_mass"] = "no layer of this model has a learned sink"
    if not setting.shown.shows_values:
        reasons["value_norm_ratio, output_norm"] = "the layers of this model show their scores only, not their values"
    if setting.windows.ids.shape[0] < 2:
        reasons["*_se"] = "a standard error needs at least two windows"
    if not bool((record.loss.by_window()[1] > 0).any()):
        reasons["perplexity"] = "no token has one before it to be predicted from"
    return reasons
