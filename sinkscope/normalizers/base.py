"""What a normalizer is: the card that turns a function of scores into one that every path can trust."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.errors import SinkscopeError, UnknownNameError

Number = int | float
"""What people write for a setting: the type checker of the tests takes no int for a float."""

RowSum = Literal["one", "one or zero", "at most one", "any"]
"""What the weights of one row add up to, for every row and every setting in range."""


@dataclass(frozen=True)
class Parameter:
    """One number that a normalizer takes, and where it makes sense: low <= value <= high.

    `whole` parameters are integers. An infinite bound includes infinity itself: a sink logit of -inf is no sink.
    """

    name: str
    default: float
    low: float
    high: float
    summary: str
    whole: bool = False

    @property
    def range(self) -> str:
        """The admissible values, as they are shown to people."""
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {shown(self.low)} to {shown(self.high)}, by default {shown(self.default)}"

    def checked(self, value: Number) -> Number:
        """The value itself, an int if whole; raises ValueError outside the range, and for what is no number."""
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise ValueError(f"{self.name} must be {self.range}: got {shown(value)}")
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Normalizer:
    """A function from scores to weights over the last axis, and what is true of it.

    The function is `f(scores, **settings) -> weights`. It sees fp32 or fp64 scores with -inf at hidden keys and
    at least one finite score in each row; what it answers at hidden keys is ignored, but they must not enter its
    sums. With `counts_keys` it also gets `visible`, the number of keys that each row can see as a float of shape
    [*rows, 1]; columns that stand for learned sinks are not counted. Everything else is the card's work, so it
    holds for any function: hidden keys weigh exactly 0, a query that sees nothing gets zeros, the arithmetic is in
    fp32 or better, and the gradient at hidden keys is 0, never NaN.

    Truths hold for every row and every setting in range, and None stands for unknown:

    * `row_sum`: what a row of weights adds up to
    * `may_be_negative`: some row has a negative weight
    * `shift_invariant`: adding a constant to all visible scores changes nothing
    * `exact_zeros`: a visible key can weigh exactly 0, and not only by underflow or where a score is itself 0
    * `differentiable`: autograd gives the true gradient almost everywhere (jumps and kinks are of measure zero)
    * `rowwise`: a weight depends on the other scores of its row, not only on its own and the number of keys
    * `degree`: |weight| <= (1 + max |score|) ** degree, a number or the name of the parameter that holds it;
      for degree 0 weights stay within 1e4, which every dtype holds

    `form` is for the fast path: given `visible` and the settings, the pair (scale, sink) for which the weights are
    softmax(scale·z)·sigmoid(LSE(scale·z) − sink). None where the normalizer is no form of softmax.

    `support`, f(scores, weights, **settings), marks the keys to which the formula gives a weight, where a weight of 0
    can also be one that fp32 cannot hold. Without it every key has one if `exact_zeros` is False, else the keys whose
    computed weight is not 0.

    `degenerate` marks the rows [*rows] of which the formula is no definition (its denominator vanishes or is
    negative); `caveat` says what is done with them. It is called as the function is, without `visible`.
    """

    name: str
    function: Callable[..., Tensor]
    summary: str
    formula: str
    source: str
    published: bool
    parameters: tuple[Parameter, ...] = ()
    row_sum: RowSum | None = None
    may_be_negative: bool | None = None
    shift_invariant: bool | None = None
    exact_zeros: bool | None = None
    differentiable: bool | None = None
    rowwise: bool | None = None
    degree: float | str | None = None
    counts_keys: bool = False
    form: Callable[..., tuple[Tensor | float, float]] | None = None
    support: Callable[..., Tensor] | None = None
    degenerate: Callable[..., Tensor] | None = None
    caveat: str = ""
    bound: tuple[tuple[str, Number], ...] = ()

    @property
    def sums_to_one(self) -> bool:
        """Whether every row that sees a key is known to add up to 1."""
        return self.row_sum == "one"

    @property
    def settings(self) -> dict[str, Number]:
        """Every parameter's value: what was bound, else its default."""
        return {each.name: each.checked(each.default) for each in self.parameters} | dict(self.bound)

    @property
    def spec(self) -> str:
        """The name with what was bound, as `resolve` reads it back: `entmax:alpha=1.5`."""
        pairs = ",".join(f"{name}={shown(value)}" for name, value in self.bound)
        return f"{self.name}:{pairs}" if pairs else self.name

    def bind(self, **settings: Number) -> "Normalizer":
        """The card with parameters set; ValueError out of range, UnknownNameError for a parameter it has not."""
        fresh = {name: self._parameter(name).checked(value) for name, value in settings.items()}
        return replace(self, bound=tuple((dict(self.bound) | fresh).items()))

    def finite_range(self, dtype: torch.dtype) -> float | None:
        """The |score| up to which weights surely fit a dtype (inf: always); None where that is unknown."""
        degree = self.settings[self.degree] if isinstance(self.degree, str) else self.degree
        if degree is None:
            return None
        return torch.finfo(dtype).max ** (1 / degree) - 1 if degree else math.inf

    def __call__(
        self,
        scores: Float[Tensor, "*rows key"],
        hidden: Bool[Tensor, "*#rows key"] | None = None,
        *,
        extra: int = 0,
    ) -> Float[Tensor, "*rows key"]:
        """The weights in the scores' own dtype, computed as `weigh` does."""
        return self.weigh(scores, hidden, extra=extra).to(scores.dtype)

    def weigh(
        self,
        scores: Float[Tensor, "*rows key"],
        hidden: Bool[Tensor, "*#rows key"] | None = None,
        *,
        extra: int = 0,
    ) -> Float[Tensor, "*rows key"]:
        """The weights in fp32, or fp64 for fp64 scores, without a unit; the last `extra` columns are learned sinks.

        A key is hidden where `hidden` says so, or where its score is -inf or the lowest number of its dtype; that
        of bfloat16 also counts after a cast to fp32. The lowest float16, -65504, is an ordinary score in fp32: a
        mask made of it must become boolean before the cast. Raises SinkscopeError where the function's answer has
        another shape.
        """
        row = _prepared(scores, hidden, extra)
        return self.bare(row.scores, _visible(row, extra)).masked_fill(row.hidden, 0)

    def bare(self, scores: Float[Tensor, "*rows key"], visible: Float[Tensor, "*rows 1"]) -> Float[Tensor, "*rows key"]:
        """The weights of scores that are as the function may see them; those at hidden keys are the caller's to erase.

        `visible` is the number of keys that each row can see, at least 1. Nothing is kept of the scores.
        """
        count = {"visible": visible} if self.counts_keys else {}
        weights = self.function(scores, **count, **self.settings)
        if not isinstance(weights, Tensor) or weights.shape != scores.shape:
            got = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise SinkscopeError(
                f"{self.name} must return weights of its scores' shape {list(scores.shape)}, got {got}"
            )
        return weights.to(scores.dtype)

    def degenerate_rows(
        self,
        scores: Float[Tensor, "*rows key"],
        hidden: Bool[Tensor, "*#rows key"] | None = None,
        *,
        extra: int = 0,
    ) -> Bool[Tensor, "*rows"]:
        """The rows where the formula defines nothing and the caveat applies; a row that sees nothing is none."""
        row = _prepared(scores, hidden, extra)
        if self.degenerate is None:
            return torch.zeros_like(row.blind[..., 0])
        return self.degenerate(row.scores, **self.settings) & ~row.blind[..., 0]

    def supported(
        self, scores: Float[Tensor, "*rows key"], weights: Float[Tensor, "*rows key"]
    ) -> Bool[Tensor, "*rows key"]:
        """The keys to which the formula gives a weight, of scores as the function sees them and what it made of them.

        What it says of hidden keys is of no meaning.
        """
        if self.support is not None:
            return self.support(scores, weights, **self.settings)
        return torch.ones_like(weights, dtype=torch.bool) if self.exact_zeros is False else weights != 0

    def _parameter(self, name: str) -> Parameter:
        known = {each.name: each for each in self.parameters}
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)
        guess = f"did you mean {near[0]!r}? " if near else ""
        takes = "; ".join(f"{each.name}, {each.range}" for each in self.parameters) or "none"
        raise UnknownNameError(f"{self.name} has no parameter {name!r}: {guess}it takes {takes}")


