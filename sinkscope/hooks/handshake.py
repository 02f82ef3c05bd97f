"""Before a model is measured, it is shown that what would be measured is what the model computes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Site, dense
from sinkscope.attention.given import Given
from sinkscope.attention.swap import PLAIN, Swap
from sinkscope.errors import NothingObservedError
from sinkscope.hooks.forward import evaluating, logits
from sinkscope.hooks.handed_over import (
    NOT_CAUSAL,
    changed_by_neighbours,
    native_logits,
    sees_later,
    switched,
    unsupported,
)
from sinkscope.hooks.inside import probed_inside
from sinkscope.hooks.model_state import restored
from sinkscope.hooks.outside import Outside, Seam, not_of_tokens
from sinkscope.hooks.predictions import can_be_chunked
from sinkscope.hooks.probe import probed, refuse_compiled, served
from sinkscope.hooks.rounding import is_rounding
from sinkscope.hooks.tolerances import TOLERANCES, difference
from sinkscope.normalizers import Normalizer

TOKENS = 17
"""A prime, so that no block or group size divides it."""

NOTHING = Swap(
    Normalizer(
        name="nothing", function=torch.zeros_like, summary="no weight", formula="w = 0", source="here", published=False
    )
)
"""A swap that has to make a difference, however large or even the scores are."""


@dataclass
class Handshake:
    """What a short forward showed: the token-to-token calls, the others by name, and the identity swap's delta."""

    delta: float = 0.0
    sites: list[Site] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    """Whether the model's head alone makes its logits, so that they need not exist all at once."""
    seam: Seam = probed
    """How the run opens its probes."""
    inside: bool = False
    """Whether the layers do not use transformers' attention interface, and are watched inside."""
    shows_values: bool = True
    """Whether the calls show the values that the weights are applied to."""
    anchored: bool = True
    """Whether a query's scores are the same in a longer text; if not, a constant is added that softmax cancels."""
    switched: tuple[str, str] | None = None
    """The implementation of the model as handed over and the one that is observed, where they are two."""
    switch_delta: float = 0.0
    """The largest difference between their logits, relative to the largest."""
    alone: bool = False
    """Whether a window's neighbours in a batch change it, so that windows have to run one at a time."""


