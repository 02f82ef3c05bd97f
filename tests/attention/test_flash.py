"""The fast path gives what the dense path gives, or says why it will not."""

import dataclasses

import pytest
import torch
from handmade import asked, real
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.attention import OPTIONAL, Call, dense, flash
from sinkscope.attention.flash import blocks as flash_blocks
from sinkscope.attention.flash import kernel as flash_kernel
from sinkscope.attention.swap import Swap
from sinkscope.normalizers import NORMALIZERS, Modifier, resolve

DISGUISES = [card.name for card in NORMALIZERS.values() if card.form is not None]
SETTINGS = ["softmax_n:n=30", "sink_logit:s=-4", "temperature:t=0.3", "ssmax:s=1.2"]
RELATIVE = {"squares", "received"}
FEW = frozenset({"lse", "value_norm", "output_norm", "output_largest"})


def banded(length, spans, window):
    """The mask of a causal model: [batch 1 query key], true where a query may see a key."""
    query, key = torch.arange(length)[:, None], torch.arange(length)
    seen = (key <= query) & (query - key < window)
    return torch.stack([seen & (key >= start) & (key < stop) for start, stop in spans])[:, None]


def question(keep, needs=OPTIONAL):
    """Classes that overlap, one of them empty, and one of a few keys."""
    place = keep.long().cumsum(-1)
    marks = {"third": keep & (place % 3 == 0), "other": keep & (place > 1), "none": keep & (place < 0)}
    return asked(keep, needs=needs, initial=keep & (place <= 4), **marks)


