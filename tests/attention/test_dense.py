"""Blocks of any size give what whole maps in double precision give."""

import math
from dataclasses import dataclass, fields, replace

import pytest
import torch
from handmade import AS_GIVEN, asked, real, reduced, written
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import Call, dense
from sinkscope.attention.reductions import OF_KEYS, Population
from sinkscope.attention.swap import Swap
from sinkscope.normalizers import NORMALIZERS, Modifier, resolve

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-5, torch.float16: 2e-5}
OUTPUTS = TOLERANCES | {torch.bfloat16: 0.02, torch.float16: 2e-3}
"""The output alone is rounded to the model's dtype; norms are never taken in more than single precision."""


@dataclass(frozen=True, eq=False)
class Case:
    """A call, and what was made of it: who sees whom, and what is added to the scores."""

    call: Call
    visible: torch.Tensor
    added: torch.Tensor


def made(draw, dtype):
    """A call with everything a layer may bring."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    batch, groups, repeats = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    length, width, value_width = draw(st.integers(1, 40)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    heads = groups * repeats

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(shape, generator=generator)).to(dtype)

    form = draw(st.sampled_from(["none", "causal", "bool", "lowest", "infinite"]))
    over = draw(st.sampled_from([(1, 1), (batch, 1), (batch, heads)]))
    visible = torch.ones(1, 1, length, length, dtype=torch.bool)
    if form == "causal":
        visible = visible.tril()
    elif form != "none":
        # Some queries see nothing at all.
        visible = torch.rand(*over, length, length, generator=generator) < draw(st.sampled_from([0.05, 0.5]))
    bias = normal(1, heads, length, length) if draw(st.booleans()) else None
    added = torch.zeros(1, 1, length, length) if bias is None else bias
    mask = visible if form == "bool" else None
    if form in {"lowest", "infinite"}:
        lowest = torch.finfo(dtype).min if form == "lowest" else -torch.inf
        penalty = normal(*over, length, length)
        mask = penalty.masked_fill(~visible, lowest)
        added = added.double() + penalty.double()
    sink = {"none": None, "head": normal(1, heads, 1), "token": normal(batch, heads, length)}
    call = Call(
        query=normal(batch, heads, length, width, scale=2.0),
        key=normal(batch, groups, length, width, scale=2.0),
        value=normal(batch, groups, length, value_width),
        scale=draw(st.sampled_from([1.0, 0.3])),
        mask=mask,
        causal=form == "causal",
        softcap=draw(st.sampled_from([None, 2.0])),
        bias=bias,
        sink=sink[draw(st.sampled_from(sorted(sink)))],
    )
    return Case(call, visible, added)


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(sorted(TOLERANCES, key=str)))
    return made(draw, dtype)


def whole(case):
    """Weights [batch head query key] and the sink's [batch head query], all at once and in fp64."""
    call = case.call
    repeated = call.key.double().repeat_interleave(call.repeats, dim=1)
    scores = call.scale * call.query.double() @ repeated.transpose(2, 3)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = (scores + case.added.double()).masked_fill(~case.visible, -torch.inf)
    batch, heads, queries, _ = scores.shape
    logit = torch.tensor(-torch.inf) if call.sink is None else call.sink.double()
    with_sink = torch.cat([scores, logit.expand(batch, heads, queries)[..., None]], dim=-1)
    weights = with_sink.softmax(dim=-1).nan_to_num(0).masked_fill(~case.visible.any(-1, keepdim=True), 0)
    return weights[..., :-1], weights[..., -1]


