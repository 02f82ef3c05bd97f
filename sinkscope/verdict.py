"""What a report says in plain words: how many heads sink, on what, and where in the model."""

import math

import pandas as pd

from sinkscope.report import Report
from sinkscope.tokens.showing import visible_text
from sinkscope.uncertainty import uncertainty, unsettled

MOST = 0.9
"""The share of the sink heads that the sentence about layers has to account for."""

PARTS = {"special": "special tokens", "punctuation": "punctuation", "newline": "line breaks", "other": "other tokens"}

GIVERS = {"tokenizer": "put there by the tokenizer", "sinkscope": "put there by sinkscope", "text": "part of the text"}


def verdict(report: Report, *, ascii_only: bool = False) -> list[str]:
    """The sentences, most important first; every number in them is one of the report's."""
    row = report.summary.iloc[0]
    return [
        *_protocol(report),
        _sinks(report, row),
        *_where(report),
        first_token(report, ascii_only=ascii_only),
        *_landing(row),
        *_learned(row),
        *_layers(report),
        *_activations(report, ascii_only=ascii_only),
        _loss(report, row),
        *unsettled(row, report.metadata),
        *(f"Warning: {warning}." for warning in report.metadata["text"].get("warnings", [])),
    ]


def _protocol(report: Report) -> list[str]:
    """The figures of a published protocol, before all others."""
    told = report.metadata.get("protocol", {})
    if not isinstance(told, dict) or told.get("samples_of_the_paper") is None:
        return []
    found = report.protocols
    parts = [f"{row['figure']} {row['value']:.3f}{_plain_error(row['value_se'])}" for _, row in found.iterrows()]
    row, whole = found.iloc[0], told["samples_of_the_paper"]
    samples = f"{row['windows']:,}" if row["windows"] == whole else f"{row['windows']:,} of the paper's {whole:,}"
    return [f"By {told['name']}: {', '.join(parts)} ({samples} samples of {row['seq_len']:,} tokens)."]


def _sinks(report: Report, row: pd.Series) -> str:
    shares = report.heads["first_share"]
    defined, total = int(shares.notna().sum()), int(row["heads"])
    if not defined:
        return f"Nothing can be said of sinks: no row of any of the {total} heads has a share for the first token."
    heads = _count(total, "head") if defined == total else f"{defined} heads (of {total}) that see the first token"
    epsilon, rate = f"{row['epsilon']:g}", row["sink_rate"]
    if rate > 0:
        claim = (
            f"{percent(rate)} of the {heads} are sinks: more than {epsilon} of their attention is on the first token"
        )
    else:
        top = report.heads.iloc[int(shares.argmax())]
        strongest = f"the strongest, {top['layer']}.{top['head']} (layer.head), {percent(top['first_share'])}"
        claim = f"No sinks among the {heads}: none puts more than {epsilon} on the first token, {strongest}"
    errors = _error(uncertainty(row, "first_share"))
    lift = f"{row['first_lift']:.1f} times what an even spread would give"
    return f"{claim}. On average it takes {percent(row['first_share'])}{errors} of a head's attention, {lift}."


def _where(report: Report) -> list[str]:
    """Where the sink heads begin, and the shortest run of layers that holds most of them."""
    by_layer = report.heads.groupby("layer")["sink_rate"].sum()
    sinking = by_layer[by_layer > 0]
    if sinking.empty:
        return []
    first, last, held = _shortest_run(by_layer)
    numbers = by_layer.index
    layers = f"of layers {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else "there is no other"
    if len(sinking) == 1:
        where = f"All of them are in layer {sinking.index[0]} ({layers})"
    else:
        run = f"in layer {first}" if first == last else f"in layers {first} to {last}"
        where = f"The first is in layer {sinking.index[0]}, and {percent(held, 0)} of them are {run} ({layers})"
    peak = report.layers.iloc[int(report.layers["first_share"].argmax())]
    return [f"{where}; the strongest layer is {peak['layer']}, with {percent(peak['first_share'])} on average."]


def _shortest_run(by_layer: pd.Series) -> tuple[int, int, float]:
    """The first layer, the last, and the share of the sum between them; of equally short runs the fullest."""
    total, numbers, values = by_layer.sum(), by_layer.index.to_list(), by_layer.to_list()
    runs = []
    for start in range(len(values)):
        held, end = 0.0, start
        while end < len(values) and (held := held + values[end]) < MOST * total * (1 - 1e-9):
            end += 1
        if end < len(values):
            runs.append((end - start, -held, numbers[start], numbers[end]))
    _, held, first, last = min(runs)
    return first, last, min(-held / total, 1.0)


