"""The measured profile of normalizers, against values worked out by hand."""

import dataclasses
import math

import pytest
import torch
from fixtures_cli import call
from pandas.testing import assert_frame_equal

from sinkscope.errors import UnknownNameError
from sinkscope.normalizers import NORMALIZERS
from sinkscope.normalizers import profile as profiling
from sinkscope.normalizers.profile import Profile, jacobian, profile, profiles, sample_scores

FEW = sample_scores(2, 12)
TIMES = {"time", "time_plain"}

every_normalizer = pytest.mark.parametrize("name", NORMALIZERS)


@pytest.fixture(scope="module")
def table():
    """All of the catalog on a few scores, without times."""
    return profiles(scores=FEW, repeats=0).set_index("normalizer")


def one_map(*rows):
    return torch.tensor([rows], dtype=torch.float64)


def untimed(name, scores):
    return profile(name, scores, repeats=0)


def test_the_jacobian_of_softmax_is_that_of_the_textbook():
    rows = torch.tensor([[0.0, 1.0, -2.0], [3.0, 3.0, -math.inf]])
    weights = torch.softmax(rows.double(), -1)
    expected = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    torch.testing.assert_close(jacobian(NORMALIZERS["softmax"], rows), expected)


def test_the_jacobian_has_a_row_for_each_weight_and_a_column_for_each_score():
    # Softpick's is not symmetric: a negative score weighs nothing, but takes from the others.
    found = jacobian(NORMALIZERS["softpick"], torch.tensor([[1.0, -1.0]]))
    size = math.e - 1 / math.e
    assert torch.equal(found[0, 1], torch.zeros(2, dtype=torch.float64))
    assert found[0, 0, 1].item() == pytest.approx((math.e - 1) / math.e / size**2, rel=1e-5)


def test_softmax_on_two_equal_scores():
    found = untimed("softmax", one_map([0.0, 0.0]))
    assert (found.row_sum_min, found.row_sum_mean, found.row_sum_max) == (1, 1, 1)
    assert found.frobenius == pytest.approx(math.sqrt(0.5))
    assert (found.sensitivity, found.sensitivity_ratio, found.sensitivity_typical) == (0.25, 1, 1)
    assert (found.zeros, found.gradient_density, found.gradient_density_noticeable) == (0, 1, 1)


def test_every_score_moves_every_weight_of_softmax_in_rows_of_any_length(table):
    assert table.loc["softmax", "gradient_density"] == 1
    assert table.loc["sparsemax", "gradient_density"] < 1


def test_the_sums_of_softmax1_are_the_sigmoid_of_the_level():
    found = untimed("softmax1", one_map([0.0, 0.0], [math.log(3), -math.inf], [-math.inf, -math.inf]))
    assert (found.row_sum_min, found.row_sum_max) == pytest.approx((2 / 3, 3 / 4))
    assert found.row_sum_mean == pytest.approx((2 / 3 + 3 / 4) / 2)


def test_relu_moves_only_the_weights_of_positive_scores_and_each_by_its_own():
    found = untimed("relu:a=1", one_map([1.0, 2.0, -3.0, -0.5]))
    assert found.zeros == 0.5
    assert found.sensitivity == 0.25
    assert found.gradient_density == 2 / 16
    assert found.row_sum_mean == 0.75


def test_topk_has_the_jacobian_of_a_softmax_over_the_kept():
    found = untimed("topk:k=2", one_map([1.0, 1.0, 0.0, -1.0, -2.0]))
    assert found.zeros == 3 / 5
    assert found.gradient_density == 4 / 25
    assert found.sensitivity == pytest.approx(0.25)


def test_sparsemax_is_a_projection():
    # On a support of two keys J is the identity less 1/2, whatever the scores.
    found = untimed("sparsemax", one_map([0.3, 0.0, -4.0]))
    assert found.sensitivity == 0.5
    assert found.gradient_density == 4 / 9
    usual = torch.softmax(torch.tensor([0.3, 0.0, -4.0], dtype=torch.float64), -1)
    assert found.sensitivity_ratio == pytest.approx(0.5 / (usual * (1 - usual)).max().item())


