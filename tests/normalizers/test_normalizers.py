"""Single normalizers against their definitions, their identities, and other people's implementations."""

import math

import entmax as reference
import pytest
import torch

from sinkscope.normalizers import NORMALIZERS

SCORES = torch.tensor([1.0, 0.5, -0.3])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def sample(seed: int = 0, size: float = 3.0, keys: int = 33) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(50, keys, generator=generator, dtype=torch.float64) * size


def same(left: str, right: str, **settings: float) -> None:
    """Two normalizers agree on ordinary rows; the settings are the left one's."""
    torch.testing.assert_close(NORMALIZERS[left].bind(**settings)(sample()), NORMALIZERS[right](sample()))


def test_softmax_is_softmax():
    torch.testing.assert_close(NORMALIZERS["softmax"](sample()), torch.softmax(sample(), -1))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("softmax_n", {"n": 0}),
        ("softmax_n", {"n": 1e-12}),
        ("sink_logit", {"s": -math.inf}),
        ("temperature", {"t": 1}),
        ("ssmax", {"s": 1 / math.log(33)}),
        ("p_softmax", {"p": 1}),
        ("topk", {"k": 33}),
        ("topk", {"k": 1000}),
        ("threshold", {"tau": 0}),
        ("threshold_renormalised", {"tau": 0}),
        ("clipped", {"gamma": 0, "zeta": 1}),
        ("entmax", {"alpha": 1}),
        ("entmax", {"alpha": 1 + 1e-9}),
    ],
)
def test_at_its_neutral_setting_it_is_softmax(name, settings):
    same(name, "softmax", **settings)


@pytest.mark.parametrize(
    ("name", "other", "settings"),
    [
        ("softmax_n", "softmax1", {"n": 1}),
        ("sink_logit", "softmax1", {"s": 0}),
        ("entmax", "sparsemax", {"alpha": 2}),
    ],
)
def test_two_names_of_one_formula_agree(name, other, settings):
    same(name, other, **settings)


def test_softmax1_is_softmax_times_the_sigmoid_of_the_log_sum_exp():
    level = torch.logsumexp(sample(), -1, keepdim=True)
    torch.testing.assert_close(NORMALIZERS["softmax1"](sample()), torch.softmax(sample(), -1) * torch.sigmoid(level))


def test_a_sink_logit_is_one_more_key_that_is_then_forgotten():
    extended = torch.cat([sample(), torch.full((50, 1), 0.7, dtype=torch.float64)], -1)
    torch.testing.assert_close(NORMALIZERS["sink_logit"].bind(s=0.7)(sample()), torch.softmax(extended, -1)[:, :-1])


@pytest.mark.parametrize(
    ("name", "scores", "expected"),
    [
        ("softmax1", [1.0, 0.5, -0.3], [0.4450, 0.2699, 0.1213]),
        ("softmax1", [1e4, 0.0, -1e4], [1.0, 0.0, 0.0]),
        ("softmax1", [-2.45e5] * 2, [0.0, 0.0]),
        ("softmax", [-2.45e5] * 2, [0.5, 0.5]),
        ("sparsemax", [1.0, 0.5, -0.3], [0.75, 0.25, 0.0]),
        ("entmax", [1.0, 0.5, -0.3], [0.65859, 0.31532, 0.02609]),
        ("softpick", [-1.0, -2.0, -0.1], [0.0, 0.0, 0.0]),
        ("softpick", [math.log(3), math.log(2), -math.inf], [2 / 3, 1 / 3, 0.0]),
        ("softpick", [math.log(3), math.log(0.5)], [0.8, 0.0]),
        ("rectified", [0.0, 0.0, -1.0], [0.5, 0.5, 0.0]),
        ("sa_softmax", [2.0, -math.inf], [2.0, 0.0]),
        ("sa_softmax_normalised", [-2.0, -math.inf], [0.0, 0.0]),
        ("sa_softmax_normalised", [2.0, -math.inf], [1.0, 0.0]),
        ("polynomial", [2.0, -1.0, 0.0, 1.0], [4.0, -0.5, 0.0, 0.5]),
        ("relu", [3.0, -1.0, -math.inf], [1.5, 0.0, 0.0]),
        ("relu2", [3.0, -1.0, -math.inf], [4.5, 0.0, 0.0]),
        ("sigmoid", [math.log(2), 0.0], [0.5, 1 / 3]),
        ("elu1", [2.0, 0.0, math.log(0.25)], [3.0, 1.0, 0.25]),
        ("threshold", [math.log(0.995), math.log(0.005)], [0.995, 0.0]),
        ("threshold_renormalised", [math.log(0.995), math.log(0.005)], [1.0, 0.0]),
        ("clipped", [0.0, -1e3], [1.0, 0.0]),
        ("polyaksum", [3.0, -1.0], [1.5, -0.5]),
        ("polyaksum", [-3.0, 1.0], [1.5, -0.5]),
        ("polyaksum", [1.0, -1.0], [0.0, 0.0]),
        ("invsquare", [1.0, -2.0], [0.8, 0.2]),
        ("invsquare", [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]),
        ("poly2", [2.0, 1.0, -3.0], [0.8, 0.2, 0.0]),
        ("poly2", [-2.0, -1.0, -3.0], [0.0, 0.0, 0.0]),
    ],
)
def test_worked_examples(name, scores, expected):
    torch.testing.assert_close(NORMALIZERS[name](torch.tensor(scores)), torch.tensor(expected), atol=5e-5, rtol=1e-4)


