"""Laws that every listed normalizer keeps, and the truths that its card declares, both ways."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinkscope.normalizers import NORMALIZERS, Normalizer, resolve

CARDS = list(NORMALIZERS.values())
LAW = settings(max_examples=20, deadline=None, derandomize=True)

every_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)


def every_setting(card: Normalizer) -> list[Normalizer]:
    """The card as it is, and with each parameter in turn at the ends of its range and between."""
    variants = [card]
    for each in card.parameters:
        low, high = max(each.low, -50.0), min(each.high, 50.0)
        middle = (low + high) // 2 if each.whole else (low + high) / 2
        variants += [card.bind(**{each.name: value}) for value in (low, middle, high)]
    return variants


def rows(size: float) -> st.SearchStrategy[Tensor]:
    """Rows of fp64 scores within [-size, size], of many levels and with ties."""
    scores = st.floats(-size, size, width=16) | st.sampled_from([-size, -1.0, 0.0, 0.5, size])
    return st.lists(scores, min_size=1, max_size=10).map(lambda row: torch.tensor(row, dtype=torch.float64))


@st.composite
def masked_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A row of scores and which of its keys are hidden: some, all or none."""
    scores = draw(rows(8.0))
    return scores, torch.tensor(draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))


def sample_rows(seed: int = 0) -> Tensor:
    """Sixty rows of twelve ordinary scores, none of them 0, at levels from all-negative to all-positive."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(60, 12, generator=generator, dtype=torch.float64)
    scores = scores + torch.linspace(-3, 3, 60, dtype=torch.float64)[:, None]
    # In steps that adding 3 keeps exactly: entmax of a high α turns the last digit of a score into a percent.
    return ((scores * 1024).round() + 0.5) / 1024


@every_card
@given(masked_rows())
@LAW
def test_hidden_keys_weigh_nothing_and_enter_no_denominator(card, row):
    scores, hidden = row
    weights = card.weigh(scores, hidden)
    assert torch.equal(weights[hidden], torch.zeros_like(weights[hidden]))
    if not hidden.all():
        torch.testing.assert_close(weights[~hidden], card.weigh(scores[~hidden]), rtol=1e-9, atol=1e-12)


@every_card
@given(masked_rows(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
@LAW
def test_it_does_not_matter_how_a_key_is_hidden(card, row, dtype):
    scores, hidden = row[0].to(dtype), row[1]
    expected = card(scores, hidden)
    for mark in (-math.inf, torch.finfo(dtype).min):
        assert torch.equal(card(scores.masked_fill(hidden, mark)), expected)


@every_card
def test_the_lowest_bfloat16_still_hides_a_key_after_a_cast(card):
    scores = torch.tensor([1.0, torch.finfo(torch.bfloat16).min, -0.5])
    assert torch.equal(card(scores), card(torch.tensor([1.0, -math.inf, -0.5])))


@every_card
@pytest.mark.parametrize("extra", [0, 1])
def test_a_query_that_sees_nothing_attends_to_nothing(card, extra):
    scores = torch.full((2, 3, 4), -math.inf)
    scores[..., 4 - extra :] = 0.3
    scores[1] = 0.1
    assert torch.equal(card(scores, extra=extra)[0], torch.zeros(3, 4))
    assert not card.degenerate_rows(scores, extra=extra)[0].any()


@every_card
@given(rows(1e4), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@LAW
def test_large_scores_stay_finite_up_to_the_declared_range(card, row, dtype):
    for variant in every_setting(card):
        assert variant.weigh(row.to(dtype)).isfinite().all()
        fitting = row.clamp(-variant.finite_range(dtype), variant.finite_range(dtype))
        assert variant(fitting.to(dtype)).isfinite().all()


@every_card
@pytest.mark.parametrize(
    "row", [[0.0, -1e5, -2e5], [1e5, 0.0, -1e5], [-2.45e5] * 3, [1e4] * 3, [-1e4] * 3, [0.0] * 3, [-1e4, -1.0]]
)
def test_wide_gaps_and_equal_scores_stay_finite_with_a_finite_gradient(card, row):
    scores = torch.tensor(row, requires_grad=True)
    weights = card(scores)
    weights.sum().backward()
    assert weights.isfinite().all()
    assert scores.grad.isfinite().all()


@every_card
def test_a_weight_that_grows_without_bound_would_leave_its_range(card):
    if card.degree:
        beyond = torch.tensor([4 * card.finite_range(torch.float16)], dtype=torch.float32)
        assert card.weigh(beyond).item() > torch.finfo(torch.float16).max
    else:
        assert card.finite_range(torch.float16) == math.inf


@every_card
@given(masked_rows(), st.randoms(use_true_random=False))
@LAW
def test_the_order_of_the_keys_is_immaterial(card, row, random):
    scores, hidden = row
    order = list(range(len(scores)))
    random.shuffle(order)
    moved = card.weigh(scores[order], hidden[order])
    torch.testing.assert_close(moved, card.weigh(scores, hidden)[order], rtol=1e-9, atol=1e-12)


@every_card
def test_rows_do_not_see_each_other(card):
    scores = sample_rows()
    together = card.weigh(scores.reshape(3, 4, 5, 12)).reshape(60, 12)
    torch.testing.assert_close(together, torch.stack([card.weigh(row) for row in scores]))


@every_card
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_come_back_in_the_dtype_of_the_scores_and_weigh_keeps_the_precision(card, dtype):
    scores = torch.linspace(-2, 2, 9, dtype=dtype)
    assert card(scores).dtype == dtype
    exact = card.weigh(scores)
    assert exact.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(exact.double(), card.weigh(scores.double()), rtol=1e-4, atol=1e-6)


@every_card
def test_gradients_are_the_true_ones(card):
    assert card.differentiable
    for variant in every_setting(card):
        # Far from every kink and jump, and no sum near zero.
        scores = torch.tensor([[0.93, -0.41, 1.72, 0.27], [-0.31, -1.13, -0.73, -0.19], [2.3, 0.9, -0.6, 0.4]])
        scores = scores.double().requires_grad_()
        assert torch.autograd.gradcheck(variant.weigh, (scores,)), variant.spec


@every_card
def test_no_gradient_comes_from_hidden_keys_or_blind_queries_and_none_is_nan(card):
    for variant in every_setting(card):
        scores = torch.tensor([[0.5, -0.7, 1.2], [0.4, 0.1, 0.2], [-0.3, -2.0, 0.3]], requires_grad=True)
        hidden = torch.tensor([[False, False, True], [True, True, True], [True, False, True]])
        variant.weigh(scores, hidden).square().sum().backward()
        assert scores.grad.isfinite().all(), variant.spec
        assert (scores.grad[hidden] == 0).all(), variant.spec


@every_card
def test_rows_add_up_to_what_is_declared_and_to_nothing_less_telling(card):
    scores = torch.cat([sample_rows(), torch.zeros(1, 12)])
    total = torch.cat([variant.weigh(scores).sum(-1) for variant in every_setting(card)])
    one, zero, below = (total - 1).abs() < 1e-6, total.abs() < 1e-12, total < 1 + 1e-6
    holds = {
        "one": bool(one.all()),
        "one or zero": bool((one | zero).all()),
        "at most one": bool(below.all()),
        "any": True,
    }
    assert card.row_sum == next(claim for claim, true in holds.items() if true)
    assert card.sums_to_one == holds["one"]


@every_card
@given(rows(8.0))
@LAW
def test_the_declared_sum_and_sign_hold_for_rows_of_any_kind(card, row):
    for variant in every_setting(card):
        weights = variant.weigh(row)
        total = weights.sum().item()
        if card.row_sum == "one":
            assert total == pytest.approx(1, abs=1e-6)
        if card.row_sum == "one or zero":
            assert min(abs(total - 1), abs(total)) < 1e-6
        if card.row_sum == "at most one":
            assert total < 1 + 1e-6
        assert card.may_be_negative or (weights >= 0).all()


@every_card
def test_weights_are_negative_somewhere_exactly_where_declared(card):
    found = any((variant.weigh(sample_rows()) < 0).any() for variant in every_setting(card))
    assert card.may_be_negative == found


@every_card
def test_a_shift_of_all_scores_matters_exactly_where_declared(card):
    scores = sample_rows()
    equal = all(
        torch.allclose(variant.weigh(scores + 3), variant.weigh(scores), rtol=1e-9, atol=1e-9)
        for variant in every_setting(card)
    )
    assert card.shift_invariant == equal


@every_card
def test_visible_keys_weigh_exactly_nothing_exactly_where_declared(card):
    # Only the default setting: a temperature of 1e-4 underflows to 0.
    assert card.exact_zeros == bool((card.weigh(sample_rows()) == 0).any())


@every_card
def test_a_weight_that_is_not_zero_is_in_the_support_under_every_setting(card):
    scores = sample_rows()
    for variant in every_setting(card):
        weights = variant.weigh(scores)
        assert variant.supported(scores, weights)[weights != 0].all()


@every_card
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_the_support_in_single_precision_is_where_double_precision_has_weight(card, spread):
    scores = (spread * sample_rows()).float().double()
    exact, weights = card.weigh(scores) != 0, card.weigh(scores.float())
    seen = scores > -torch.inf
    assert torch.equal(card.supported(scores.float(), weights)[seen], exact[seen])


@pytest.mark.parametrize("spec", ["entmax:alpha=1", "entmax:alpha=1.05", "threshold:tau=0", "clipped:gamma=0"])
def test_a_setting_that_leaves_nothing_out_has_no_zeros(spec):
    card, scores = resolve(spec), torch.tensor([[0.0, -5.0, -18.0]])
    far = scores if "1.05" in spec else 40 * scores
    weights = card.weigh(far)
    assert card.supported(far, weights).all()
    assert spec.endswith("1.05") or (weights == 0).any()


def test_a_large_power_underflows_and_a_key_beyond_its_threshold_has_no_weight():
    card = resolve("entmax:alpha=1.05")
    scores = torch.tensor([[0.0, -19.9, -25.0]])
    assert card.supported(scores, card.weigh(scores)).tolist() == [[True, True, False]]
    assert card.weigh(scores).tolist() == [[1, 0, 0]]


@every_card
def test_other_scores_of_the_row_matter_exactly_where_declared(card):
    scores = sample_rows()
    moved = scores.clone()
    moved[:, 0] += 1
    same = torch.allclose(card.weigh(moved)[:, 1:], card.weigh(scores)[:, 1:], rtol=1e-12, atol=1e-12)
    assert card.rowwise != same


@every_card
def test_the_number_of_keys_matters_exactly_where_declared(card):
    scores = sample_rows()
    counted = card.weigh(scores, extra=1)[:, 0] != card.weigh(scores)[:, 0]
    assert card.counts_keys == bool(counted.any())


@every_card
@given(rows(50.0))
@LAW
def test_weights_grow_no_faster_than_declared(card, row):
    for variant in every_setting(card):
        degree = variant.settings[card.degree] if isinstance(card.degree, str) else card.degree
        bound = (1 + row.abs().max()) ** degree if degree else 1e4 + 1
        assert (variant.weigh(row).abs() <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("card", [card for card in CARDS if card.form], ids=lambda card: card.name)
@pytest.mark.parametrize("extra", [0, 1])
def test_a_form_of_softmax_is_softmax_scaled_and_beside_a_silent_key(card, extra):
    for variant in every_setting(card):
        scores = sample_rows()
        visible = torch.full((60, 1), 12.0 - extra, dtype=torch.float64)
        scale, sink = variant.form(visible, **variant.settings)
        level = torch.logsumexp(scores * scale, -1, keepdim=True)
        expected = torch.softmax(scores * scale, -1) * torch.sigmoid(level - sink)
        torch.testing.assert_close(variant.weigh(scores, extra=extra), expected)


@every_card
def test_every_card_says_what_it_is(card):
    assert card.summary
    assert card.formula
    assert card.source
    assert card.published != card.source.startswith("ad hoc, unpublished")
    assert bool(card.degenerate) == bool(card.caveat) == (not card.published)
    assert None not in (card.row_sum, card.may_be_negative, card.shift_invariant, card.exact_zeros, card.degree)
