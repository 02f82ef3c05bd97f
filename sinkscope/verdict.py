"""What a report says in plain words: how many heads sink, on what, and where in the model."""

import pandas as pd

from sinkscope.report import Report
from sinkscope.tokens.showing import visible_text

MOST = 0.9
"""The share of the sink heads that "most of them" stands for, in the sentence about layers."""

PARTS = {"special": "special tokens", "punctuation": "punctuation", "newline": "line breaks", "other": "other tokens"}


def verdict(report: Report) -> list[str]:
    """The sentences, most important first; each number is one of the report's."""
    row = report.summary.iloc[0]
    return [_share(row), *_where(report), _first_token(report), *_elsewhere(row), *_loss(report, row)]


def _share(row: pd.Series) -> str:
    rate, heads, epsilon = row["sink_rate"], int(row["heads"]), f"{row['epsilon']:g}"
    claim = (
        f"{rate:.1%} of the {heads} heads are sinks: they put more than {epsilon} of their attention on the first token"
        if rate > 0
        else f"None of the {heads} heads is a sink: none puts more than {epsilon} of its attention on the first token"
    )
    mass = f"{row['first_share']:.1%}{_error(row['first_share_se'])} of all attention lands there"
    return f"{claim}. {mass}, {row['first_lift']:.1f} times what an even spread would give."


def _where(report: Report) -> list[str]:
    """The shortest run of layers that holds most of the sink heads."""
    by_layer = report.heads.groupby("layer")["sink_rate"].sum()
    total = by_layer.sum()
    if total == 0:
        return []
    running = by_layer.cumsum().to_list()
    before = [0.0, *running]
    numbers = by_layer.index.to_list()
    spans = (
        (end - start, numbers[start], numbers[end], (running[end] - before[start]) / total)
        for start in range(len(numbers))
        for end in range(start, len(numbers))
        if running[end] - before[start] >= MOST * total
    )
    _, first, last, held = min(spans)
    peak = report.layers.loc[report.layers["first_share"].idxmax()]
    where = f"layer {first}" if first == last else f"layers {first} to {last}"
    sentence = (
        f"They begin at layer {first}: {held:.0%} of them are in {where} (of {numbers[0]} to {numbers[-1]}); "
        f"the strongest layer is {int(peak['layer'])}, with {peak['first_share']:.1%} on the first token."
    )
    return [sentence]


def _first_token(report: Report) -> str:
    first = report.tokens[report.tokens["class"] == "first"]
    names = first["token"].dropna().unique().tolist()
    text = report.metadata["text"]
    if not names:
        ids = ", ".join(str(each) for each in first["token_id"].unique()[:4])
        return f"Token 0 had the id {ids}: without a tokenizer nobody can say what it stands for."
    shown = ", ".join(f"“{visible_text(name)}”" for name in names[:4]) + (", …" if len(names) > 4 else "")
    if report.summary.iloc[0]["bos"]:
        return f"Token 0 was the BOS token {shown}, put there by {text['bos_added_by']}."
    why = "the tokenizer adds none" if text["bos"] == "auto" else f"--bos {text['bos']}"
    return f"Token 0 was ordinary text, {shown}: no BOS ({why})."


def _elsewhere(row: pd.Series) -> list[str]:
    """Where the rest goes, for the classes that the text has."""
    found = [name for name in PARTS if f"{name}_share" in row and pd.notna(row[f"{name}_share"])]
    if found == ["other"] or not found:
        return []
    parts = [f"{row[f'{name}_share']:.1%} on {PARTS[name]} (×{row[f'{name}_lift']:.2f})" for name in found]
    return [f"The rest: {', '.join(parts)}."]


def _loss(report: Report, row: pd.Series) -> list[str]:
    if pd.isna(row["perplexity"]):
        return [f"Perplexity is not defined: {report.metadata['undefined'].get('perplexity', 'nothing was scored')}."]
    error = _error(row["perplexity_se"], ".2f")
    return [f"Perplexity {row['perplexity']:.2f}{error} over {row['tokens_scored']} tokens."]


def _error(error: float, style: str = ".1%") -> str:
    return "" if pd.isna(error) else f" ± {error:{style}}"