def test_softmax1_depends_on_the_level_of_the_scores_and_softmax_on_their_differences():
    torch.testing.assert_close(NORMALIZERS["softmax1"](SCORES + 100), torch.softmax(SCORES, -1))
    equal = torch.zeros(8)
    masses = [NORMALIZERS["softmax1"](equal + level).sum().item() for level in (-5, 0, 5)]
    assert masses == pytest.approx([0.0511, 0.8889, 0.9992], abs=1e-4)


def test_softmax1_keeps_small_weights_in_half_precision():
    weights = NORMALIZERS["softmax1"](torch.tensor([-12.0, -13.0, -14.0], dtype=torch.float16))
    torch.testing.assert_close(weights.double(), torch.tensor([6.1e-6, 2.3e-6, 8.3e-7]).double(), rtol=0.05, atol=0)


def test_softpick_keeps_its_digits_near_zero_and_follows_the_papers_epsilon():
    tiny = torch.tensor([1e-5, 2e-5, -3e-5])
    expected = torch.tensor([1e-5, 2e-5, 0.0]) / (6e-5 + 1e-6)
    torch.testing.assert_close(NORMALIZERS["softpick"](tiny), expected, rtol=1e-4, atol=1e-9)


def test_softpick_of_large_scores_is_softmax():
    torch.testing.assert_close(
        NORMALIZERS["softpick"](sample().abs() + 60), torch.softmax(sample().abs(), -1), rtol=1e-5, atol=1e-9
    )


def test_softpick_is_its_definition_where_the_definition_can_be_computed():
    plain = sample(size=1.0).exp() - 1
    eps = 1e-6 * sample(size=1.0).amax(-1, keepdim=True).clamp_min(0).exp()
    expected = plain.relu() / (plain.abs().sum(-1, keepdim=True) + eps)
    torch.testing.assert_close(NORMALIZERS["softpick"](sample(size=1.0)), expected)


def test_first_degree_polynomial_times_the_root_of_n_is_the_scores():
    weights = NORMALIZERS["polynomial"].bind(p=1)(sample())
    torch.testing.assert_close(weights * math.sqrt(33), sample())


def test_topk_keeps_all_keys_that_tie_with_the_last():
    weights = NORMALIZERS["topk"].bind(k=2)(torch.tensor([1.0, 0.0, 1.0, 1.0, -1.0]))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]) / 3)


def test_n_counts_visible_keys_and_no_learned_sink():
    scores = torch.tensor([[1.0, -math.inf, 1.0, 0.0], [1.0, 2.0, 1.0, 0.0]])
    expected = torch.tensor([1 / 2, 1 / 3])
    torch.testing.assert_close(NORMALIZERS["relu"](scores, extra=1)[:, 0], expected)