def first_token(report: Report, *, ascii_only: bool) -> str:
    """What stood at position 0, and who put it there: no figure means anything without it."""
    first = report.tokens[report.tokens["class"] == "first"]
    names = first["token"].dropna().unique().tolist()
    text = report.metadata["text"]
    if not names:
        ids = ", ".join(str(each) for each in first["token_id"].unique()[:4])
        return f"Token 0 had the id {ids}: without a tokenizer nobody can say what it stands for."
    shown = ", ".join(f"“{visible_text(name, ascii_only=ascii_only)}”" for name in names[:4])
    shown += ", …" if len(names) > 4 else ""
    if not report.summary.iloc[0]["bos"]:
        if "synthetic" in text:
            return f"Token 0 was a token drawn at random, {shown}: no BOS."
        mode = text.get("bos")
        why = {None: "", "auto": " (the tokenizer adds none)"}.get(mode, f" (--bos {mode})")
        return f"Token 0 was ordinary text, {shown}: no BOS{why}."
    giver = GIVERS.get(text.get("bos_added_by"), "part of the token ids that were given")
    if len(names) > 1:
        return f"Token 0 was {shown}: the BOS token in some windows only, {giver}."
    return f"Token 0 was the BOS token {shown}, {giver}."


def _landing(row: pd.Series) -> list[str]:
    """What the other classes take; each over the queries that see one, so these do not add up to the rest."""
    found = [name for name in PARTS if pd.notna(row.get(f"{name}_share"))]
    if not set(found) - {"other"}:
        return []
    parts = [f"{PARTS[name]} {percent(row[f'{name}_share'])} (×{row[f'{name}_lift']:.2f})" for name in found]
    return [f"Where others can be seen, they take: {', '.join(parts)}; ×1 would be an even spread."]


def _learned(row: pd.Series) -> list[str]:
    mass = row.get("sink_logit_mass")
    if pd.isna(mass):
        return []
    error = _error(uncertainty(row, "sink_logit_mass"))
    return [f"Learned sinks, which are no tokens, take {percent(mass)}{error} where a layer has them."]


def _layers(report: Report) -> list[str]:
    """What a reader has to know of layers that are not like the others."""
    without = report.metadata["attention"].get("layers_without", [])
    kinds = report.layers.drop_duplicates("layer")
    told = []
    if without:
        total = len(kinds) + len(without)
        told.append(f"Only {len(kinds)} of the {_count(total, 'layer')} have attention; the others do not count here.")
    # A window that is longer than the text hides nothing.
    limited = kinds[kinds["window_length"] < report.metadata["text"]["seq_len"]]
    if not limited.empty:
        spans = " or ".join(f"{length:.0f}" for length in sorted(limited["window_length"].unique()))
        told.append(
            f"{len(limited)} of {len(kinds)} attention layers see the last {spans} tokens only: "
            "their figures are over the queries that still see the first token."
        )
    return told


def _activations(report: Report, *, ascii_only: bool) -> list[str]:
    """Where the largest entry of the hidden states is, and whether any is massive by the rule of Sun et al."""
    largest = report.massive.dropna(subset=["value"]) if "value" in report.massive else report.massive
    if largest.empty:
        return []
    top = largest.iloc[int(largest["value"].abs().argmax())]
    token = (
        f"id {top['token_id']}" if pd.isna(top["token"]) else f"“{visible_text(top['token'], ascii_only=ascii_only)}”"
    )
    where = f"in layer {top['layer']}, dimension {top['dimension']}, at position {top['position']} ({token})"
    value = f"{top['value']:,.0f}" if abs(top["value"]) >= 1000 else f"{top['value']:.4g}"
    size = f"{value} {where}, {top['ratio']:,.0f} times the window's median"
    massive = sorted(largest[largest["massive"]]["layer"].unique())
    if not massive:
        return [f"No massive activations (above 100 and 1,000 times the window's median): the largest is {size}."]
    run = f"layer {massive[0]}" if len(massive) == 1 else f"{len(massive)} layers, {massive[0]} to {massive[-1]}"
    return [f"Massive activations after {run}: the largest is {size}."]


def _loss(report: Report, row: pd.Series) -> str:
    over = f"over {_count(int(row['tokens_scored']), 'token')}"
    if pd.isna(row["perplexity"]):
        reason = report.metadata["undefined"].get("perplexity", "the loss is not a number")
        return f"Perplexity is not defined: {reason}."
    if math.isinf(row["perplexity"]):
        return f"Perplexity overflows: the loss is {row['nll']:.1f} nats a token {over}."
    error = _error(row["perplexity_se"], percentage=False)
    alone = "; one window gives no standard errors" if row["windows"] == 1 else ""
    return f"Perplexity {row['perplexity']:,.2f}{error} {over}{alone}."


def percent(share: float, digits: int = 1) -> str:
    """A share in percent that never rounds something to nothing or most to all."""
    least = 0.1**digits / 100
    if 0 < share < least:
        return f"less than {least:.{digits}%}"
    if 1 - least < share < 1:
        return f"more than {1 - least:.{digits}%}"
    return f"{share:.{digits}%}"


def _error(error: float, *, percentage: bool = True) -> str:
    return "" if pd.isna(error) else f" ± {error:.1%}" if percentage else f" ± {error:.2f}"


def _plain_error(error: float) -> str:
    return "" if pd.isna(error) else f" ± {error:.3f}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
