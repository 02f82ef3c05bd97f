"""A record and its setting to a report: the tables joined with the tokens, each with the protocol it follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from sinkscope.hooks.gradients import gradient_figures
from sinkscope.report import Report, activations, deltas, tables
from sinkscope.report.provenance import Setting, metadata
from sinkscope.report.undefined import base, reasons
from sinkscope.report.why_null import known, not_measured
from sinkscope.runs.comparison import Comparison, Contender
from sinkscope.runs.record import Record
from sinkscope.statistics.accumulate import Blocks, document_blocks
from sinkscope.text.lengths import longest
from sinkscope.tokens import TOKEN_CLASSES, Tokens, classify


def report(record: Record, setting: Setting) -> Report:
    """The report of one run."""
    sheet, tokens = _sheet(setting), _tokens(record, setting)
    found = Report(
        heads=tables.heads(record, sheet),
        layers=tables.layers(record, sheet),
        tokens=tokens,
        positions=tables.positions(record, sheet.blocks),
        summary=_summary(record, sheet, setting),
        documents=tables.documents(record, sheet, setting.windows.documents),
        metadata=metadata(record, setting),
        **_hidden([record], [tokens], sheet.blocks),
    )
    return _explained(_under_protocol(found, setting), [record], setting)


def compared(comparison: Comparison, contenders: Sequence[Contender], setting: Setting) -> Report:
    """The report of a comparison: plain softmax first, then each contender beside its change."""
    sheet, baseline = _sheet(setting), comparison.baseline
    both = list(zip(contenders, comparison.baselines, comparison.records, strict=True))
    pairs = [(before, record) for contender, before, record in both if contender.layer is None]
    records = [record for _, record in pairs]
    swept = [(each.layer, each.label, record) for each, _, record in both if each.layer is not None]
    everything = [baseline, *records]
    tokens = [_tokens(record, setting) for record in everything]
    summaries = [_summary(baseline, sheet, setting)]
    for before, record in pairs:
        summaries.append(_summary(record, sheet, setting))
        change = deltas.summary(before, record, sheet)
        change["first_queries_delta"] = summaries[-1]["first_queries"][0] - summaries[0]["first_queries"][0]
        summaries[-1] = pd.concat([summaries[-1], pd.DataFrame([change])], axis=1)
    told = {
        "identity_delta": comparison.identity_delta,
        "identity_kl": comparison.identity_kl,
        "normalizers": _cards(contenders),
    }
    found = Report(
        heads=_joined([tables.heads(baseline, sheet), *(deltas.heads(*each, baseline, sheet) for each in pairs)]),
        layers=_joined([tables.layers(baseline, sheet), *(deltas.layers(*each, sheet) for each in pairs)]),
        tokens=_joined(tokens),
        positions=_joined(
            [tables.positions(baseline, sheet.blocks), *(deltas.positions(*each, sheet.blocks) for each in pairs)]
        ),
        summary=_joined(summaries),
        documents=_joined([tables.documents(record, sheet, setting.windows.documents) for record in everything]),
        metadata=metadata(baseline, setting) | {"comparison": told},
        lse=deltas.levels(everything, sheet.blocks),
        sweep=deltas.sweep(baseline, swept, sheet),
        **_hidden(everything, tokens, sheet.blocks),
    )
    return _explained(_under_protocol(found, setting), everything, setting)


def together(reports: Sequence[Report], refused: Mapping[str, str]) -> Report:
    """The reports of one model and text under several protocols as one, each table below the other.

    The metadata are those of the first, and `undefined` of all; each run's own are under `runs`, by protocol, and
    `not_followed` holds the protocols that were refused, each with the reason.
    """
    if len(reports) == 1 and not refused:
        return reports[0]
    names = [each.name for each in fields(Report) if each.name != "metadata"]
    found = {name: _joined([getattr(report, name) for report in reports]) for name in names}
    runs = {report.metadata["protocol"]["name"]: report.metadata for report in reports}
    undefined: dict[str, str] = {}
    for told in runs.values():
        undefined |= told["undefined"]
    undefined |= _only_some(reports)
    several = {"runs": runs, "not_followed": dict(refused), "undefined": undefined}
    return Report(**found, metadata=reports[0].metadata | several)


def _only_some(reports: Sequence[Report]) -> dict[str, str]:
    """The figures that some of the protocols do not measure, and so have null in their rows."""
    found: dict[str, str] = {}
    for name in reports[0].tables():
        tables = {each.metadata["protocol"]["name"]: each.tables()[name] for each in reports}
        tables = {protocol: table for protocol, table in tables.items() if not table.empty}
        for column in dict.fromkeys(str(column) for table in tables.values() for column in table):
            measuring = [protocol for protocol, table in tables.items() if column in table]
            if len(measuring) < len(tables):
                verb = "measures" if len(measuring) == 1 else "measure"
                found[base(column)] = f"only {' and '.join(measuring)} {verb} it"
    return found


def _explained(report: Report, records: Sequence[Record], setting: Setting) -> Report:
    """The report with the reasons for what is null in it, and for what is not in it."""
    told = {
        "undefined": reasons(report.tables(), known(records, setting)),
        "not_measured": not_measured(records[0], setting),
    }
    return replace(report, metadata=report.metadata | told)


def _sheet(setting: Setting) -> tables.Sheet:
    marked, options, windows = classify(setting.tokens), setting.options, setting.windows
    fixed = {
        "seq_len": longest(windows.keep),
        "windows": windows.ids.shape[0],
        "bos": bool(marked["bos"].any()) if setting.knows_bos else None,
        "epsilon": options.epsilon,
    }
    blocks = document_blocks(windows.documents)
    draws = options.draws(windows.ids.shape[0], blocks)
    return tables.Sheet(tuple(setting.batches.marked), fixed, draws, blocks)


def _summary(record: Record, sheet: tables.Sheet, setting: Setting) -> pd.DataFrame:
    """The means over heads, and what there is beside attention: hidden states and gradients."""
    row = {} if record.hidden is None else activations.summary(record.hidden, sheet.blocks)
    if record.gradients is not None:
        row |= gradient_figures(record.gradients, setting.windows.keep, sheet.blocks)
    table = tables.summary(record, sheet)
    table.insert(list(table.columns).index("first_queries"), "layers_without_attention", len(setting.layers_without))
    return pd.concat([table, pd.DataFrame([row])], axis=1)


def _hidden(
    records: Sequence[Record], tokens: Sequence[pd.DataFrame], blocks: Blocks | None
) -> dict[str, pd.DataFrame]:
    """The tables of hidden states, where they were watched, beside each record's table of tokens."""
    found = [(record.hidden, each) for record, each in zip(records, tokens, strict=True) if record.hidden is not None]
    if not found:
        return {}
    return {
        "activations": _joined([activations.activations(hidden, blocks) for hidden, _ in found]),
        "massive": _joined([activations.massive(hidden, each) for hidden, each in found]),
    }


def _under_protocol(report: Report, setting: Setting) -> Report:
    """The report with the name of its protocol in every row, and the protocol's own figures in a table."""
    card = setting.options.protocol
    for table in report.tables().values():
        if not table.empty:
            table.insert(1, "protocol", card.name)
    rows = []
    for _, row in report.summary.iterrows():
        place = {name: row[name] for name in ("normalizer", "protocol")}
        for figure in card.figures:
            how = {"epsilon": card.threshold(figure, setting.options.epsilon)}
            how |= {name: row[name] for name in ("seq_len", "windows", "bos")}
            errors = {f"value{end}": row[figure + end] for end in ("_se", "_low", "_high") if figure + end in row}
            rows.append(place | {"figure": figure, "value": row[figure]} | errors | how)
    return replace(
        report, protocols=pd.DataFrame(rows).assign(paper_windows=float(card.windows) if card.published else math.nan)
    )


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
    if record.gradients is not None:
        table["gradient_norm"] = record.gradients.flatten().numpy()
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
