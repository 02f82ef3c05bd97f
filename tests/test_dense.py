"""Blocks of any size give what whole maps in double precision give."""

from dataclasses import dataclass

import pytest
import torch
from handmade import AS_GIVEN, asked, real, reduced, written
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import Call, dense
from sinkscope.attention.swap import Swap

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
    found = dense.reduce(call, question, output, entries)
    wanted = expected(case, question)
    assert (found.sink_mass is None) == (call.sink is None)
    for name, plain in wanted.items():
        tolerance = max(OUTPUTS[dtype], 1e-6) if name.endswith("norm") else TOLERANCES[dtype] * 2
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
