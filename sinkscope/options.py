"""How a run measures, as users say it, and what that makes it ask of every call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from sinkscope.attention.paths import Path
from sinkscope.corpus import Windows
from sinkscope.metrics import METRICS, Metric
from sinkscope.metrics.choosing import asks_for_received, chosen
from sinkscope.observe import Batches
from sinkscope.progress import Progress, silent
from sinkscope.sampling import systematic
from sinkscope.tokens import TOKEN_CLASSES, Tokens, classify


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure, whatever is measured.

    `batch_size` counts windows per forward (None: what fits). `attention` is `flash`, `dense`, or `auto` for flash
    where it serves; one that is asked for by name is never replaced by the other. `initial` counts the leading keys
    that are initial, and `epsilon` is the threshold of the sink rate. Cards in `metrics` are measured beside the
    catalog's. `origin` says where the model came from and `command` how the run was started; both go into the metadata
    only.
    """

    batch_size: int | None = None
    attention: str = "auto"
    only: Collection[str] | None = None
    classes: Collection[str] | None = None
    metrics: Sequence[Metric] = ()
    queries: int | None = None
    seed: int = 0
    initial: int = 4
    epsilon: float = 0.3
    origin: Mapping[str, object] | None = None
    command: Sequence[str] | None = None
    progress: Progress = silent

    def batches(self, windows: Windows, tokens: Tokens, path: Path, telling: Sequence[str] = ()) -> Batches:
        """All the windows with what is to be known of them; `telling` names metrics that are wanted in any case.

        Raises UnknownNameError for a metric or class that does not exist, ValueError for a number of queries below 1.
        """
        return Batches(
            ids=windows.ids,
            keep=windows.keep,
            marked=self._marked(tokens),
            epsilon=self.epsilon,
            metrics=chosen(self.only, [*self.metrics, *(METRICS[name] for name in telling)]),
            received=asks_for_received(self.only),
            positions=self._positions(windows.ids.shape[1]),
            path=path,
        )

    def _marked(self, tokens: Tokens) -> dict[str, Bool[Tensor, "window position"]]:
        wanted = None if self.classes is None else {"first", *(TOKEN_CLASSES[name].name for name in self.classes)}
        return {name: marks for name, marks in classify(tokens).items() if wanted is None or name in wanted}

    def _positions(self, length: int) -> Int[Tensor, "query"] | None:
        """The queries that are sampled; None where that would be all of them."""
        if self.queries is None:
            return None
        if self.queries < 1:
            raise ValueError(f"expected a number of queries from 1, got {self.queries}")
        if self.attention == Path.flash:
            raise ValueError("expected sampled queries or the flash path, got both: they are reduced by the dense path")
        return systematic(length, self.queries, self.seed) if self.queries < length else None
