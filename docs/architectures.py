"""Writes architectures.md and architectures.csv: every causal language model of transformers, tiny, and checked."""

import copy
import csv
import math
import signal
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import torch
import transformers

import sinkscope

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from soundness import (  # noqa: E402 - see above
    IDS,
    PADDINGS,
    TOLERANCE,
    Agreement,
    agreements,
    bidirectional,
    identity,
    leak,
    leaks,
    logits,
    loss,
    plain,
    state,
)
from tiny_models import HIDDEN, LAYERS, MODEL_TYPES, WINDOW, tiny_model  # noqa: E402

LONG = torch.randint(3, 128, (1, 96), generator=torch.Generator().manual_seed(2))
"""A window of more tokens than the positions that the models are made for."""

LIMIT = 120
"""CPU seconds for a type."""

EXACT, FALLBACK, REFUSED, NOT_BUILT, WRONG = "exact", "exact, measure only", "refused", "not built", "wrong"
MEANINGS = {
    EXACT: "measured and patched, and every check passed",
    FALLBACK: "measured from the model's own eager attentions, and those checks passed; patching is refused",
    REFUSED: "neither measured nor patched, with a message",
    NOT_BUILT: "no small model of it could be built here; nothing was checked",
    WRONG: "a check failed",
}

NUMBERS = ("calls", "layers", "masses", "loss", "identity", "causality")
TRIALS = ("bidirectional", "kept", "too long")
COLUMNS = (
    "type",
    "class",
    "outcome",
    "calls",
    "layers",
    "heads",
    "path",
    "layer kinds",
    *NUMBERS[2:],
    *TRIALS,
    "remarks",
)

INTRODUCTION = """\
# Which models can be measured

Every type that `AutoModelForCausalLM` of transformers {transformers} knows, as a random model of {layers} layers, on
two windows of {tokens} tokens (longer than the {window} of its sliding windows, its chunks and selections), and on
windows of unequal length in one batch, padded on the left and on the right. This page and
[architectures.csv](architectures.csv) are written by `make architectures`; the configurations are those of
`tests/tiny_models.py`. It says that the mechanism is right for a type, and nothing about the sinks of a trained model.

* **masses**: the largest difference of any head's first-token mass, row mass and entropy (nats), and of any token's
  received mass, from the maps that the model's own eager functions return for each window alone, given its ids and
  nothing else; on both paths, padded and not.
* **loss**: the largest relative difference of the loss from that of plain forwards over each window alone.
* **identity**: how far our softmax in place of the model's moves its logits, relative to the largest.
* **causality**: how far another last token moves the earlier logits while `entmax` is in place, likewise.
* **bidirectional**: the settings of its configuration under which its own logits depend on later tokens; each was
  tried, and measuring was refused.
* **kept**: a measurement left every buffer, attribute, hook and setting as it was.
* **too long**: what became of windows of {long} tokens, for {positions} positions: refused where the model's own code
  fails on them, else measured, with the loss of a plain forward.

A model is exact where none of the four numbers is above {tolerance:g}, `entmax` does move the logits, every map over
the tokens that the model itself shows comes from a measured call, and after everything the logits are the same bit by
bit, with no buffer, attribute, hook or setting changed.
"""


@dataclass
class Row:
    """What came out for one type; None where it was not reached."""

    type: str
    model: str = ""
    outcome: str = WRONG
    calls: int | None = None
    layers: int | None = None
    heads: str = ""
    path: str = ""
    layer_kinds: str = ""
    masses: float | None = None
    loss: float | None = None
    identity: float | None = None
    causality: float | None = None
    entropy: float | None = None
    bidirectional: str = ""
    kept: str = ""
    too_long: str = ""
    reason: str = ""


class TookTooLongError(Exception):
    """A type used up its time."""


