import pytest
import torch

from sinkscope.attention import Call


def tensors(*, batch=2, heads=4, groups=2, length=7, width=5, value_width=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, heads, length, width), (batch, groups, length, width), (batch, groups, length, value_width)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def test_query_heads_must_be_a_multiple_of_key_heads():
    query, _, _ = tensors(heads=3)
    _, key, value = tensors(groups=2)
    with pytest.raises(ValueError, match="expected query heads to be a multiple of key heads, got 3 and 2"):
        Call(query, key, value, 1.0)


def test_consecutive_query_heads_share_a_key_head():
    query, key, value = tensors()
    call = Call(query, key, value, 0.5)
    repeated = key.repeat_interleave(2, dim=1)
    torch.testing.assert_close(call.scores(), 0.5 * query @ repeated.transpose(2, 3))
    weights = call.scores().softmax(-1)
    torch.testing.assert_close(call.output(weights), weights @ value.repeat_interleave(2, dim=1))


def with_everything(*, causal, **more):
    """A call with a mask or causality, a bias and a sink for each token."""
    query, key, value = tensors()
    generator = torch.Generator().manual_seed(1)
    return Call(
        query,
        key,
        value,
        0.7,
        mask=None if causal else torch.rand(2, 4, 7, 7, generator=generator) > 0.4,
        causal=causal,
        bias=torch.randn(1, 4, 7, 7, generator=generator),
        sink=torch.randn(2, 4, 7, generator=generator),
        **more,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_some_rows_of_a_call_have_the_scores_of_these_rows(causal):
    call = with_everything(causal=causal, softcap=2.0)
    for start, stop in [(0, 1), (0, 7), (2, 5), (6, 7)]:
        part = call.rows(start, stop)
        keys = part.key.shape[2]
        assert keys == (stop if causal else 7)
        torch.testing.assert_close(part.scores(), call.scores()[:, :, start:stop, :keys])
        assert torch.equal(part.sink, call.sink[..., start:stop])
        assert not call.visible()[:, :, start:stop, keys:].any()


@pytest.mark.parametrize("causal", [False, True])
def test_the_queries_at_some_positions_have_the_scores_that_they_have_among_all(causal):
    call = with_everything(causal=causal)
    for positions in (torch.tensor([0]), torch.tensor([1, 4, 6]), torch.arange(7)):
        few = call.at(positions.expand(len(call.query), -1))
        assert not few.causal
        torch.testing.assert_close(few.scores(), call.scores()[:, :, positions])
        visible = few.visible()
        assert torch.equal(visible, call.visible()[:, :, positions].expand_as(visible))
        assert torch.equal(few.sink, call.sink[..., positions])


def test_a_sink_per_head_is_the_same_for_all_rows():
    query, key, value = tensors()
    call = Call(query, key, value, 1.0, sink=torch.arange(4.0).reshape(1, 4, 1))
    assert torch.equal(call.rows(3, 5).sink, call.sink)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_key_is_hidden_by_minus_infinity_and_by_the_lowest_number_with_something_added(dtype):
    lowest = torch.finfo(dtype).min
    mask = torch.tensor([0.0, 8.0, -1000.0, lowest, lowest + 4, -torch.inf, lowest / 1.5], dtype=dtype)
    call = Call(*tensors(dtype=dtype), 1.0, mask=mask.expand(1, 1, 7, 7))
    assert call.visible()[0, 0, 0].tolist() == [True, True, True, False, False, False, False]
    assert torch.equal(call.scores().isinf(), ~call.visible().expand(2, 4, 7, 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_are_computed_in_single(dtype):
    query, key, value = tensors(dtype=dtype)
    scores = Call(query, key, value, 0.37).scores()
    assert scores.dtype == torch.float32
    exact = 0.37 * query.double() @ key.double().repeat_interleave(2, dim=1).transpose(2, 3)
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-5)


def test_double_precision_stays():
    assert Call(*tensors(dtype=torch.float64), 1.0).scores().dtype == torch.float64


def test_scores_are_capped_before_bias_and_mask():
    query, key, value = tensors()
    bias, mask = torch.full((1, 1, 7, 7), 100.0), torch.full((1, 1, 7, 7), -10.0)
    scores = Call(1000 * query, key, value, 1.0, mask=mask, softcap=2.0, bias=bias).scores()
    assert ((scores - 90).abs() <= 2).all()
    assert ((scores - 90).abs() > 1.9).any()


def test_a_fused_causal_call_sees_itself_and_what_came_before():
    call = Call(*tensors(), 1.0, causal=True)
    assert torch.equal(call.visible()[0, 0], torch.ones(7, 7, dtype=torch.bool).tril())
    assert Call(*tensors(), 1.0).visible().all()
