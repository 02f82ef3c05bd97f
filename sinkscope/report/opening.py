"""What stood at position 0 in words, and who put it there: no figure means anything without it."""

import pandas as pd

from sinkscope.report import Report
from sinkscope.tokens.showing import visible_token

SHOWN = 4
"""First tokens that are named; windows may have more."""

GIVERS = {
    "tokenizer": "put there by the tokenizer",
    "sinkscope": "put there by sinkscope",
    "text": "part of the text",
    "chat template": "part of the chat template",
}


def first_token(report: Report, *, ascii_only: bool) -> str:
    """Token 0 by its text or id, whether it is BOS, and where it came from, as far as that is known."""
    first = report.tokens[report.tokens["class"] == "first"]
    names = first["token"].dropna().unique().tolist()
    if not names:
        return _of_ids(report, first["token_id"].unique().tolist())
    text = report.metadata["text"]
    shown = ", ".join(f"“{visible_token(name, ascii_only=ascii_only)}”" for name in names[:SHOWN])
    shown += ", …" if len(names) > SHOWN else ""
    giver = text.get("bos_added_by")
    if report.summary.iloc[0]["bos"]:
        where = GIVERS.get(giver, "part of the token ids that were given")
        if len(names) > 1:
            return f"Token 0 was {shown}: the BOS token in some windows only, {where}."
        return f"Token 0 was the BOS token {shown}, {where}."
    if giver is not None:
        return f"Token 0 was {shown}, {GIVERS[giver]}: not the BOS token."
    return f"Token 0 was {_source(text)}{shown}: no BOS{_why(text)}."


def _source(text: dict[str, object]) -> str:
    """What token 0 belongs to, where that is known."""
    if "synthetic" in text:
        return "a token drawn at random, "
    if "chat" in text:
        return "the chat template's first token, "
    # Ids that were given may or may not be those of a text.
    return "ordinary text, " if "bos" in text else ""


def _why(text: dict[str, object]) -> str:
    mode = text.get("bos")
    return {None: "", "auto": " (the tokenizer adds none)"}.get(mode, f" (--bos {mode})")  # type: ignore[call-overload, no-any-return]


def _of_ids(report: Report, ids: list[int]) -> str:
    shown = ", ".join(str(each) for each in ids[:SHOWN]) + (", …" if len(ids) > SHOWN else "")
    known = report.summary.iloc[0]["bos"]
    had = f"Token 0 had the id {shown}"
    if pd.isna(known):
        return f"{had}: unknown whether it is BOS, without a tokenizer and a BOS token in the configuration."
    bos = report.metadata["text"].get("bos_token_id")
    if not known:
        return f"{had}: not the BOS token by the model's configuration ({bos})."
    return f"{had}: the BOS token by the model's configuration{f' ({bos}) in some windows only' * (len(ids) > 1)}."
