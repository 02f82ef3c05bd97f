"""What a report says in plain words: how many heads sink, on what, and where in the model."""

import math

import pandas as pd

from sinkscope.report import Report
from sinkscope.report.opening import first_token
from sinkscope.report.uncertainty import uncertainty, unsettled
from sinkscope.tokens.showing import visible_token

MOST = 0.9
"""The share of the sink heads that the sentence about layers has to account for."""

PARTS = {"special": "special tokens", "punctuation": "punctuation", "newline": "line breaks", "other": "other tokens"}


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
        *_layers(report, row),
        *_activations(report, ascii_only=ascii_only),
        _loss(row),
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
        return f"No sink figures: no row of any of the {total} heads has a share for the first token."
    heads = _count(total, "head") if defined == total else f"{defined} heads (of {total}) that have a share for it"
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
    lift = f"{row['first_lift']:.1f} × an even spread"
    return f"{claim}. Mean share of the first token: {percent(row['first_share'])}{errors} ({lift})."


def _where(report: Report) -> list[str]:
    """Where the sink heads begin, and the shortest run of layers that holds most of them."""
    by_layer = report.heads.groupby("layer")["sink_rate"].sum()
    sinking = by_layer[by_layer > 0]
    if sinking.empty:
        return []
    first, last, held = _shortest_run(by_layer)
    numbers = by_layer.index
    layers = f"of layers {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else "the only one"
    if len(sinking) == 1:
        where = f"All sink heads are in layer {sinking.index[0]} ({layers})"
    else:
        run = f"layer {first}" if first == last else f"layers {first} to {last}"
        where = f"First sink head: layer {sinking.index[0]}; {percent(held, 0)} are in {run} ({layers})"
    peak = report.layers.iloc[int(report.layers["first_share"].argmax())]
    return [f"{where}. Layer with the largest mean share: {peak['layer']} ({percent(peak['first_share'])})."]


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


def _landing(row: pd.Series) -> list[str]:
    """What the other classes take; each over the queries that see one, so these do not add up to the rest."""
    found = [name for name in PARTS if pd.notna(row.get(f"{name}_share"))]
    if not set(found) - {"other"}:
        return []
    parts = [f"{PARTS[name]} {percent(row[f'{name}_share'])} ({row[f'{name}_lift']:.2f} ×)" for name in found]
    return [f"Other classes, over the queries that see one (× an even spread): {', '.join(parts)}."]


def _learned(row: pd.Series) -> list[str]:
    mass = row.get("sink_logit_mass")
    if pd.isna(mass):
        return []
    error = _error(uncertainty(row, "sink_logit_mass"))
    return [f"Learned sinks, which are no tokens, take {percent(mass)}{error} in the layers that have them."]


def _layers(report: Report, row: pd.Series) -> list[str]:
    """What a reader has to know of layers that are not like the others."""
    told = []
    total, without = report.metadata["attention"].get("decoder_layers"), row.get("layers_without_attention", 0)
    if without:
        some = f"{total - without} of {_count(total, 'decoder layer')}"
        told.append(f"Attention was seen in {some}; figures are of these.")
    if not (limited := int(row.get("limited_layers", 0))):
        return told
    lengths = report.layers.loc[~report.layers["sees_all"], "window_length"]
    spans = " or ".join(f"{length:.0f}" for length in sorted(lengths.unique()))
    told.append(
        f"Of {_count(int(row['layers']), 'attention call')} {int(row['full_layers'])} see all tokens before them and "
        f"{limited} at most {spans}; figures of the first token are over the queries that see it."
    )
    return told


def _activations(report: Report, *, ascii_only: bool) -> list[str]:
    """Where the largest entry of the hidden states is, and whether any is massive by the rule of Sun et al."""
    largest = report.massive.dropna(subset=["value"]) if "value" in report.massive else report.massive
    if largest.empty:
        return []
    top = largest.iloc[int(largest["value"].abs().argmax())]
    token = (
        f"id {top['token_id']}" if pd.isna(top["token"]) else f"“{visible_token(top['token'], ascii_only=ascii_only)}”"
    )
    where = f"in layer {top['layer']}, dimension {top['dimension']}, at position {top['position']} ({token})"
    value = f"{top['value']:,.0f}" if abs(top["value"]) >= 1000 else f"{top['value']:.4g}"
    size = f"{value} {where}, {top['ratio']:,.0f} times the window's median"
    massive = sorted(largest[largest["massive"]]["layer"].unique())
    if not massive:
        return [f"No massive activations (above 100 and 1,000 times the window's median): the largest is {size}."]
    run = f"layer {massive[0]}" if len(massive) == 1 else f"{len(massive)} layers ({massive[0]} to {massive[-1]})"
    return [f"Massive activations in the output of {run}: the largest is {size}."]


def _loss(row: pd.Series) -> str:
    over = f"over {_count(int(row['tokens_scored']), 'token')}"
    if pd.isna(row["perplexity"]):
        reason = "the loss is not a number" if row["tokens_scored"] else "no token is scored"
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