@st.composite
def calls(draw, dtypes=(torch.float32, torch.bfloat16)):
    """A call that the fast path serves, and its tokens that count."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    dtype = draw(st.sampled_from(dtypes))
    batch, groups, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    length = draw(st.one_of(st.integers(1, 5), st.integers(60, 70), st.integers(1, 300)))
    width, value_width = draw(st.sampled_from([(4, 4), (3, 8), (8, 3)]))
    scale = draw(st.sampled_from([0.05, 1.0, 8.0]))

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    window = draw(st.one_of(st.just(length), st.integers(1, length)))
    spans = [(0, length)] * batch
    if draw(st.booleans()):
        starts = [draw(st.integers(0, length - 1)) for _ in range(batch)]
        spans = [(start, draw(st.integers(start + 1, length))) for start in starts]
    mask = banded(length, spans, window)
    plain = window == length and all(span == (0, length) for span in spans)
    form = draw(st.sampled_from(["bool", "lowest", "infinite", *(["none"] if plain else [])]))
    if form in {"lowest", "infinite"}:
        hidden = torch.finfo(dtype).min if form == "lowest" else -torch.inf
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, hidden)
    sink = draw(st.sampled_from([None, (1, groups * repeats, 1), (batch, groups * repeats, length)]))
    call = Call(
        query=normal(batch, groups * repeats, length, width),
        key=normal(batch, groups, length, width),
        value=normal(batch, groups, length, value_width),
        scale=scale,
        mask=None if form == "none" else mask,
        causal=form == "none",
        sink=None if sink is None else 3 * normal(*sink),
    )
    place = torch.arange(length)
    return call, torch.stack([(place >= start) & (place < stop) for start, stop in spans])


SPECS = st.sampled_from(DISGUISES + SETTINGS)
HEADS = st.one_of(st.none(), st.frozensets(st.integers(0, 5)))


def of_output(output):
    """The reductions of an output that a path has rounded to its own precision."""
    exact = output.double().transpose(1, 2)
    return {"output_norm": exact.norm(dim=-1), "output_largest": exact.abs().amax(dim=-1)}


def doubled(call):
    """The same call in double precision: hidden keys stay hidden."""
    parts = {name: getattr(call, name).double() for name in ("query", "key", "value")}
    sink = None if call.sink is None else call.sink.double()
    return dataclasses.replace(call, **parts, mask=call.visible(), causal=False, sink=sink)


def assert_equal_records(found, wanted, call, swap):
    """Within what fp32 can tell, which is less for larger scores."""
    scores = call.scores() * max(1.0, float(scale_of(call, swap).max()))
    largest = float(scores.masked_fill(~call.visible(), 0).abs().max())
    unit = 2e-5 * max(1.0, largest / 50)
    rows = {"keys", "seen", "receivers"}
    for field in dataclasses.fields(wanted):
        name, plain = field.name, getattr(wanted, field.name)
        if name == "question":
            continue
        ours = getattr(found, name)
        assert (ours is None) == (plain is None), name
        if plain is None:
            continue
        if name in rows:
            assert torch.equal(*torch.broadcast_tensors(ours.double(), plain.double())), name
            continue
        assert ours.shape == plain.shape, name
        atol = 1e-30 if name in RELATIVE else unit
        torch.testing.assert_close(
            ours.double(), plain.double(), rtol=unit, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def scale_of(call, swap):
    """By how much the normalizer scales scores at most."""
    scale, _ = swap.normalizer.form(torch.full((1, 1), float(call.length)), **swap.normalizer.settings)
    return torch.as_tensor(scale)


@settings(deadline=None, max_examples=80)
@given(drawn=calls(), spec=SPECS, heads=HEADS, entries=st.sampled_from([2000, None]))
def test_every_served_call_gives_the_record_of_the_dense_path(drawn, spec, heads, entries):
    call, keep = drawn
    swap = Swap(resolve(spec), heads=heads)
    asks = question(keep)
    assert flash.serves(call, swap) is None
    plain, exact = dense.attend_and_reduce(doubled(call), swap, asks)
    output, found = flash.attend_and_reduce(call, swap, asks, entries)
    tolerance = 0.02 if call.query.dtype == torch.bfloat16 else 1e-4 * max(1, call.scale)
    assert output.dtype == call.value.dtype
    torch.testing.assert_close(output.double(), plain, rtol=tolerance, atol=tolerance)
    exact = dataclasses.replace(exact, **of_output(output))
    assert_equal_records(found, exact, call, swap)
    assert not found.zeros.any()
    again = flash.reduce(call, asks, output, swap, entries)
    for field in dataclasses.fields(found)[1:]:
        one, other = getattr(found, field.name), getattr(again, field.name)
        assert one is other is None or torch.equal(one, other), field.name
    attended, lse = flash.attend(call, swap)
    torch.testing.assert_close(attended.double(), plain, rtol=tolerance, atol=tolerance)
    if swap.normalizer.name == "softmax":
        half = call.query.dtype == torch.bfloat16
        if call.sink is not None:
            lse = torch.logaddexp(lse, call.sink.to(lse.dtype)).masked_fill(lse == -torch.inf, -torch.inf)
        torch.testing.assert_close(lse, found.lse, rtol=1e-6, atol=2e-4 if half else 1e-5 * max(1, call.scale))


def simple(length=20, *, heads=2, dtype=torch.float32, **parts):
    """A causal call of random vectors."""
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(1, heads, length, 8, generator=generator).to(dtype) for _ in range(3))
    return dataclasses.replace(Call(query, key, value, 0.4, causal=True), **parts)


def hiding(*pairs, length=20):
    """Causality without some pairs of query and key."""
    mask = banded(length, [(0, length)], length)
    for query, key in pairs:
        mask[:, :, query, key] = False
    return mask


NOT_SERVED = {
    "not softmax with another scale, constant or sink": (simple(), Swap(resolve("sparsemax"))),
    "modified": (simple(), Swap(modifier=Modifier(window=3))),
    "soft-capped": (simple(softcap=2.0), flash.PLAIN),
    "position bias": (simple(bias=torch.zeros(1, 2, 20, 20)), flash.PLAIN),
    "dropout": (simple(dropout=0.1), flash.PLAIN),
    "double precision": (simple(dtype=torch.float64), flash.PLAIN),
    "gradients": (simple(query=torch.randn(1, 2, 20, 8, requires_grad=True)), flash.PLAIN),
    "1 queries on 20 keys": (simple(query=torch.randn(1, 2, 1, 8)), flash.PLAIN),
    "later keys": (simple(causal=False), flash.PLAIN),
    "every head": (simple(mask=hiding().expand(1, 2, 20, 20), causal=False), flash.PLAIN),
    "every key is hidden": (simple(mask=hiding() & False, causal=False), flash.PLAIN),
    "more than causality": (simple(mask=hiding((9, 4)), causal=False), flash.PLAIN),
}


@pytest.mark.parametrize("reason", NOT_SERVED)
def test_a_call_that_is_not_served_is_refused_with_the_reason(reason):
    call, swap = NOT_SERVED[reason]
    assert reason in flash.serves(call, swap)
    with pytest.raises(ValueError, match=reason):
        flash.attend(call, swap)
    with pytest.raises(ValueError, match=reason):
        flash.reduce(call, question(real(1, 20)), swap=swap)


@pytest.mark.parametrize("added", [-0.5, 1e-3])
def test_a_mask_that_changes_visible_scores_is_not_served(added):
    mask = torch.zeros(1, 1, 20, 20).masked_fill(~hiding(), -torch.inf)
    assert flash.serves(simple(mask=mask, causal=False)) is None
    mask = mask.clone()
    mask[..., 12, 3] = added
    assert "more than causality" in flash.serves(simple(mask=mask, causal=False))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_mask_with_one_entry_turned_is_served_only_as_what_it_is(data):
    length = data.draw(st.integers(1, 8))
    spans = [(start := data.draw(st.integers(0, length - 1)), data.draw(st.integers(start + 1, length)))]
    mask = banded(length, spans, data.draw(st.integers(1, length)))
    query, key = data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, length - 1))
    mask[:, :, query, key] ^= True
    call = simple(length, mask=mask, causal=False)
    if flash.serves(call) is None:
        found = flash.reduce(call, question(real(1, length)))
        assert torch.equal(found.keys, mask.sum(-1).float())
        assert torch.equal(found.row_mass > 0, mask.any(-1).expand(1, 2, length))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 3])
def test_without_a_change_the_output_is_that_of_sdpa_to_the_last_bit(dtype, groups):
    query = torch.randn(2, 3, 50, 16).to(dtype)
    key, value = (torch.randn(2, groups, 50, 16).to(dtype) for _ in range(2))
    output, _ = flash.attend(Call(query, key, value, 0.25, causal=True))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.25, enable_gqa=True
    )
    assert torch.equal(output, theirs.transpose(1, 2))


@settings(deadline=None, max_examples=40)
@given(drawn=calls((torch.float32,)), spec=SPECS, heads=HEADS)
def test_a_few_keys_are_looked_up_without_a_look_at_all_weights(drawn, spec, heads):
    call, keep = drawn
    place = keep.long().cumsum(-1)
    swap = Swap(resolve(spec), heads=heads)
    asks = asked(keep, needs=FEW, initial=keep & (place <= 4), last=keep & (place == place.amax(-1, keepdim=True)))
    plain, exact = dense.attend_and_reduce(doubled(call), swap, asks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash, "_reduced", None)
        output, found = flash.attend_and_reduce(call, swap, asks)
    torch.testing.assert_close(output.double(), plain, rtol=1e-3, atol=1e-3)
    exact = dataclasses.replace(exact, **of_output(output))
    assert_equal_records(found, exact, call, swap)


def test_many_keys_are_not_looked_up_one_by_one():
    call = simple(40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash, "_looked_up", None)
        found = flash.attend_and_reduce(call, flash.PLAIN, question(real(1, 40), FEW))[1]
    torch.testing.assert_close(found.mass, dense.reduce(call, question(real(1, 40), FEW)).mass)


def test_padding_queries_may_hold_anything():
    keep = (torch.arange(20) < 15)[None]
    call = simple(mask=banded(20, [(0, 15)], 20), causal=False)
    asks = question(keep)
    plain = flash.reduce(call, asks)
    call.query[:, :, 15:] = torch.nan
    found = flash.reduce(call, asks)
    assert torch.equal(found.received, plain.received)
    assert torch.equal(found.entropy[..., :15], plain.entropy[..., :15])


def test_a_query_that_sees_nothing_attends_to_nothing():
    call = simple(mask=banded(20, [(6, 20)], 20), causal=False, sink=torch.ones(1, 2, 1))
    output, lse = flash.attend(call)
    found = flash.reduce(call, question(torch.arange(20)[None] >= 6))
    assert output[:, :6].abs().max() == 0
    assert bool((lse[..., :6] == -torch.inf).all())
    for name in ("keys", "seen", "mass", "row_mass", "sink_mass", "entropy", "squares", "zeros"):
        assert getattr(found, name)[:, :, :6].abs().max() == 0


@pytest.mark.parametrize("spec", ["softmax", "ssmax", "softmax1", "temperature:t=0.01"])
def test_weights_that_fp32_cannot_hold_are_no_exact_zeros(spec):
    call, swap = simple(64, query=400 * simple(64).query), Swap(resolve(spec))
    asks = question(real(1, 64), frozenset({"zeros"}))
    assert (next(iter(dense.blocks(call, swap))).weighed.weights == 0).sum() > 64 * 63
    assert not flash.reduce(call, asks, swap=swap).zeros.any()
    assert not dense.reduce(call, asks, swap=swap).zeros.any()


def test_a_call_is_read_once(monkeypatch):
    call = simple(mask=hiding(), causal=False)
    assert flash.serves(call) is None
    monkeypatch.setattr(flash_blocks, "MOST_QUERIES", 7)
    monkeypatch.setattr(Call, "visible", None)
    assert flash.reduce(call, question(real(1, 20))).keys[0, 0].tolist() == list(range(1, 21))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.integers(1, 5000))
def test_blocks_are_bounded_and_hold_every_visible_pair_once(queries, keys, window, entries):
    keys = min(keys, queries)
    queries = min(queries, keys - 1 + window)
    rows = flash_blocks.Rows(torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, keys, 1), window)
    blocks = list(flash_blocks._blocks(rows, entries))
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks)][:-1]
    assert blocks[-1].stop == queries
    for block in blocks:
        assert block.entries <= entries or block.stop == block.start + 1
        assert block.low == max(0, block.start - window + 1)
        assert block.low < block.high == min(block.stop, keys)


def test_the_kernel_is_never_called_with_more_kv_heads_than_query_heads():
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 4, 5, 4)
    with pytest.raises(ValueError, match="a multiple of kv heads, got 2 and 4"):
        flash_kernel.causal(query, key, key, 1.0)


def test_without_a_kernel_blocks_give_the_same_output(monkeypatch):
    call = simple(90)
    plain, level = flash.attend(call)
    monkeypatch.setattr(flash_kernel, "has_kernel", lambda _: False)
    output, lse = flash.attend(call)
    torch.testing.assert_close(output, plain)
    torch.testing.assert_close(lse, level)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [0, 40])
def test_the_embedded_models_layers_give_the_record_of_the_dense_path(padded):
    from sinkscope import load  # noqa: PLC0415 - transformers takes seconds
    from sinkscope.hooks import probe  # noqa: PLC0415 - transformers takes seconds

    model, _ = load()
    ids = torch.randint(20, 40000, (2, 300), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(300) >= torch.tensor([0, padded])[:, None]
    asks, layers = question(keep), []

    def compare(_, call, own):
        output = own()
        exact = dense.reduce(doubled(call), asks, output.double())
        assert_equal_records(flash.reduce(call, asks, output), exact, call, flash.PLAIN)
        layers.append(call)
        return output

    with torch.no_grad(), probe.probed(model, compare):
        model(ids, attention_mask=keep.long(), use_cache=False)
    assert len(layers) == 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cuda_device_gives_what_the_cpu_gives(dtype):
    call = simple(130, dtype=dtype)
    there = dataclasses.replace(call, query=call.query.cuda(), key=call.key.cuda(), value=call.value.cuda())
    asks = question(real(1, 130))
    output, lse = flash.attend(there)
    plain, level = flash.attend(call)
    torch.testing.assert_close(output.cpu(), plain, rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse.cpu(), level, rtol=1e-3, atol=1e-3)
    found, here = flash.reduce(there, asks.to(there.query.device)), flash.reduce(call, asks)
    torch.testing.assert_close(found.mass.cpu(), here.mass, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.received.cpu(), here.received, rtol=1e-4, atol=1e-5)
