"""Before a model is measured, it is shown that what would be measured is what the model computes."""

import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope.attention import Call, Site, dense
from sinkscope.attention.given import Given
from sinkscope.attention.swap import PLAIN, Swap
from sinkscope.errors import NothingObservedError, UnsupportedModelError
from sinkscope.forward import embedding, evaluating, logits, prefill
from sinkscope.inside import probed_inside
from sinkscope.model_state import restored
from sinkscope.normalizers import NORMALIZERS
from sinkscope.predictions import can_be_chunked
from sinkscope.probe import SERVED, Handler, Probe, implementation, probed, refuse_compiled, served

TOKENS = 17
"""A prime, so that nothing that is blocked or grouped can fit by chance."""

ANOTHER = Swap(NORMALIZERS["softmax1"])
"""A swap that has to make a difference, and to which a constant added to all scores makes one."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest accepted difference, relative to the largest value: rounding in the model's own dtype."""

NOT_CAUSAL = "are not causal: a token attends to later ones (a decoder of this kind may want is_decoder=True)"
"""What is wrong with weights on later keys: half of them would be called sinks, and the loss no perplexity."""

FAULTS = (ArithmeticError, AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError)
"""What a model's own code raises where it is wrong; running out of memory is none of these."""

Seam = Callable[[PreTrainedModel, Handler], AbstractContextManager[Probe]]
"""Where a model's attention calls can be seen and replaced: `probed`, or `probed_inside` for some modules."""


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
    native = _native(model, ids)
    switched = _switched(model, window)
    with served(model):
        if switched is not None:
            native = logits(model, ids)
        found, observed = _seen(model, ids)
        if not found.sites:
            name, reason = next(iter(found.left_out.items()))
            raise _unsupported(model, f"none of its attention is from token to token ({name}: {reason})")
        if not torch.equal(native, observed):
            raise _unsupported(model, "its logits change from one forward to the next, or under observation")
        if found.inside:
            _look_inside(model, ids, native, found)
        replaced = _swapped(model, ids, PLAIN, found.seam)
        if found.inside:
            _swap_inside(model, ids, replaced, found)
        _check_neighbours(model, ids, native, found)
    if switched is not None:
        found.switched, found.switch_delta = switched
    found.chunked = can_be_chunked(model, ids, native)
    found.delta = difference(replaced, native)
    if not found.delta <= TOLERANCES[native.dtype] and not _is_routing(model, ids, native, found):
        raise _unsupported(model, f"its layers do more than softmax attention (relative difference {found.delta:.1e})")
    return found


