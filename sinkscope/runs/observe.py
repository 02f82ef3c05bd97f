"""The run itself: every window once through the model, each layer's attention reduced as it goes by."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.activations import Activation
from sinkscope.activations.layers import Layers
from sinkscope.activations.record import HiddenRecord
from sinkscope.attention import Call, Question, Reductions, Site
from sinkscope.attention.flash import one_kernel
from sinkscope.attention.paths import Path, attend_and_reduce, reduce, taken
from sinkscope.attention.swap import PLAIN
from sinkscope.errors import UnsupportedModelError
from sinkscope.hooks.finite import advice, overflowed
from sinkscope.hooks.handshake import Handshake, agreement
from sinkscope.hooks.outside import not_of_tokens
from sinkscope.hooks.predictions import losses, predict
from sinkscope.hooks.projections import Projections
from sinkscope.hooks.tolerances import largest_score, tolerance
from sinkscope.metrics import Metric
from sinkscope.progress import Progress
from sinkscope.runs.record import Layer, Numbers, Record
from sinkscope.statistics.sampling import Sample, replicates


@dataclass(frozen=True, eq=False)
class Batches:
    """All the windows of a run with what is to be known of them, to be taken a few at a time."""

    ids: Int[Tensor, "window position"]
    keep: Bool[Tensor, "window position"]
    marked: dict[str, Bool[Tensor, "window position"]]
    epsilon: float
    metrics: tuple[Metric, ...]
    received: bool = True
    """Whether the mass that each token receives is wanted."""
    sample: Sample | None = None
    """Which queries of each window have their weights reduced; None for all."""
    path: Path = Path.auto
    layers: Layers | None = None
    """Whose outputs are watched as hidden states; None for no layer's."""
    activations: tuple[Activation, ...] = ()
    """The figures of hidden states."""
    projections: Projections = field(default_factory=Projections)
    """What is known of output projections; nothing where no metric needs them."""

    def of(self, size: int) -> list[Numbers]:
        """The windows of each batch, `size` at most and all of one length: a model never sees padding.

        With a mask and positions of ours a window would not be what the model makes of it alone: models count
        positions and choose frequencies in ways of their own.
        """
        groups: dict[int, list[int]] = {}
        for window, length in enumerate(self.keep.sum(dim=1).tolist()):
            groups.setdefault(length, []).append(window)
        return [tuple(each[at : at + size]) for each in groups.values() for at in range(0, len(each), size)]

    def at(self, windows: Numbers) -> Int[Tensor, "batch position"]:
        """The ids of these windows, which are of one length."""
        return self.ids[list(windows), : self._length(windows)]

    def _length(self, windows: Numbers) -> int:
        return int(self.keep[windows[0]].sum())

    def record(self, normalizer: str) -> Record:
        """An empty record for all the windows."""
        count, length = self.ids.shape
        record = Record.start(normalizer, count, length, self.metrics)
        record.parts = 0 if self.sample is None else replicates(self.sample.count)
        if self.layers is not None:
            record.hidden = HiddenRecord(normalizer, self.layers, self.activations)
        return record

    @contextmanager
    def watched(self, model: PreTrainedModel, record: Record, windows: Numbers) -> Iterator[None]:
        """Take hidden states into the record while the model runs these windows once, where they are asked for."""
        with ExitStack() as stack:
            if record.hidden is not None:
                stack.enter_context(record.hidden.watch(model, windows, self._length(windows)))
            yield

    def question(self, windows: Numbers) -> Question:
        """What to ask of every call over these windows: query 0, whose row is trivially 1, is left out of the means."""
        length = self._length(windows)
        marked = {name: each[list(windows), :length] for name, each in self.marked.items()}
        keep = torch.ones(len(windows), length, dtype=torch.bool)
        return Question(
            keep=keep,
            rows=keep & ~marked["first"],
            marked=marked,
            needs=frozenset({"received"} if self.received else ()).union(*(each.needs for each in self.metrics)),
            epsilon=self.epsilon,
            positions=None if self.sample is None else self.sample.positions(length, windows),
        )


def observe(model: PreTrainedModel, batches: Batches, shown: Handshake, size: int, progress: Progress) -> Record:
    """Run all windows, `size` at a time; `shown` says which calls to expect of each forward.

    Raises UnsupportedModelError where a layer's output is not what our weights give, or calls come and go.
    """
    record = batches.record("softmax")
    expected = len(shown.sites)
    tokens = int(batches.keep.sum())
    total = expected * len(batches.of(size))
    seen = 0
    same: dict[tuple[object, ...], bool] = {}

    def told() -> None:
        nonlocal seen
        seen += 1
        progress("measuring", tokens * seen // total, tokens)

    progress("measuring", 0, tokens)
    for windows in batches.of(size):
        observer = _Observer(record, batches.question(windows), windows, batches, told, same)
        ids = batches.at(windows)
        with shown.seam(model, observer), batches.watched(model, record, windows):
            found = predict(model, ids, chunked=shown.chunked)
        if observer.seen != expected:
            raise UnsupportedModelError(
                f"{type(model).__name__} made {observer.seen} attention calls over this text and {expected} over its "
                "first tokens: it cannot be measured, since the figures of different layers would be mixed"
            )
        record.loss.add(windows, losses(found, ids))
    return record


@dataclass(eq=False)
class _Observer:
    """What a probe calls for each attention call of one batch: reduce it, check it, let the model go on."""

    record: Record
    question: Question
    windows: Numbers
    batches: Batches
    told: Callable[[], None]
    same: dict[tuple[object, ...], bool]
    """For each shape of calls, whether our kernel's output was the model's own to the last bit."""
    seen: int = 0

    def __call__(self, site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not_of_tokens(call, self.question.keep.shape[1]):
            return own()
        question = self.question.to(call.query.device)
        call = self.batches.projections.of(site, call)
        path = taken(call, PLAIN, self.batches.path, question)
        output, reductions = self._seen(call, own, question, path)
        self._check(site, call, output)
        self.record.add(Layer.of(site, call, path), self.windows, reductions)
        self.seen += 1
        self.told()
        return output

    def _seen(self, call: Call, own: Callable[[], Tensor], question: Question, path: Path) -> tuple[Tensor, Reductions]:
        """The model's own output, and its weights reduced; one kernel for both where that changes no bit of it."""
        shape = (call.query.shape, call.key.shape, call.value.shape, call.query.dtype, call.scale)
        if path is Path.dense or not one_kernel(call, question) or not self.same.get(shape, True):
            output = own()
            return output, reduce(call, question, output, path)
        output, reductions = attend_and_reduce(call, PLAIN, question, path)
        if shape not in self.same:
            theirs = own()
            self.same[shape] = torch.equal(theirs, output)
            return theirs, reductions
        return output, reductions

    def _check(self, site: Site, call: Call, output: Tensor) -> None:
        """Refuse to reduce weights that do not give the layer's own output."""
        difference = agreement(call, output)
        # A pass over all scores only where something may be wrong.
        if not difference <= tolerance(output.dtype) and not difference <= tolerance(output.dtype, largest_score(call)):
            if overflowed(output):
                raise UnsupportedModelError(
                    f"{site.name} cannot be measured: its output is not finite over this text: {advice(output.dtype)}"
                )
            raise UnsupportedModelError(
                f"{site.name} cannot be measured: its output differs from what its queries, keys and values give by "
                f"{difference:.1e}, relative to the largest"
            )
        self.record.largest_difference = max(self.record.largest_difference or 0.0, difference)