def test_ssmax_of_one_real_key_and_a_learned_sink_is_even_because_log_one_is_zero():
    weights = NORMALIZERS["ssmax"](torch.tensor([3.0, -math.inf, -2.0]), extra=1)
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.0, 0.5]))


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize(("alpha", "oracle"), [(1.5, reference.entmax15), (2.0, reference.sparsemax)], ids=["1.5", "2"])
def test_entmax_equals_the_reference_by_sorting_in_value_and_gradient(size, alpha, oracle):
    left, right = sample(size=size, keys=200).requires_grad_(), sample(size=size, keys=200).requires_grad_()
    direction = sample(seed=1, keys=200)
    ours, theirs = NORMALIZERS["entmax"].bind(alpha=alpha)(left), oracle(right, dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    torch.testing.assert_close(left.grad, right.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.3, 1.7, 1.99, 2.5, 4.0])
def test_entmax_equals_the_reference_by_bisection(alpha):
    ours = NORMALIZERS["entmax"].bind(alpha=alpha)(sample())
    torch.testing.assert_close(ours, reference.entmax_bisect(sample(), alpha, n_iter=100), rtol=1e-5, atol=1e-7)


@DTYPES
@pytest.mark.parametrize("alpha", [1.0, 1.0000001, 1.001, 1.5, 2.0, 2.001, 3.0, 10.0])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1000.0])
def test_entmax_rows_add_up_to_one_at_every_alpha(alpha, size, dtype):
    weights = NORMALIZERS["entmax"].bind(alpha=alpha)(sample(size=size, keys=400).to(dtype))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(50, dtype=dtype), rtol=1e-5, atol=1e-5)