def main() -> None:
    """Check every type, or those that are named, and write both files unless some were named."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    signal.signal(signal.SIGPROF, _give_up)
    named = sys.argv[1:]
    rows = []
    for model_type in named or MODEL_TYPES:
        started = time.process_time()
        rows.append(checked(model_type))
        spent = time.process_time() - started
        sys.stderr.write(f"{model_type}: {rows[-1].outcome} {rows[-1].reason[:200]} ({spent:.1f} s)\n")
    if not named:
        write(rows)
    if wrong := [row.type for row in rows if row.outcome == WRONG]:
        sys.exit(f"a check failed for {', '.join(wrong)}")


def checked(model_type: str) -> Row:
    """Build the type and put it through every check, within its time; whatever it raises is in the row."""
    row = Row(model_type)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        model = _built(row)
        if model is not None:
            _check(row, model)
    except Exception as error:  # noqa: BLE001 - a crash in one type must not hide the others
        row.outcome, row.reason = WRONG, f"{type(error).__name__}: {_line(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return row


def _built(row: Row) -> transformers.PreTrainedModel | None:
    """The model, if there can be one."""
    try:
        model = tiny_model(row.type)
    except Exception as error:  # noqa: BLE001 - whatever a type's own code raises
        row.outcome, row.reason = NOT_BUILT, _line(error)
        return None
    row.model = type(model).__name__
    return model


def _logits(model: transformers.PreTrainedModel) -> torch.Tensor | None:
    """What the model gives by itself; None where it cannot run, or never gives the same twice."""
    try:
        first, second = logits(model), logits(model)
    except Exception:  # noqa: BLE001 - that is for sinkscope to explain
        return None
    return second if torch.equal(first, second) else None


def _check(row: Row, model: transformers.PreTrainedModel) -> None:
    native, before = _logits(model), state(model)  # in this order: some models change themselves in a forward
    try:
        sinkscope.measure(model, input_ids=IDS)
        found = [each for keep in PADDINGS.values() for each in agreements(model, keep)]
    except sinkscope.SinkscopeError as error:
        row.outcome, row.reason = REFUSED, _line(error)
    else:
        _measured(row, model, found)
    patches = _patched(row, model)
    trials = list(_trials(row))
    if row.outcome == REFUSED:
        failed = ["measuring is refused and patching is not"] if patches else []
    else:
        failed = list(_failures(row))
        row.outcome = EXACT if patches else FALLBACK
    failed += trials
    if state(model) != before:
        failed.append("something was left on the model")
    if native is not None and not torch.equal(logits(model), native):
        failed.append("its logits are not what they were")
    if failed:
        row.outcome, row.reason = WRONG, "; ".join([*failed, row.reason])


def _measured(row: Row, model: transformers.PreTrainedModel, found: list[Agreement]) -> None:
    report = found[0].report
    layers, attention = report.layers, report.metadata["attention"]
    row.calls, row.layers = len(layers), getattr(model.config.get_text_config(), "num_hidden_layers", None)
    row.heads = _several(layers["heads"])
    row.path = _several(each["path"] for each in attention["layers"].values())
    row.layer_kinds = _several(layers["layer_type"])
    row.loss = max(each.loss for each in found)
    gaps = [each.difference for each in found if each.difference is not None]
    row.masses = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap, default=None)
    row.entropy = float(report.summary["entropy_normalised"].iloc[0])
    remarks = {each.remark: None for each in found if each.remark}
    left_out = Counter(attention["calls_left_out"].values())
    remarks |= {f"left out: {why} ({count} modules)": None for why, count in left_out.items()}
    row.reason = "; ".join(remarks)


def _patched(row: Row, model: transformers.PreTrainedModel) -> bool:
    """Whether the model can be patched; if so, what that does to it."""
    try:
        with sinkscope.patched(model):
            logits(model)
        row.identity = identity(model)
        row.causality, moved = leak(model)
    except sinkscope.UnsupportedModelError as error:
        if row.outcome != REFUSED:
            row.reason = "; ".join(filter(None, [row.reason, _line(error)]))
        return False
    if moved < TOLERANCE:
        raise AssertionError(f"entmax changed nothing ({moved:.0e})")
    return True


def _trials(row: Row) -> Iterator[str]:
    """Try the settings that make the type bidirectional, windows that are too long, and what a measurement leaves."""
    for name, model in bidirectional(row.type):
        looks_ahead, refused = leaks(model), _refused(model, IDS)
        if looks_ahead and refused is None:
            yield f"it is measured with {name}"
        if looks_ahead:
            row.bidirectional = ", ".join(filter(None, [row.bidirectional, name]))
    model = tiny_model(row.type)
    before, refused = state(model), _refused(model, IDS)
    if state(model) != before:
        yield "a measurement left something on a model that had not run before"
    row.kept = "yes" if refused is None else ""
    if refused is None:
        yield from _too_long(row, model)


def _too_long(row: Row, model: transformers.PreTrainedModel) -> Iterator[str]:
    try:
        native = plain(copy.deepcopy(model), LONG)
    except Exception:  # noqa: BLE001 - whatever a type's own code raises
        native = None
    refused = _refused(model, LONG)
    row.too_long = "measured" if refused is None else "refused"
    if native is None and not isinstance(refused, sinkscope.TextError):
        yield f"windows that are too long: {refused or 'measured'}"
    elif native is not None and refused is not None:
        yield f"windows that the model itself takes are refused: {refused}"
    elif native is not None:
        nll = float(sinkscope.measure(model, input_ids=LONG).summary["nll"].iloc[0])
        if not abs(nll / loss([native], [LONG]) - 1) <= TOLERANCE:
            yield "windows beyond the positions have another loss"


def _refused(model: transformers.PreTrainedModel, ids: torch.Tensor) -> sinkscope.SinkscopeError | None:
    """Why measuring is refused, or None."""
    try:
        sinkscope.measure(model, input_ids=ids)
    except sinkscope.SinkscopeError as error:
        return error
    return None


def _failures(row: Row) -> Iterator[str]:
    for name in ("masses", "loss", "identity", "causality"):
        value = getattr(row, name)
        if value is not None and not value <= TOLERANCE:
            yield f"{name} {value:.0e}"


def _line(error: Exception) -> str:
    """The message on one line, without the model's name that stands in front of ours."""
    whole = textwrap.shorten(str(error), 200, placeholder="…")
    return whole.partition(" cannot be measured: ")[2] or whole


