"""How a run measures, as users say it, and what that makes it ask of every call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.activations import ACTIVATIONS, Activation
from sinkscope.attention.paths import Path
from sinkscope.metrics import METRICS, Metric
from sinkscope.metrics.choosing import asks_for_hidden, asks_for_received, chosen
from sinkscope.progress import Progress, silent
from sinkscope.protocols import OWN, PROTOCOLS, Protocol
from sinkscope.runs.observe import Batches
from sinkscope.statistics.accumulate import Blocks, draws
from sinkscope.statistics.sampling import Sample
from sinkscope.text.corpus import Windows
from sinkscope.tokens import TOKEN_CLASSES, Tokens, classify

LEAST_DRAWS = 100
"""Bootstrap samples below which a percentile interval is noise."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure, whatever is measured.

    `batch_size` counts windows per forward (None: what fits). `attention` is `flash`, `dense`, or `auto` for flash
    where it serves; one that is asked for by name is never replaced by the other. `initial` counts the leading keys
    that are initial, and `epsilon` is the threshold of the sink rate. Cards in `metrics` are measured beside the
    catalog's, and so are the figures of the `protocol`. `bootstrap` counts samples of windows for 95 % intervals,
    drawn from `seed` like the sample of queries. `also` names optional metrics. With `gradients`, the norm of the
    loss's gradient is measured at each input, and the effective rank and mean cosine of hidden states. `origin` says
    where the model came from and `command` how the run was started; both go into the metadata only.
    """

    batch_size: int | None = None
    attention: str = "auto"
    only: Collection[str] | None = None
    also: Collection[str] | None = None
    classes: Collection[str] | None = None
    metrics: Sequence[Metric] = ()
    queries: int | None = None
    seed: int = 0
    initial: int = 4
    epsilon: float = 0.3
    protocol: Protocol = PROTOCOLS[OWN]
    bootstrap: int | None = None
    gradients: bool = False
    origin: Mapping[str, object] | None = None
    command: Sequence[str] | None = None
    progress: Progress = silent

    def __post_init__(self) -> None:
        if self.bootstrap is not None and self.bootstrap < LEAST_DRAWS:
            raise ValueError(f"expected at least {LEAST_DRAWS} bootstrap samples, got {self.bootstrap}")

    def batches(self, windows: Windows, tokens: Tokens, path: Path, telling: Sequence[str] = ()) -> Batches:
        """All the windows with what is to be known of them; `telling` names metrics that are wanted in any case.

        Raises UnknownNameError for a metric or class that does not exist, ValueError for a number of queries below 1.
        """
        return Batches(
            ids=windows.ids,
            keep=windows.keep,
            marked=self._marked(tokens),
            epsilon=self.epsilon,
            metrics=chosen(
                self.only, [*self.metrics, *self.protocol.metrics, *(METRICS[name] for name in telling)], self.also
            ),
            activations=self._activations(),
            received=asks_for_received(self.only),
            sample=self._sample(int(windows.keep.sum(-1).max())),
            path=path,
        )

    def _activations(self) -> tuple[Activation, ...]:
        """The figures of hidden states; those that are expensive (rank and cosine) only with gradients."""
        if not (self.gradients or asks_for_hidden(self.only)):
            return ()
        return tuple(card for card in ACTIVATIONS.values() if self.gradients or not card.optional)

    def draws(self, windows: int, blocks: Blocks | None = None) -> Float[Tensor, "resample window"] | None:
        """The bootstrap samples of so many windows; None where none are asked for, or there is nothing to resample."""
        if self.bootstrap is None or windows < 2:
            return None
        return draws(windows, self.bootstrap, self.seed, blocks)

    def _marked(self, tokens: Tokens) -> dict[str, Bool[Tensor, "window position"]]:
        wanted = None if self.classes is None else {"first", *(TOKEN_CLASSES[name].name for name in self.classes)}
        return {name: marks for name, marks in classify(tokens).items() if wanted is None or name in wanted}

    def _sample(self, longest: int) -> Sample | None:
        """The sample of each window's queries; None where that would be all of them in every window."""
        if self.queries is None:
            return None
        if self.queries < 1:
            raise ValueError(f"expected a number of queries from 1, got {self.queries}")
        if self.attention == Path.flash:
            raise ValueError("expected sampled queries or the flash path, got both: they are reduced by the dense path")
        return Sample(self.queries, self.seed) if self.queries < longest else None