def expected(case, question):
    """Every reduction by its definition."""
    call, (weights, sink) = case.call, whole(case)
    visible = case.visible.double().expand_as(weights)
    columns = torch.stack([*question.marked.values()], dim=-1)[:, None].double()
    row = weights.sum(-1)
    p = weights / row.masked_fill(row == 0, 1)[..., None]
    later = torch.ones(weights.shape[-2:]).tril(-1).double() * question.keep[:, None, :, None]
    values = call.value.double().repeat_interleave(call.repeats, dim=1)
    return {
        "keys": visible.sum(-1),
        "seen": visible @ columns,
        "mass": weights @ columns,
        "absolute_mass": weights @ columns,
        "row_mass": row,
        "absolute_row": row,
        "entropy": -torch.xlogy(p, p).sum(-1),
        "squares": weights.square().sum(-1),
        "zeros": ((weights == 0) & (visible > 0)).double().sum(-1),
        "received": (weights * later).sum(2),
        "receivers": (visible * later).sum(2),
        "value_norm": values.norm(dim=-1),
        "output_norm": (weights @ values).norm(dim=-1),
        "output_largest": (weights @ values).abs().amax(dim=-1),
    } | ({} if call.sink is None else {"sink_mass": sink})


@settings(deadline=None, max_examples=40)
@given(case=cases(), entries=st.sampled_from([1, 50, 400, dense.BLOCK_ENTRIES]), padded=st.integers(0, 3))
def test_blocks_of_any_size_give_what_whole_maps_give(case, entries, padded):
    call, (weights, _) = case.call, whole(case)
    dtype, batch, length = call.query.dtype, call.query.shape[0], call.length
    output = dense.attend(call, entries=entries)
    plain = weights @ call.value.double().repeat_interleave(call.repeats, dim=1)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), plain.transpose(1, 2), atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    question = asked(torch.arange(length).expand(batch, length) < max(1, length - padded))
    found = dense.reduce(call, question, output, entries=entries)
    wanted = expected(case, question)
    assert (found.sink_mass is None) == (call.sink is None)
    for name, plain in wanted.items():
        tolerance = max(OUTPUTS[dtype], 1e-6) if name.startswith(("value", "output")) else TOLERANCES[dtype] * 2
        seen = getattr(found, name).double().expand(plain.shape)
        torch.testing.assert_close(seen, plain, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("length", [1, 7, 40])
@pytest.mark.parametrize("entries", [1, 300, 5000, dense.BLOCK_ENTRIES])
def test_a_block_is_as_large_as_it_may_be_and_all_of_them_are_the_call(length, entries):
    call = written(torch.zeros(2, 3, length, length))
    sizes = [part.weighed.weights.shape[2] for part in dense.blocks(call, dense.PLAIN, entries)]
    starts = [part.start for part in dense.blocks(call, dense.PLAIN, entries)]
    assert starts == [sum(sizes[:index]) for index in range(len(sizes))]
    assert sum(sizes) == length
    row = 2 * 3 * length
    assert all(size == 1 or size * row <= entries for size in sizes)
    assert len(sizes) == 1 or (sizes[0] + 1) * row > entries


def test_a_query_that_sees_nothing_attends_to_nothing():
    visible = torch.tensor([[[[False, False, False], [True, True, False], [False, False, False]]]])
    found = reduced(torch.ones(1, 1, 3, 3), visible=visible, sink=torch.ones(1, 1, 1))
    assert found.keys.flatten().tolist() == [0, 2, 0]
    for reduction in (found.row_mass, found.absolute_row, found.entropy, found.squares, found.sink_mass):
        assert reduction[0, 0, [0, 2]].tolist() == [0, 0]
    assert found.counted().flatten().tolist() == [False, True, False]
    assert dense.attend(written(torch.ones(1, 1, 3, 3), visible=visible), Swap(AS_GIVEN))[0, [0, 2]].eq(0).all()


def test_only_later_queries_give_a_key_mass_and_padding_gives_none():
    weights = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
    keep = torch.tensor([[True, True, True, False]])
    found = reduced(weights, asked(keep))
    assert found.received.flatten().tolist() == [5.0 + 9.0, 10.0, 0.0, 0.0]
    assert found.receivers.flatten().tolist() == [2, 1, 0, 0]


def test_padding_queries_may_hold_anything():
    weights = torch.rand(1, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    weights[:, :, 3:] = torch.nan
    found = reduced(weights, asked(torch.arange(5)[None] < 3))
    alone = reduced(weights[:, :, :3, :3])
    torch.testing.assert_close(found.received[..., :3], alone.received)
    assert torch.equal(found.receivers[..., :3], alone.receivers)


def test_signed_weights_are_summed_with_and_without_their_signs():
    weights = torch.tensor([[0.5, 0.0], [0.75, -0.25]])[None, None]
    found = reduced(weights, sink=torch.full((1, 1, 1), -0.5))
    assert found.mass[0, 0, 1].tolist() == [0.75, -0.25]
    assert found.absolute_mass[0, 0, 1].tolist() == [0.75, 0.25]
    assert float(found.row_mass[0, 0, 1]) == 0.5
    assert float(found.absolute_row[0, 0, 1]) == 1.0
    assert float(found.sink_mass[0, 0, 1]) == -0.5


def test_what_was_not_asked_for_is_not_there():
    found = reduced(torch.ones(1, 1, 2, 2), asked(real(1, 2), needs=frozenset({"zeros"})))
    assert found.zeros is not None
    for name in ("entropy", "squares", "received", "receivers", "value_norm", "output_norm"):
        assert getattr(found, name) is None


@pytest.mark.parametrize("magnitude", [1e4, -1e5])
def test_large_scores_stay_finite(magnitude):
    scores = magnitude * torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    found = dense.reduce(written(scores), asked(real(1, 6)))
    assert found.entropy.isfinite().all()
    torch.testing.assert_close(found.row_mass, torch.ones(1, 2, 6))


def mirrored(positions, length=150):
    """These positions in the first window, and in the second as far from the end."""
    at = torch.tensor(positions)
    return torch.stack([at, (length - 1 - at).flip(0)])


def chosen(values, at):
    """What stands at each window's positions along the third axis."""
    batch = torch.arange(len(at))[:, None]
    return values.expand(len(at), *values.shape[1:]).movedim(2, 1)[batch, at].movedim(1, 2)


def sample_call(kind, *, batch=2, length=150, generator=None):
    """A call of 150 tokens: a block has 64 queries at most."""
    generator = generator or torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    heads, groups = 4, 2
    call = Call(
        2 * normal(batch, heads, length, 8), normal(batch, groups, length, 8), normal(batch, groups, length, 5), 0.6
    )
    seen = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    keep = real(batch, length)
    if kind in {"left padded", "right padded"}:
        real_tokens = torch.arange(length)[None] < torch.tensor([[length], [length - 70]])
        keep = real_tokens.flip(1) if kind == "left padded" else real_tokens
        return replace(call, mask=seen & keep[:, None, None], first=(~keep).long().cumprod(1).sum(1)), keep
    made = {
        "causal": replace(call, causal=True),
        "windowed": replace(call, mask=seen.triu(-20)),
        "lowest": replace(call, mask=torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)),
        "sink": replace(call, causal=True, sink=normal(1, heads, 1)),
        "sink per token": replace(call, causal=True, sink=normal(batch, heads, length)),
        "biased": replace(call, causal=True, bias=normal(1, heads, length, length), softcap=3.0),
        "mask per head": replace(call, mask=torch.rand(batch, heads, length, length, generator=generator) > 0.6),
        "everything": call,
        "blind": replace(call, mask=torch.rand(1, 1, length, length, generator=generator) > 0.995),
        "patchy": replace(call, mask=seen & (torch.arange(length) % 3 > 0)),
    }
    return made[kind], keep


KINDS = ["causal", "windowed", "left padded", "right padded", "lowest", "sink", "sink per token", "biased"]
KINDS += ["mask per head", "everything", "blind", "patchy"]
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def same(found, wanted, name):
    torch.testing.assert_close(
        found, wanted, atol=1e-5, rtol=1e-5, check_dtype=False, msg=lambda text: f"{name}: {text}"
    )


def naive(call, swap):
    """Weights and scores of the whole map by the normalizer's public face, head by head where not all are swapped."""
    repeated = call.key.repeat_interleave(call.repeats, dim=1)
    scores = call.scale * call.query @ repeated.transpose(2, 3)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores + (0 if call.bias is None else call.bias)
    visible = call.visible().expand(scores.shape)
    if call.mask is not None and call.mask.dtype != torch.bool:
        scores = scores + call.mask
    scores = scores.masked_fill(~visible, -torch.inf)
    changed = scores if swap.modifier is None else swap.modifier.apply(scores, visible, call.first)

    def weights(card, scores):
        if call.sink is None:
            return card.weigh(scores)
        logit = call.sink[..., None].expand(*scores.shape[:3], 1)
        return card.weigh(torch.cat([scores, logit], -1), extra=1)[..., :-1]

    found, plain = weights(swap.normalizer, changed), weights(NORMALIZERS["softmax"], scores)
    if swap.heads is not None:
        kept = [head for head in range(scores.shape[1]) if head not in swap.heads]
        found[:, kept] = plain[:, kept]
    return found


@of_every_kind
@pytest.mark.parametrize("name", ["softmax", "sa_softmax"])
def test_some_queries_have_the_record_that_they_have_among_all(kind, name):
    call, keep = sample_call(kind)
    swap, asks, weights = Swap(NORMALIZERS[name]), asked(keep), naive(call, Swap(NORMALIZERS[name]))
    output = dense.attend(call, swap)
    everything = dense.reduce(call, asks, output, swap)
    for positions in ([0], [149], [3, 4, 70, 71, 90, 148], list(range(1, 150, 9)), list(range(150))):
        at = mirrored(positions)
        found = dense.reduce(call, replace(asks, positions=at), output, swap)
        assert (found.sink_mass is None) == (call.sink is None)
        for each in fields(found):
            part, among_all = getattr(found, each.name), getattr(everything, each.name)
            if isinstance(part, torch.Tensor) and each.name not in OF_KEYS:
                same(part, chosen(among_all, at), each.name)
        later = (torch.arange(150) < at[..., None])[:, None] & keep.gather(1, at)[:, None, :, None]
        same(found.received, (chosen(weights, at) * later).sum(2), "received")
        seen = (call.at(at).visible() & later).sum(2)
        same(found.receivers, seen.expand(found.receivers.shape), "receivers")
        same(found.value_norm, everything.value_norm, "value_norm")


@pytest.mark.parametrize("kind", ["causal", "right padded"])
def test_all_queries_are_attended_to_when_some_are_asked_about(kind):
    call, keep = sample_call(kind)
    swap, at = Swap(NORMALIZERS["softpick"]), mirrored([1, 66, 149])
    output, found = dense.attend_and_reduce(call, swap, replace(asked(keep), positions=at))
    plain, everything = dense.attend_and_reduce(call, swap, asked(keep))
    same(output, plain, "output")
    same(found.mass, chosen(everything.mass, at), "mass")
    same(found.output_norm, chosen(everything.output_norm, at), "output_norm")


@of_every_kind
@pytest.mark.parametrize("heads", [None, frozenset({1, 3})], ids=["all heads", "some heads"])
@pytest.mark.parametrize("modifier", [None, Modifier(window=9, keep_sinks=True)], ids=["plain", "streaming"])
def test_what_all_rows_see_is_known_where_some_are_reduced(kind, heads, modifier):
    call, keep = sample_call(kind)
    swap, asks = Swap(NORMALIZERS["softmax"], modifier, heads), asked(keep)
    everything = dense.reduce(call, asks, swap=swap)
    found = dense.reduce(call, replace(asks, positions=mirrored([5, 80])), swap=swap).population
    wanted = Population.of(asks, everything.keys, everything.seen)
    seeing = everything.counted()[..., None] & (everything.seen > 0)
    same(found.rows.expand_as(wanted.rows), everything.counted().sum(-1), "rows")
    same(found.seers.expand_as(wanted.seers), seeing.sum(2), "seers")
    parts = (everything.seen / everything.keys.clamp(min=1)[..., None]).masked_fill(~seeing, 0)
    same(found.frequency.expand_as(wanted.frequency), parts.sum(2), "frequency")
    assert (found.widest, found.full) == (wanted.widest, wanted.full)


@of_every_kind
@pytest.mark.parametrize("heads", [None, frozenset({1, 3})], ids=["all heads", "some heads"])
@pytest.mark.parametrize(
    "modifier",
    [
        None,
        Modifier(sink_bias=2.0, alibi=True),
        Modifier(window=9, keep_sinks=True),
        Modifier(window=5, sink_bias=-math.inf),
    ],
    ids=["plain", "biased", "streaming", "windowed"],
)
def test_a_block_hides_and_swaps_as_the_whole_map_does(kind, heads, modifier):
    call, keep = sample_call(kind, length=100)
    for name in ("softpick", "polynomial", "entmax", "ssmax"):
        swap = Swap(NORMALIZERS[name], modifier, heads)
        weights = naive(call, swap)
        output, found = dense.attend_and_reduce(call, swap, asked(keep))
        values = call.value.repeat_interleave(call.repeats, dim=1)
        finite = weights.abs().sum(-1) < 100
        same(output.transpose(1, 2)[finite], (weights @ values)[finite], name)
        same(found.row_mass[finite], weights.sum(-1)[finite], name)
        seen = call.visible().expand(weights.shape)
        if modifier is not None:
            seen = (
                modifier.apply(torch.zeros(weights.shape).masked_fill(~seen, -torch.inf), seen, call.first) > -torch.inf
            )
            plain = [head for head in range(4) if heads is not None and head not in heads]
            seen[:, plain] = call.visible().expand(weights.shape)[:, plain]
        same(found.keys.expand(seen.shape[:3]), seen.sum(-1), name)
        same(found.zeros, ((weights == 0) & seen).sum(-1), name)


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("magnitude", [1.0, 1e4, -1e5])
def test_every_normalizer_weighs_a_block_as_it_weighs_a_row(name, magnitude):
    scores = magnitude * torch.rand(1, 2, 200, 200, generator=torch.Generator().manual_seed(0))
    for visible in (None, torch.ones(1, 1, 200, 200, dtype=torch.bool).tril(-1)):
        call = written(scores, visible=visible)
        weights = NORMALIZERS[name].weigh(scores, ~call.visible())
        for each in dense.blocks(call, Swap(NORMALIZERS[name])):
            found = each.weighed.weights
            queries, keys = found.shape[-2:]
            wanted = weights[..., each.start : each.start + queries, each.low : each.low + keys]
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-6)


