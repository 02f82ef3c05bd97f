"""The normalizers, from scores to weights; write a function and its card in a family, and list the card here."""

from collections.abc import Callable

from torch import Tensor

from sinkscope.catalog import Catalog
from sinkscope.errors import SinkscopeError
from sinkscope.normalizers.adhoc import INVSQUARE, POLY2, POLYAKSUM, SA_SIGMOID, SOFTPICK_TAU
from sinkscope.normalizers.base import Normalizer, Parameter
from sinkscope.normalizers.entmax import ENTMAX, SPARSEMAX
from sinkscope.normalizers.exponential import (
    P_SOFTMAX,
    SINK_LOGIT,
    SOFTMAX,
    SOFTMAX1,
    SOFTMAX_N,
    SSMAX,
    TEMPERATURE,
)
from sinkscope.normalizers.modifiers import Modifier, initial_keys
from sinkscope.normalizers.outside import adopted, imported
from sinkscope.normalizers.pointwise import ELU1, POLYNOMIAL, SIGMOID
from sinkscope.normalizers.rectified import RECTIFIED, RELU, RELU2, SOFTPICK
from sinkscope.normalizers.self_adjusting import SA_SOFTMAX, SA_SOFTMAX_NORMALISED
from sinkscope.normalizers.sparse import CLIPPED, THRESHOLD, THRESHOLD_RENORMALISED, TOPK

__all__ = ["NORMALIZERS", "Modifier", "Normalizer", "Parameter", "initial_keys", "resolve"]

NORMALIZERS: Catalog[Normalizer] = Catalog(
    "normalizer",
    [
        SOFTMAX,
        SOFTMAX_N,
        SOFTMAX1,
        SINK_LOGIT,
        TEMPERATURE,
        SSMAX,
        P_SOFTMAX,
        TOPK,
        THRESHOLD,
        THRESHOLD_RENORMALISED,
        CLIPPED,
        SPARSEMAX,
        ENTMAX,
        SOFTPICK,
        RECTIFIED,
        RELU,
        RELU2,
        SIGMOID,
        ELU1,
        POLYNOMIAL,
        SA_SOFTMAX,
        SA_SOFTMAX_NORMALISED,
        SOFTPICK_TAU,
        SA_SIGMOID,
        POLYAKSUM,
        INVSQUARE,
        POLY2,
    ],
)


def resolve(spec: str | Normalizer | Callable[..., Tensor]) -> Normalizer:
    """The card that is meant: a card itself, a bare function, `name[:key=value,...]` or `module:function`.

    A name of the catalog wins over a module of that name, and what follows its colon are settings. Raises
    UnknownNameError for unknown names and parameters, SinkscopeError for values out of range, each with the remedy.
    """
    if isinstance(spec, Normalizer):
        return spec
    if not isinstance(spec, str):
        return adopted(spec, getattr(spec, "__name__", type(spec).__name__))
    name, colon, rest = spec.partition(":")
    if colon and name not in NORMALIZERS and "=" not in rest:
        return imported(spec)
    card = NORMALIZERS[name]
    pairs = [_setting(card, pair) for pair in rest.split(",")] if colon else []
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise SinkscopeError(f"{spec}: a setting is given twice; give each once")
    try:
        return card.bind(**settings)
    except ValueError as error:
        raise SinkscopeError(f"{spec}: {error}") from None


def _setting(card: Normalizer, pair: str) -> tuple[str, float]:
    key, _, value = pair.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError:
        takes = "; ".join(f"{each.name}, {each.range}" for each in card.parameters) or "no parameters"
        raise SinkscopeError(f"{card.name}:{pair} is not of the form key=number; {card.name} takes {takes}") from None