def test_a_density_with_a_floor_leaves_out_what_is_almost_zero():
    # With p = 1/2, 1/2 and about 2e-5, entries that touch the third key are below 1/1000 of 1/4.
    found = untimed("softmax", one_map([0.0, 0.0, -10.0]))
    assert (found.gradient_density, found.gradient_density_noticeable) == (1, 4 / 9)


def test_the_typical_sensitivity_is_that_of_the_median_row():
    rows = one_map([0.0, 0.0, -math.inf], [0.0, 0.0, 0.0], [-9.0, -9.0, -9.0])
    assert untimed("temperature:t=2", rows).sensitivity_typical == pytest.approx(0.5)
    assert untimed("softmax1", rows).sensitivity_typical == pytest.approx((1 / 4 * 3 / 4) / (1 / 3 * 2 / 3))


def test_the_norm_is_relative_to_the_root_of_the_number_of_queries():
    identity = one_map([0.0, -math.inf], [-math.inf, 0.0], [0.0, 0.0])
    assert untimed("softmax", identity).frobenius == pytest.approx(math.sqrt(2.5 / 3))


def test_the_range_is_where_the_weights_of_a_dtype_overflow():
    # 32³/√2 fits fp16 and 64³/√2 does not; a score that is small beside the largest changes nothing.
    assert untimed("polynomial:p=3", one_map([1.0, 1.0])).finite_fp16 == 32
    assert untimed("polynomial:p=3", one_map([-7.0, 0.1])).finite_fp16 == 32
    for score in (1.0, -1.0):
        found = untimed("relu2:a=0", one_map([score, score]))
        assert (found.finite_fp16, found.finite_bf16) == (2**7, 2**63)
    assert untimed("softmax", one_map([5.0, -1.0])).finite_bf16 == math.inf


def test_a_normalizer_that_overflows_at_once_has_no_range():
    assert untimed(lambda scores: scores / 0, one_map([1.0, 2.0])).finite_fp16 == 0


@every_normalizer
def test_every_normalizer_is_measured_in_every_figure(name, table):
    row = table.loc[name].drop([*TIMES])
    assert row.notna().all()
    assert row["row_sum_min"] <= row["row_sum_mean"] <= row["row_sum_max"]
    assert 0 <= row["gradient_density_noticeable"] <= row["gradient_density"] <= 1
    assert row["sensitivity"] > 0


@every_normalizer
def test_what_is_measured_agrees_with_what_the_card_declares(name, table):
    row, card = table.loc[name], NORMALIZERS[name]
    if card.sums_to_one:
        assert (row["row_sum_min"], row["row_sum_max"]) == pytest.approx((1, 1))
    if card.row_sum == "at most one":
        assert row["row_sum_max"] <= 1 + 1e-12
        assert row["frobenius"] <= 1 + 1e-12
    if not card.exact_zeros:
        assert row["zeros"] == 0
    if not card.rowwise:
        # The visible keys of a row are n, so that of its n² entries only the n of the diagonal can move.
        lengths = range(2, 13)
        assert row["gradient_density"] <= sum(lengths) / sum(n * n for n in lengths)
    for kind in ("fp16", "bf16"):
        if math.isfinite(row[f"declared_{kind}"]):
            assert 2 * row[f"finite_{kind}"] > row[f"declared_{kind}"]


def test_the_same_scores_give_the_same_figures(table):
    again = profiles(["softmax1", "entmax", "invsquare"], FEW, repeats=0).set_index("normalizer")
    assert_frame_equal(again, table.loc[again.index], check_exact=True)
    assert torch.equal(sample_scores(2, 5, seed=3), sample_scores(2, 5, seed=3))
    assert not torch.equal(sample_scores(2, 5, seed=3), sample_scores(2, 5, seed=4))


def test_the_sample_is_causal_with_a_sink():
    scores = sample_scores()
    assert scores.shape == (4, 64, 64)
    assert torch.equal(scores.isinf(), torch.ones(64, 64, dtype=torch.bool).triu(1).expand(4, -1, -1))
    assert scores[..., 0].mean().item() == pytest.approx(4, abs=0.2)
    assert scores[:, :, 1:][scores[:, :, 1:].isfinite()].mean().item() == pytest.approx(-1, abs=0.1)