def _several(values: Iterable[object]) -> str:
    return ", ".join(str(each) for each in sorted(set(values)))


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TookTooLongError(f"more than {LIMIT} CPU seconds")


def write(rows: list[Row]) -> None:
    """Write both files."""
    with (HERE / "architectures.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        for row in rows:
            writer.writerow(_figure(value) for value in asdict(row).values())
    (HERE / "architectures.md").write_text("\n".join(page(rows)), encoding="utf-8")


def page(rows: list[Row]) -> Iterator[str]:
    """The page, a block at a time."""
    tokens = next(iter(PADDINGS.values())).shape[1]
    yield INTRODUCTION.format(
        transformers=version("transformers"),
        layers=LAYERS,
        tokens=tokens,
        window=WINDOW,
        tolerance=TOLERANCE,
        long=LONG.shape[1],
        positions=HIDDEN,
    )
    counts = Counter(row.outcome for row in rows)
    yield "| outcome | types | meaning |\n| --- | ---: | --- |"
    yield from (f"| {name} | {counts[name]} | {MEANINGS[name]} |" for name in MEANINGS if counts[name])
    yield "\n## The types\n"
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "| " + " | ".join("---:" if name in NUMBERS else "---" for name in COLUMNS) + " |"
    for row in sorted(rows, key=lambda each: each.type):
        cells = [f"`{row.type}`", row.model, row.outcome, row.calls, row.layers, row.heads, row.path, row.layer_kinds]
        cells += [row.masses, row.loss, row.identity, row.causality, row.bidirectional, row.kept, row.too_long]
        cells += [row.reason.replace("|", "\\|")]
        yield "| " + " | ".join(_figure(each) for each in cells) + " |"
    yield ""


def _figure(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.0e}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