def test_no_key_is_computed_that_no_query_of_its_block_sees():
    call, _ = sample_call("causal")
    at = torch.arange(0, 150, 10).expand(2, -1)
    shapes = [each.weighed.weights.shape[2:] for each in dense.blocks(call.at(at), dense.PLAIN, 2 * 4 * 150)]
    assert shapes == [(1, 10 * index + 1) for index in range(15)]
    windowed, _ = sample_call("windowed")
    assert [each.weighed.weights.shape[-1] for each in dense.blocks(windowed, dense.PLAIN, 1)] == [
        min(query, 20) + 1 for query in range(150)
    ]


@pytest.mark.parametrize("name", ["softmax", "softpick", "entmax", "sa_softmax"])
@pytest.mark.parametrize("kind", ["causal", "blind", "sink", "biased"])
def test_gradients_pass_through_blocks_as_through_the_whole_map(name, kind):
    call, keep = sample_call(kind, length=70)
    swap = Swap(NORMALIZERS[name], heads=frozenset({0, 3}))
    leaves = [each.clone().requires_grad_() for each in (call.query, call.key, call.value)]
    call = replace(call, query=leaves[0], key=leaves[1], value=leaves[2])
    output, _ = dense.attend_and_reduce(call, swap, asked(keep))
    plain = naive(call, swap) @ call.value.repeat_interleave(2, dim=1)
    direction = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((output.transpose(1, 2) * direction).sum(), leaves)
    wanted = torch.autograd.grad((plain * direction).sum(), leaves)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def test_a_function_from_outside_may_return_its_scores_or_one_number_for_all():
    call, keep = sample_call("causal")
    for function in (lambda scores: scores, lambda scores: torch.ones(()).expand(scores.shape)):
        found = dense.attend_and_reduce(call, Swap(resolve(function)), asked(keep))[1]
        plain = dense.reduce(call, asked(keep))
        same(found.lse, plain.lse, "lse")
        assert found.row_mass.isfinite().all()
    same(found.row_mass, plain.keys.expand(found.row_mass.shape), "row_mass")