def _switched(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> tuple[tuple[str, str], float] | None:
    """The implementation of the model as handed over and the one that is observed, and how far their logits differ.

    None where they are the same. Raises UnsupportedModelError where they give other logits: what would be measured is
    then not what the caller's model computes.
    """
    own = implementation(model)
    with served(model):
        other = implementation(model)
        if own == other:
            return None
        observed = logits(model, ids)
    native = _native(model, ids)
    delta = difference(observed, native)
    if not delta <= TOLERANCES[native.dtype]:
        raise _unsupported(
            model,
            f"its attention implementation {own!r} gives other logits than {other!r}, under which it would be observed "
            f"(relative difference {delta:.1e}): choose one of {' and '.join(SERVED)} with set_attn_implementation",
        )
    return (own, other), delta


def _check_neighbours(
    model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor, found: Handshake
) -> None:
    """Note whether neighbours in a batch change a window, and refuse a model in which a later token changes it.

    In half precision the latter is left to the weights: a router of experts near a tie turns rounding into a
    difference.
    """
    other = ids.clone()
    other[:, -1] = ids[:, 0] if bool(ids[0, -1] != ids[0, 0]) else (ids[:, -1] + 1) % embedding(model).shape[0]
    together = logits(model, torch.cat([ids, other, ids.flip(-1)]))
    found.alone = not difference(together[:1], native) <= TOLERANCES[native.dtype]
    if native.dtype not in (torch.float32, torch.float64) or ids.shape[1] < 2:
        return
    changed = logits(model, other) if found.alone else together[1:2]
    if not difference(changed[:, :-1], native[:, :-1]) <= TOLERANCES[native.dtype]:
        raise _unsupported(model, "its logits at a token depend on later tokens")


def _native(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position token"]:
    """The logits without us; UnsupportedModelError, naming the module, where the model's own code fails."""
    modules = set(model.modules())
    try:
        with restored(model):
            native = prefill(model, ids)
            exchanged = modules != set(model.modules())
    except FAULTS as error:
        names = {id(module): name for name, module in model.named_modules() if name}
        frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        where = [names[id(each)] for each in frames if id(each) in names]
        fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise _unsupported(model, f"its own code fails in {where[-1] if where else 'its forward'} ({fault})") from error
    if exchanged:
        raise _unsupported(model, "its forward exchanges some of its modules for others")
    return native


def _is_routing(model: PreTrainedModel, ids: Int[Tensor, "batch position"], native: Tensor, found: Handshake) -> bool:
    """Whether only rounding in half precision tells the logits apart: each layer's output is the one we give.

    A router of experts near a tie makes a large difference of the last bit of its input.
    """
    if native.dtype not in (torch.float16, torch.bfloat16):
        return False
    far = []

    def compare(_: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        output = own()
        if not_of_tokens(call, ids.shape[1]) is None:
            far.append(difference(dense.attend(call), output))
        return output

    with served(model), found.seam(model, compare):
        logits(model, ids)
    return all(each <= TOLERANCES[native.dtype] for each in far)


def _seen(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> tuple[Handshake, Tensor]:
    """The calls that a forward makes, where they can be seen, and its logits."""
    found = Handshake()

    def see(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        reason = not_of_tokens(call, ids.shape[1])
        if reason is None:
            found.sites.append(site)
            found.shows_values = found.shows_values and not isinstance(call, Given)
            if not isinstance(call, Given) and sees_later(call):
                raise _unsupported(model, f"the weights of {site.name} {NOT_CAUSAL}")
        else:
            found.left_out[site.name] = reason
        return own()

    try:
        with probed(model, see):
            return found, logits(model, ids)
    except NothingObservedError:
        found.inside = True
    try:
        with probed_inside(model, see) as probe:
            observed = logits(model, ids)
    except NothingObservedError:
        reason = "none of its layers uses transformers' attention interface, softmax, or torch's fused attention"
        raise _unsupported(model, reason) from None
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
    """Refuse a model unless what its layers weigh by is, beyond doubt, its causal attention.

    Each module weighs once in a forward, no weight is on the future, and weights are those that the model itself
    returns: [batch, head, query, key], in [0, 1], with rows that sum to 1 at most.
    """
    for name, calls in Counter(site.name for site in found.sites).items():
        if calls > 1 or name in found.left_out:
            raise _unsupported(model, f"{name} weighs more than once, and which of it is attention cannot be told")
    # Two rows show whether heads and batch are told apart.
    both, seen = torch.cat([ids, ids.flip(-1)]), []

    def check(site: Site, call: Call, own: Callable[[], Tensor]) -> Tensor:
        output = own()
        weights = output.transpose(1, 2) if isinstance(call, Given) else PLAIN.weigh(call).weights
        if fault := _fault(weights, TOLERANCES[native.dtype]):
            raise _unsupported(model, f"the weights of {site.name} {fault}")
        seen.append(weights)
        return output

    with torch.no_grad(), evaluating(model), restored(model), found.seam(model, check):
        returned = model(input_ids=both.to(native.device), use_cache=False, output_attentions=not found.shows_values)
    if found.shows_values:
        return
    if not difference(returned.logits[:1], native) <= TOLERANCES[native.dtype]:
        raise _unsupported(model, "its logits change when it is asked for its attention weights")
    theirs = [each for each in returned.get("attentions") or () if each is not None]
    if len(theirs) != len(seen):
        raise _unsupported(model, f"{len(seen)} of its layers call softmax and {len(theirs)} return their weights")
    for site, ours, own in zip(found.sites, seen, theirs, strict=True):
        if own.shape != ours.shape or not difference(ours, own) <= TOLERANCES[native.dtype]:
            raise _unsupported(model, f"{site.name} returns other weights than its softmax gives")


def _swap_inside(model: PreTrainedModel, ids: Int[Tensor, "batch position"], plain: Tensor, found: Handshake) -> None:
    """Refuse a model unless other weights give other logits, and note whether its scores are anchored."""
    moved = _swapped(model, ids, ANOTHER, found.seam)
    if torch.equal(plain, moved):
        raise _unsupported(model, "its logits do not depend on the weights that were seen")
    some = max(1, ids.shape[1] // 2)
    shorter = _swapped(model, ids[:, :some], ANOTHER, found.seam)
    found.anchored = difference(shorter, moved[:, :some]) <= TOLERANCES[plain.dtype]


def sees_later(call: Call) -> bool:
    """Whether a call from token to token puts any weight on a later key."""
    return bool(PLAIN.weigh(call).weights.triu(1).any())


def _fault(weights: Float[Tensor, "batch head query key"], tolerance: float) -> str | None:
    """What is wrong with weights that should be those of causal attention, or None."""
    if bool(weights.triu(1).any()):
        return NOT_CAUSAL
    if not bool((weights >= 0).all() & (weights <= 1 + tolerance).all() & (weights.sum(-1) <= 1 + tolerance).all()):
        return "are not in [0, 1], or add up to more than 1"
    return None


def not_of_tokens(call: Call, tokens: int) -> str | None:
    """Why a call is not attention from each token to the tokens, or None if it is."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    return None if queries == keys == tokens else f"{queries} queries on {keys} keys for {tokens} tokens"


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


def difference(ours: Float[Tensor, "*shape"], theirs: Float[Tensor, "*shape"]) -> float:
    """max|ours - theirs| ÷ max|theirs|; NaN where either has one."""
    largest = theirs.float().abs().max()
    return float((ours.float() - theirs.float()).abs().max() / largest.clamp(min=1e-30))


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    name = f"{type(model).__name__} ({model.config.model_type})"
    return UnsupportedModelError(f"{name} cannot be measured: {reason}")
