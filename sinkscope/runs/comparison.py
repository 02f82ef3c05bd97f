"""Every window once under each normalizer, all through the same code path, so that differences are the normalizers'."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Question, Rows, Site
from sinkscope.attention.paths import Path, attend, attend_and_reduce, taken
from sinkscope.attention.swap import PLAIN
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.finite import advice, overflowed
from sinkscope.hooks.handshake import Handshake
from sinkscope.hooks.outside import not_of_tokens
from sinkscope.hooks.patch import Plan, check_heads
from sinkscope.hooks.predictions import Predictions, losses, predict, standing
from sinkscope.hooks.rounding import widened
from sinkscope.hooks.tolerances import difference, tolerance
from sinkscope.progress import Progress
from sinkscope.runs.common_rows import Baselines, Key, RowsOfCalls, differ
from sinkscope.runs.observe import Batches
from sinkscope.runs.record import Layer, Numbers, Record

EXPLAINED_BY_LSE = ("softmax1", "softmax_n", "sink_logit")
"""The normalizers whose effect is a function of each row's log-sum-exp alone."""


@dataclass(frozen=True)
class Contender:
    """One way of weighing that is held against plain softmax: its name in the tables, and its swaps."""

    label: str
    plan: Plan
    layer: int | None = None
    """The one layer that is swapped, in a sweep over layers."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The records of a comparison, plain softmax first, and of a sweep over layers, if there was one."""

    baseline: Record
    records: list[Record]
    baselines: list[Record]
    """For each of the records the baseline over the rows that count there, which is what its changes are taken from."""
    identity_delta: float
    """The largest difference that our own softmax made to the model's last hidden states or logits over the first
    window, relative to the largest."""
    identity_kl: float
    """KL(model ‖ our own softmax) over the first window, in nats."""


def compare_records(
    model: PreTrainedModel,
    batches: Batches,
    contenders: Sequence[Contender],
    shown: Handshake,
    *,
    size: int,
    progress: Progress,
) -> Comparison:
    """Run all windows under plain softmax and under each contender, `size` windows at a time.

    A contender of a sweep is only scored; of the others everything is reduced. Raises UnsupportedModelError if a layer
    that was to be swapped was not called.
    """
    baseline = batches.record("softmax")
    records = [batches.record(each.label) for each in contenders]
    baselines = Baselines(baseline, batches, len(contenders))
    tokens, done, delta = int(batches.keep.sum()) * (1 + len(contenders)), 0, (0.0, 0.0)
    progress("comparing", 0, tokens)
    for windows in batches.of(size):
        ids = batches.at(windows)
        plain, own = _forward(model, batches, windows, baseline, Plan({}), shown=shown)
        if done == 0:
            delta = _identity(model, ids[:1], plain, shown)
        baseline.loss.add(windows, losses(plain, ids))
        progress("comparing", done := done + ids.numel(), tokens)
        others: dict[int, RowsOfCalls] = {}
        for index, (contender, record) in enumerate(zip(contenders, records, strict=True)):
            swept = contender.layer is not None
            found, rows = _forward(model, batches, windows, record, contender.plan, shown=shown, scored_only=swept)
            _score(record, windows, (plain, found), ids)
            if differ(own, rows):
                others[index] = rows
            progress("comparing", done := done + ids.numel(), tokens)
        if others:
            baselines.add(model, shown, windows, others)
    return Comparison(baseline, records, baselines.records(), *delta)


def _identity(
    model: PreTrainedModel,
    ids: Int[Tensor, "batch position"],
    plain: Predictions,
    shown: Handshake,
) -> tuple[float, float]:
    """How far our own softmax takes the model from itself over one window: relative difference, and KL in nats."""
    native = predict(model, ids, chunked=shown.chunked)
    ours = Predictions(plain.states[: ids.shape[0]], plain.head)
    kl, scored = standing(native, ours, ids).divergence
    delta = difference(ours.states, native.states)
    dtype = native.states.dtype
    if overflowed(native.states):
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be compared: its output is not finite over this text: {advice(dtype)}"
        )
    if not delta <= tolerance(dtype) and not delta <= widened(model, ids, shown.seam, dtype):
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be compared: over this text its layers do more than softmax attention "
            f"(our own softmax changes its output by {delta:.1e}, relative to the largest)"
        )
    return delta, float(kl.sum() / scored.sum())


def common_path(contenders: Sequence[Contender], asked: Path) -> Path:
    """The path for all: dense as soon as one normalizer needs it, so that differences are the normalizers'."""
    swaps = [swap for contender in contenders for swap in contender.plan.swaps.values()]
    whole = next((swap for swap in swaps if swap.normalizer.form is None or swap.modifier is not None), None)
    if whole is not None and asked is Path.flash:
        raise UnsupportedModelError(f"the flash path cannot serve {whole.label}: use --attention auto")
    return asked if whole is None else Path.dense


def needed(contenders: Sequence[Contender]) -> list[str]:
    """The optional metrics that tell something of these contenders."""
    swaps = [swap for contender in contenders for swap in contender.plan.swaps.values()]
    found = []
    if any(swap.normalizer.name in EXPLAINED_BY_LSE for swap in swaps):
        found.append("lse")
    if any(swap.normalizer.degenerate is not None for swap in swaps):
        found.append("degenerate_rows")
    return found


def _score(
    record: Record, windows: Numbers, both: tuple[Predictions, Predictions], ids: Int[Tensor, "batch position"]
) -> None:
    found = standing(*both, ids)
    record.loss.add(windows, found.loss)
    record.divergence.add(windows, found.divergence)
    record.agreement.add(windows, found.agreement)


def _forward(
    model: PreTrainedModel,
    batches: Batches,
    windows: Numbers,
    record: Record,
    plan: Plan,
    *,
    shown: Handshake,
    scored_only: bool = False,
) -> tuple[Predictions, RowsOfCalls]:
    question = batches.question(windows)
    replacer = _Replacer(record, question, windows, plan, batches, scored_only=scored_only)
    with ExitStack() as stack:
        stack.enter_context(shown.seam(model, replacer))
        if not scored_only:
            stack.enter_context(batches.watched(model, record, windows))
        found = predict(model, batches.at(windows), chunked=shown.chunked)
    if missed := plan.missed(replacer.seen):
        raise UnsupportedModelError(
            f"{type(model).__name__} never called {missed[0]} over this text: nothing was swapped there"
        )
    return found, replacer.rows


@dataclass(eq=False)
class _Replacer:
    """What a probe calls for each attention call of one batch: weigh it by the plan, reduce the weights, go on."""

    record: Record
    question: Question
    windows: Numbers
    plan: Plan
    batches: Batches
    scored_only: bool

    def __post_init__(self) -> None:
        self.seen: set[str] = set()
        self.rows: dict[Key, Rows] = {}

    def __call__(self, site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not_of_tokens(call, self.question.keep.shape[1]):
            return own()
        self.seen.add(site.name)
        swap = self.plan.swap(site) or PLAIN
        check_heads(site, call, swap)
        asked, call = self.batches.path, self.batches.projections.of(site, call)
        path = taken(call, swap, asked, self.question)
        if self.scored_only:
            return attend(call, swap, asked)
        output, reductions = attend_and_reduce(call, swap, self.question.to(call.query.device), asked)
        self.record.add(Layer.of(site, call, path), self.windows, reductions)
        self.rows[site.name, site.call] = reductions.rows()
        return output