def shown(value: Number) -> str:
    """A number as short as it can be without becoming another one."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def seen_or_zero(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """The scores with 0 at hidden keys, for sums in which -inf would not vanish by itself."""
    # A threshold takes a twentieth of the time of a masked fill.
    return torch.nn.functional.threshold(scores, -math.inf, 0.0)


def scored(
    scores: Float[Tensor, "*rows key"],
    weights: Float[Tensor, "*rows key"],
    **_: Number,
) -> Bool[Tensor, "*rows key"]:
    """The support of a formula that gives 0 to a score of 0 only, and to whole rows that it does not define."""
    return (scores != 0) & (weights != 0).any(-1, keepdim=True)


def positive(
    scores: Float[Tensor, "*rows key"],
    weights: Float[Tensor, "*rows key"],  # noqa: ARG001 - every support is asked with the weights
    **_: Number,
) -> Bool[Tensor, "*rows key"]:
    """The support of a formula that gives a weight to every positive score."""
    return scores > 0


def just_below(value: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype below a value: torch's threshold keeps only what is above its own."""
    return float(torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(-math.inf, dtype=dtype)))


@dataclass(frozen=True)
class _Rows:
    """Scores as a function may see them: -inf at hidden keys, zeros all along a row that sees nothing."""

    scores: Float[Tensor, "*rows key"]
    hidden: Bool[Tensor, "*rows key"]
    blind: Bool[Tensor, "*rows 1"]


def _prepared(scores: Float[Tensor, "*rows key"], hidden: Bool[Tensor, "*#rows key"] | None, extra: int) -> _Rows:
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    # fp32 masks may have been cast from bfloat16, whose lowest number is a little above that of fp32.
    lowest = max(torch.finfo(scores.dtype).min, torch.finfo(torch.bfloat16).min)
    unseen = scores <= lowest if hidden is None else (scores <= lowest) | hidden
    blind = unseen[..., : scores.shape[-1] - extra].all(-1, keepdim=True)
    if extra:
        unseen = unseen | blind
    # A row of nothing but -inf is NaN to every softmax, and no root is ever found: compute it on zeros, erase it later.
    fill = torch.zeros_like(blind, dtype=exact.dtype).masked_fill_(~blind, -math.inf)
    return _Rows(torch.where(unseen, fill, exact), unseen, blind)


def _visible(row: _Rows, extra: int) -> Float[Tensor, "*rows 1"]:
    real = row.hidden.shape[-1] - extra
    count = real - row.hidden[..., :real].sum(-1, keepdim=True, dtype=torch.int32)
    return count.clamp_min(1).to(row.scores.dtype)