def long_rows(keys: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Flat rows, rows with a sink, rows of ties, hidden ends, and gaps as wide as scores get."""
    flat = sample(keys=keys)
    sink = torch.cat([sample(keys=keys)[:, 1:] - 4, torch.full((50, 1), 5.0, dtype=torch.float64)], -1)
    hidden = flat.masked_fill(torch.arange(keys) >= 1 + 17 * torch.arange(50)[:, None] % (keys - 1), -math.inf)
    return torch.cat([flat, sink, flat.round(), hidden, flat * 1e4, sink.clamp_max(-1e5)]).to(dtype)


@DTYPES
@pytest.mark.parametrize("keys", [127, 128, 143, 144, 1000])
@pytest.mark.parametrize("k", [1, 2, 8, 40])
def test_topk_of_a_long_row_keeps_what_sorting_would(keys, k, dtype):
    scores = long_rows(keys, dtype)
    last = scores.sort(-1, descending=True).values[:, k - 1 : k]
    expected = torch.softmax(scores.masked_fill(scores < last, -math.inf), -1)
    found = NORMALIZERS["topk"].bind(k=k).weigh(scores)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found > 0, expected > 0)


@pytest.mark.parametrize("keys", [127, 128, 143, 1000])
@pytest.mark.parametrize("alpha", [1.1, 1.2, 1.25, 1.5, 2.0, 3.0])
def test_entmax_of_a_long_row_equals_the_reference(keys, alpha):
    exact = {1.5: reference.entmax15, 2.0: reference.sparsemax}
    scores = long_rows(keys)
    oracle = exact.get(alpha, lambda rows, dim: reference.entmax_bisect(rows, alpha, dim, n_iter=100))
    # The reference makes NaN of infinite gaps.
    expected = oracle(scores.clamp_min(-1e9), dim=-1)
    found = NORMALIZERS["entmax"].bind(alpha=alpha)
    torch.testing.assert_close(found.weigh(scores), expected, rtol=1e-5, atol=1e-7)
    single = found.weigh(scores.float())
    # For α > 2 the slope of a small weight w is 1 / w^{α−2}, and it is as sensitive to the last digit of its score.
    atol = 2e-6 if alpha <= 2 else 3e-4
    torch.testing.assert_close(single, found.weigh(scores.float().double()).float(), rtol=1e-3, atol=atol)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0, 10.0])
def test_entmax_shares_equally_among_equal_scores(alpha):
    weights = NORMALIZERS["entmax"].bind(alpha=alpha)(torch.full((1, 5000), -7.5))
    torch.testing.assert_close(weights, torch.full((1, 5000), 1 / 5000), rtol=1e-4, atol=0)


def test_softpick_tau_is_the_articles_map_over_its_absolute_sum():
    scores = torch.tensor([2.0, 0.5, -1.0])
    bent = [z if z > 1 else z - math.log1p(math.exp(z - 1)) for z in scores.tolist()]
    expected = torch.tensor(bent) / sum(abs(part) for part in bent)
    torch.testing.assert_close(NORMALIZERS["softpick_tau"](scores), expected)


def test_sa_sigmoid_is_the_articles_formula_over_its_signed_sum():
    scores = torch.tensor([2.0, 0.5, -1.0])
    parts = scores * torch.sigmoid(2 * scores)
    torch.testing.assert_close(NORMALIZERS["sa_sigmoid"].bind(alpha=2)(scores), parts / parts.sum())


@pytest.mark.parametrize(
    ("name", "sound", "broken"),
    [
        ("polyaksum", [2.0, -1.0], [[1.0, -1.0], [-2.0, 1.0], [0.0, 0.0]]),
        ("sa_sigmoid", [2.0, -1.0], [[0.0, 0.0], [-2.0, -1.0]]),
        ("softpick_tau", [2.0, 0.0], []),
        ("invsquare", [1e-3, 1.0], [[0.0, 1.0]]),
        ("poly2", [1.0, -9.0], [[-1.0, -2.0], [0.0, 0.0]]),
        ("softmax1", [1.0, -9.0], []),
    ],
)
def test_rows_without_a_sound_denominator_are_marked(name, sound, broken):
    card = NORMALIZERS[name]
    marked = card.degenerate_rows(torch.tensor([[*row, -math.inf] for row in [sound, *broken]]))
    assert marked.tolist() == [False] + [True] * len(broken)


def test_softpick_tau_has_no_denominator_only_where_every_part_is_zero():
    scores = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert NORMALIZERS["softpick_tau"].bind(tau=0).degenerate_rows(scores).tolist() == [True, False]


@pytest.mark.parametrize(
    ("spec", "settings", "row_mass", "sink", "zeros"),
    [
        ("softmax", {}, (1, 1), 0.65, 0),
        ("temperature", {"t": 2}, (1, 1), 0.31, 0),
        ("topk", {"k": 8}, (1, 1), 0.71, 76.7),
        ("softmax1", {}, (0.87, 1), 0.64, 0),
        ("sparsemax", {}, (1, 1), 0.95, 96.4),
        ("entmax", {"alpha": 1.5}, (1, 1), 0.92, 94.5),
        ("clipped", {}, (0.4, 1), 0.64, 88.5),
        ("softpick", {}, (0.4, 1), 0.64, 71.9),
        ("rectified", {}, (1, 1), 0.70, 71.9),
        ("sa_softmax_normalised", {}, (0.7, 1), 0.65, 3.0),
    ],
)
def test_a_synthetic_sink_head_has_the_known_figures(spec, settings, row_mass, sink, zeros):
    # Scores N(-1, 1.5), those of key 0 N(4, 0.7), causal, T = 64; the figures are of another draw, hence the slack.
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(16, 64, 64, generator=generator) * 1.5 - 1
    scores[..., 0] = torch.randn(16, 64, generator=generator) * 0.7 + 4
    future = torch.ones(64, 64, dtype=torch.bool).triu(1)
    weights = NORMALIZERS[spec].bind(**settings)(scores, future)
    assert weights[..., 0].mean().item() == pytest.approx(sink, abs=0.03)
    assert 100 * (weights[:, ~future] == 0).double().mean().item() == pytest.approx(zeros, abs=1.5)
    assert weights.sum(-1).max().item() == pytest.approx(row_mass[1], abs=0.01)
    assert weights.sum(-1).min().item() == pytest.approx(row_mass[0], abs=0.15)