def test_large_maps_are_measured_on_some_of_their_rows_part_by_part(monkeypatch):
    whole = untimed("softpick", FEW)
    monkeypatch.setattr(profiling, "_MOST_ENTRIES", 3 * 12**2)
    assert dataclasses.asdict(untimed("softpick", FEW)) == pytest.approx(dataclasses.asdict(whole))
    monkeypatch.setattr(profiling, "_MOST_ROWS", 1)
    first = untimed("softpick", FEW)
    assert first.sensitivity == untimed("softpick", FEW[:1, 1:2]).sensitivity
    assert first.row_sum_mean == pytest.approx(whole.row_sum_mean)


def test_a_change_that_softmax_cannot_make_is_compared_with_nothing():
    # e^-800 is 0: softmax is saturated to the last digit, and so is what could be a multiple of it.
    found = untimed("softmax", one_map([0.0, -800.0]))
    assert (found.sensitivity, found.sensitivity_ratio, found.sensitivity_typical) == (0, None, None)


@pytest.mark.parametrize(
    "card",
    [
        dataclasses.replace(NORMALIZERS["softmax"], differentiable=False),
        dataclasses.replace(NORMALIZERS["softmax"], function=lambda scores: torch.softmax(scores.detach(), -1)),
    ],
    ids=["declared", "found"],
)
def test_what_cannot_be_differentiated_has_no_gradient_but_all_else(card):
    found = profile(card, FEW, repeats=0)
    figures = {name for name, value in dataclasses.asdict(found).items() if value is None}
    gradient = {field.name for field in dataclasses.fields(Profile) if field.name.startswith(("sens", "grad"))}
    assert figures == gradient | TIMES
    assert found.row_sum_min == pytest.approx(1)
    assert profiles([card], FEW, repeats=0).loc[0, sorted(gradient)].isna().all()


def test_times_are_ratios_and_torch_gets_its_threads_back():
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        found = profile("softmax", FEW, repeats=3)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert 0 < found.time < math.inf
    assert 0 < found.time_plain < math.inf


def test_progress_is_told_to_the_end():
    told = []
    profiles(["relu", "softmax"], FEW, repeats=0, progress=lambda *words: told.append(words))
    assert told == [("profiling normalizers", done, 2) for done in range(3)]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_scores_that_are_no_scores_are_refused(wrong):
    with pytest.raises(ValueError, match="expected scores that are finite, or -inf at hidden keys"):
        untimed("softmax", one_map([0.0, wrong]))


def test_maps_in_which_nothing_can_be_compared_are_refused():
    with pytest.raises(ValueError, match=r"sees at least two keys, got none in maps of shape \[1, 1, 2\]"):
        untimed("softmax", one_map([0.0, -math.inf]))


def test_an_unknown_normalizer_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'softpick'"):
        profile("softpik")


@pytest.fixture
def quick(monkeypatch):
    """The command line with the figures of a few normalizers on a few scores."""
    found = profiles(["softmax", "threshold_renormalised", "polynomial"], FEW, repeats=1)

    def few(progress):
        return found.assign(sensitivity=math.nan)

    monkeypatch.setattr(profiling, "profiles", few)
    return found


def test_the_command_prints_every_figure_in_80_columns(quick, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = call(capfd, monkeypatch, "list", "normalizers", "--profile")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line.split() for line in lines if line.startswith("threshold_renormalised")]
    assert sum(len(line) - 1 for line in shown) == len(Profile.__dataclass_fields__) - 1
    assert shown[0][1:4] == ["1", "1", "1"]
    assert shown[0][4] == f"{100 * quick.loc[1, 'zeros']:.3g}"
    assert shown[1][1] == "–"
    assert shown[2][1:5] == ["all"] * 4


def test_other_families_have_no_profile(capfd, monkeypatch):
    ended = call(capfd, monkeypatch, "list", "metrics", "--profile")
    assert (ended.status, ended.out) == (2, "")
    assert "write sinkscope list normalizers --profile" in ended.err
