"""The baseline over the rows that count under another normalizer: what a change has to be taken from.

A window hides the first token from later queries, and a rectifier leaves rows without any weight. The figures after
the swap are then over fewer rows, and those before it have to be over the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Question, Rows, Site
from sinkscope.attention.paths import attend_and_reduce
from sinkscope.attention.swap import PLAIN
from sinkscope.hooks.handshake import Handshake
from sinkscope.hooks.outside import not_of_tokens
from sinkscope.hooks.predictions import predict
from sinkscope.runs.observe import Batches
from sinkscope.runs.record import Layer, Numbers, Record

Key = tuple[str, int]
"""A module's name, and which of its calls."""

RowsOfCalls = Mapping[Key, Rows]
"""Which rows of each call of a batch have figures."""


def differ(before: RowsOfCalls, after: RowsOfCalls) -> bool:
    """Whether any call has figures for other rows after than before."""
    return not all(rows.same(before[key]) for key, rows in after.items())


class Baselines:
    """The baseline of each contender: its own record, or one over the rows that count under the contender."""

    def __init__(self, whole: Record, batches: Batches, contenders: int) -> None:
        self._whole = whole
        self._batches = batches
        self._parts: list[Record | None] = [None] * contenders

    def add(self, model: PreTrainedModel, shown: Handshake, windows: Numbers, rows: Mapping[int, RowsOfCalls]) -> None:
        """Run the baseline once more over these windows, for the contenders whose rows differ from its own."""
        for index in rows:
            if self._parts[index] is None:
                part = self._batches.record(self._whole.normalizer)
                part.hidden = None
                self._parts[index] = part
        chosen = [(part, rows[index]) for index, part in enumerate(self._parts) if part is not None and index in rows]
        question = self._batches.question(windows)
        question = replace(question, needs=question.needs - {"received"})
        with shown.seam(model, _Recounter(chosen, question, windows, self._batches)):
            predict(model, self._batches.at(windows), chunked=shown.chunked)

    def records(self) -> list[Record]:
        """The baseline of each contender, complete."""
        return [self._whole if part is None else part.over(self._whole) for part in self._parts]


@dataclass(eq=False)
class _Recounter:
    """What a probe calls for each attention call: weigh it plainly, count the rows of each contender, go on."""

    records: Sequence[tuple[Record, RowsOfCalls]]
    question: Question
    windows: Numbers
    batches: Batches

    def __call__(self, site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not_of_tokens(call, self.question.keep.shape[1]):
            return own()
        call, path = self.batches.projections.of(site, call), self.batches.path
        output, reductions = attend_and_reduce(call, PLAIN, self.question.to(call.query.device), path)
        for record, rows in self.records:
            within = reductions.within(rows[site.name, site.call])
            record.add(Layer.of(site, call, path), self.windows, within)
        return output