def handshake(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Handshake:
    """Run up to TOKENS of the user's own tokens natively, observed, and with softmax replaced by our own.

    Natively means as the model was handed over. Where its attention implementation is none of those that can be
    observed, the whole window shows that the observed one gives the same logits, within rounding. Layers that do not
    use transformers' attention interface are looked into, and have more to show. Raises UnsupportedModelError, naming
    the class and the reason, unless token-to-token calls were seen, their weights are causal, observation left the
    logits bit-equal, and the replaced logits agree within TOLERANCES.
    """
    refuse_compiled(model)  # before a forward that might spend minutes on compiling
    window, ids = ids[:1], ids[:1, :TOKENS]
    native = native_logits(model, ids)
    other = switched(model, window)
    with served(model):
        if other is not None:
            native = logits(model, ids)
        found, observed = _seen(model, ids)
        if not found.sites:
            name, reason = next(iter(found.left_out.items()))
            raise unsupported(model, f"none of its attention is from token to token ({name}: {reason})")
        if not torch.equal(native, observed):
            raise unsupported(model, "its logits change from one forward to the next, or under observation")
        if found.inside:
            _look_inside(model, ids, native, found)
        replaced = _swapped(model, ids, PLAIN, found.seam)
        if found.inside:
            _swap_inside(model, ids, replaced, found)
    if other is not None:
        found.switched, found.switch_delta = other
    found.chunked = can_be_chunked(model, ids, native)
    found.delta = difference(replaced, native)
    if not found.delta <= TOLERANCES[native.dtype] and not is_rounding(
        model, ids, found.seam, native.dtype, found.delta
    ):
        raise unsupported(model, f"its layers do more than softmax attention (relative difference {found.delta:.1e})")
    with served(model):
        found.alone = changed_by_neighbours(model, ids, native)
    return found


def _seen(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> tuple[Handshake, Tensor]:
    """The calls that a forward makes, where they can be seen, and its logits."""
    found, outside = Handshake(), Outside(model, ids.shape[1])

    def see(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        reason = not_of_tokens(call, ids.shape[1])
        if reason is None:
            found.sites.append(site)
            found.shows_values = found.shows_values and not isinstance(call, Given)
            if not isinstance(call, Given) and sees_later(call):
                raise unsupported(model, f"the weights of {site.name} {NOT_CAUSAL}")
        else:
            found.left_out[site.name] = reason
        return outside.aside(own)

    try:
        with probed(model, see), outside.watched():
            observed = logits(model, ids)
        if reason := outside.missing(ids, probed):
            raise unsupported(model, reason)
    except NothingObservedError:
        found.inside, outside.found = True, {}
    else:
        return found, observed
    try:
        with probed_inside(model, see) as probe, outside.watched():
            observed = logits(model, ids)
        if reason := outside.missing(ids, probed_inside):
            raise unsupported(model, reason)
    except NothingObservedError:
        reason = "none of its layers uses transformers' attention interface, softmax, or torch's fused attention"
        raise unsupported(model, reason) from None
    found.left_out |= dict.fromkeys(sorted(probe.unread), "not of queries and keys")
    found.seam = partial(probed_inside, modules=frozenset(site.name for site in found.sites))
    return found, observed


def _swapped(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], swap: Swap, seam: Seam
) -> Float[Tensor, "batch position token"]:
    """The logits under a swap in every layer."""

    def replace(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        return own() if not_of_tokens(call, ids.shape[1]) else dense.attend(call, swap)

    with seam(model, replace):
        return logits(model, ids)


def _look_inside(model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor, found: Handshake) -> None:
    """Refuse a model unless the weights that were seen are those of its causal attention.

    Each module weighs once in a forward, no weight is on the future, and weights are those that the model itself
    returns: [batch, head, query, key], in [0, 1], with rows that sum to 1 at most.
    """
    for name, calls in Counter(site.name for site in found.sites).items():
        if calls > 1 or name in found.left_out:
            raise unsupported(model, f"{name} weighs more than once, and which of it is attention cannot be told")
    # Two rows show whether heads and batch are told apart.
    both, seen = torch.cat([ids, ids.flip(-1)]), []

    def check(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        output = own()
        weights = output.transpose(1, 2) if isinstance(call, Given) else PLAIN.weigh(call).weights
        if reason := _fault(weights, TOLERANCES[native.dtype]):
            raise unsupported(model, f"the weights of {site.name} {reason}")
        seen.append(weights)
        return output

    with torch.no_grad(), evaluating(model), restored(model), found.seam(model, check):
        returned = model(input_ids=both.to(native.device), use_cache=False, output_attentions=not found.shows_values)
    if found.shows_values:
        return
    if not difference(returned.logits[:1], native) <= TOLERANCES[native.dtype]:
        raise unsupported(model, "its logits change when it is asked for its attention weights")
    theirs = [each for each in returned.get("attentions") or () if each is not None]
    if len(theirs) != len(seen):
        raise unsupported(model, f"{len(seen)} of its layers call softmax and {len(theirs)} return their weights")
    for site, ours, own in zip(found.sites, seen, theirs, strict=True):
        if own.shape != ours.shape or not difference(ours, own) <= TOLERANCES[native.dtype]:
            raise unsupported(model, f"{site.name} returns other weights than its softmax gives")


def _swap_inside(model: PreTrainedModel, ids: Int[Tensor, "batch position"], plain: Tensor, found: Handshake) -> None:
    """Refuse a model unless other weights give other logits, and note whether its scores are anchored."""
    if torch.equal(plain, _swapped(model, ids, NOTHING, found.seam)):
        raise unsupported(model, "its logits do not depend on the weights that were seen")
    some = max(1, ids.shape[1] // 2)
    whole, part = (_scores(model, each, found.seam) for each in (ids, ids[:, :some]))
    allowed = TOLERANCES[plain.dtype]
    found.anchored = all(
        difference(short, long[..., :some, :some]) <= allowed for short, long in zip(part, whole, strict=True)
    )


def _scores(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], seam: Seam
) -> list[Float[Tensor, "batch head query key"]]:
    """Every layer's scores, -inf at hidden keys."""
    found = []

    def see(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        if not_of_tokens(call, ids.shape[1]) is None:
            found.append(call.scores())
        return own()

    with seam(model, see):
        logits(model, ids)
    return found


def _fault(weights: Float[Tensor, "batch head query key"], tolerance: float) -> str | None:
    """What is wrong with weights that should be those of causal attention, or None."""
    if bool(weights.triu(1).any()):
        return NOT_CAUSAL
    if not bool((weights >= 0).all() & (weights <= 1 + tolerance).all() & (weights.sum(-1) <= 1 + tolerance).all()):
        return "are not in [0, 1], or add up to more than 1"
    return None


def agreement(call: Call, output: Float[Tensor, "batch query head value_width"]) -> float:
    """How far a layer's own output is from the weights we reduce, on a few of its queries, relative to the largest.

    The short handshake cannot reach windows, top-k selections or chunks longer than itself. This can, at the price of
    four queries a call.
    """
    length = call.length
    found = []
    for start in sorted({length // 2, max(0, length - 2)}):
        stop = min(start + 2, length)
        found.append(difference(dense.attend(call.rows(start, stop)), output[:, start:stop]))
    return float(torch.tensor(found).max())  # unlike Python's max, it never loses a NaN
