"""Sampled queries: where they stand, what is measured on them, and how far off that may be."""

import math

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, tiny

import sinkscope
from sinkscope.metrics import METRICS
from sinkscope.sampling import REPLICATES, replicates, sampling_error, systematic

LENGTH = 160


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=512, num_hidden_layers=2)


@pytest.fixture(scope="module")
def maps(model):
    """The model's own weights, [layer window head query key]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(fixed_ids(), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return torch.stack(found).double()


def fixed_ids(windows=2, length=LENGTH):
    return torch.randint(3, 300, (windows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("length", "count"), [(10, 3), (512, 256), (8192, 100), (7, 7), (5, 1)])
def test_a_sample_stands_at_equal_distances(length, count):
    found = systematic(length, count, seed=3)
    assert len(found) == count
    assert int(found[0]) >= 0
    assert int(found[-1]) < length
    gaps = found.diff()
    assert all(math.floor(length / count) <= gap <= math.ceil(length / count) for gap in gaps.tolist())
    assert torch.equal(found, systematic(length, count, seed=3))


def test_every_position_is_in_the_sample_equally_often():
    seeds, length, count = 2000, 30, 8
    found = torch.stack([torch.bincount(systematic(length, count, seed), minlength=length) for seed in range(seeds)])
    assert int(found.max()) == 1
    expected = count / length
    assert (found.double().mean(0) - expected).abs().max() < 5 * math.sqrt(expected * (1 - expected) / seeds)


def test_the_error_is_that_of_replicates_beside_the_next_of_their_window():
    values = torch.tensor([[1.0], [3.0], [11.0], [13.0]], dtype=torch.float64)
    # Two windows of two replicates, 2 from each other: Σ = 8, times 2 / (2·1).
    assert float(sampling_error(values, 2, 0.0)) == pytest.approx(math.sqrt(8))
    assert float(sampling_error(values, 2, 0.75)) == pytest.approx(math.sqrt(2))
    assert float(sampling_error(values, 2, 1.0)) == 0
    assert bool(sampling_error(values, 1, 0.5).isnan())


@pytest.mark.parametrize("queries", [1, 5, 40, LENGTH - 1])
def test_figures_are_those_of_the_sampled_rows(model, maps, queries):
    report = sinkscope.measure(model, input_ids=fixed_ids(), queries=queries, seed=5)
    positions = systematic(LENGTH, queries, 5)
    rows = maps[:, :, :, positions[positions > 0]]
    wanted = rows[..., 0].mean(dim=(1, 3)).flatten()
    np.testing.assert_allclose(report.heads["first_mass"], wanted, atol=1e-5)
    entropy = -(torch.special.xlogy(rows, rows)).sum(-1)
    np.testing.assert_allclose(report.heads["entropy"], entropy.mean(dim=(1, 3)).flatten(), atol=1e-4)
    assert report.heads["queries"].tolist() == [2 * rows.shape[3]] * 8
    told = report.metadata["queries"]
    assert (told["number"], told["of"], told["seed"], told["start"]) == (queries, LENGTH, 5, int(positions[0]))
    assert {each["path"] for each in report.metadata["attention"]["layers"].values()} == {"dense"}


def test_received_mass_is_the_mean_over_the_sampled_later_queries(model, maps):
    report = sinkscope.measure(model, input_ids=fixed_ids(), queries=40)
    positions = systematic(LENGTH, 40, 0)
    later = positions[:, None] > torch.arange(LENGTH)
    sums = torch.where(later, maps[:, :, :, positions], 0).sum(3).mean(dim=(0, 2))
    np.testing.assert_allclose(report.tokens["received"], (sums / later.sum(0)).flatten(), atol=1e-6)
    assert report.tokens["receivers"].tolist() == later.sum(0).tolist() * 2


def test_as_many_queries_as_there_are_is_no_sample(model):
    everything = sinkscope.measure(model, input_ids=fixed_ids())
    for queries in (LENGTH, 10**6):
        report = sinkscope.measure(model, input_ids=fixed_ids(), queries=queries)
        assert report.heads.equals(everything.heads)
        assert report.metadata["queries"] == {"sampled": False}
    assert not [name for name in everything.heads if "sampling" in name]


def test_the_error_that_is_told_is_the_error_that_is_made(model):
    everything = sinkscope.measure(model, input_ids=fixed_ids())
    names = ["first_mass", "other_share", "entropy", "row_mass", "effective_support", "output_norm"]
    made, told = ({name: [] for name in names} for _ in range(2))
    for seed in range(24):
        report = sinkscope.measure(model, input_ids=fixed_ids(), queries=40, seed=seed)
        for name in names:
            made[name].append(report.heads[name].to_numpy() - everything.heads[name].to_numpy())
            told[name].append(report.heads[f"{name}_sampling_se"].to_numpy())
    for name in names:
        error = np.sqrt(np.mean(np.square(made[name])))
        claimed = np.sqrt(np.mean(np.square(told[name])))
        if name != "row_mass":  # is 1 in every row
            assert 0.5 < error / claimed < 1.5, name


def test_the_means_over_heads_have_their_own_error(model):
    everything = sinkscope.measure(model, input_ids=fixed_ids())
    made, told = [], []
    for seed in range(24):
        row = sinkscope.measure(model, input_ids=fixed_ids(), queries=40, seed=seed).summary.iloc[0]
        made.append(row["entropy"] - everything.summary["entropy"][0])
        told.append(row["entropy_sampling_se"])
    assert np.abs(made).max() < 4 * np.mean(told)
    assert np.mean(told) < np.abs(everything.summary["entropy"][0]) / 10


def test_only_means_over_rows_have_a_sampling_error(model):
    report = sinkscope.measure(model, input_ids=fixed_ids(), queries=40)
    found = {name.removesuffix("_sampling_se") for name in report.heads if name.endswith("_sampling_se")}
    rows = {card.name for card in METRICS.values() if card.by_row and not card.optional and not card.per_class}
    assert {name for name in found if name in METRICS} == rows
    assert {"sink_rate", "frobenius", "value_norm_ratio"} & found == set()
    assert not report.heads["first_mass_sampling_se"].isna().any()


def test_the_norm_of_the_map_is_scaled_up_to_all_rows(model, maps):
    found = [
        sinkscope.measure(model, input_ids=fixed_ids(), queries=40, seed=seed).heads["frobenius"].to_numpy()
        for seed in range(12)
    ]
    wanted = maps.square().sum(dim=(3, 4)).sqrt().mean(1).flatten()
    np.testing.assert_allclose(np.mean(found, axis=0), wanted, rtol=0.1)


def test_the_order_and_size_of_batches_change_no_digit_of_a_sample(model):
    ids = fixed_ids(3)
    one = sinkscope.measure(model, input_ids=ids, queries=40, batch_size=1)
    all_at_once = sinkscope.measure(model, input_ids=ids, queries=40, batch_size=3)
    np.testing.assert_allclose(one.heads["entropy"], all_at_once.heads["entropy"], rtol=1e-6)
    np.testing.assert_allclose(
        one.heads["entropy_sampling_se"], all_at_once.heads["entropy_sampling_se"], rtol=1e-4, atol=1e-9
    )


@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma2", "mistral", "deepseek_v3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_windows_leave_only_real_rows(model_type, side):
    """Sampling every query but one leaves figures that are within one row of the full ones."""
    model = tiny(model_type, **ARCHITECTURES[model_type])
    ids = fixed_ids(2, 24)
    keep = torch.ones_like(ids)
    keep[0, : 7 if side == "left" else 24] = int(side == "right")
    keep[0, 17 if side == "right" else 24 :] = 0
    report = sinkscope.measure(model, input_ids=ids, attention_mask=keep, queries=23, seed=1)
    everything = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    lost = everything.heads["queries"] - report.heads["queries"]
    assert lost.between(0, 2).all()
    np.testing.assert_allclose(report.heads["entropy"], everything.heads["entropy"], atol=0.2)
    assert {each["type"] for each in report.metadata["attention"]["layers"].values()} == {
        each["type"] for each in everything.metadata["attention"]["layers"].values()
    }


def test_a_comparison_samples_the_same_rows_before_and_after(model):
    report = sinkscope.compare(
        model, input_ids=fixed_ids(), normalizers=["softmax", "softmax1", "softpick"], queries=40
    )
    heads = {name: table.reset_index(drop=True) for name, table in report.heads.groupby("normalizer", sort=False)}
    np.testing.assert_allclose(heads["softmax"]["entropy"], heads["softmax (identity)"]["entropy"], atol=1e-6)
    measured = sinkscope.measure(model, input_ids=fixed_ids(), queries=40)
    np.testing.assert_allclose(heads["softmax"]["first_mass"], measured.heads["first_mass"], atol=1e-5)
    assert heads["softmax1"]["first_mass_sampling_se"].notna().all()


def test_misuse_is_told(model):
    with pytest.raises(ValueError, match="expected a number of queries from 1, got 0"):
        sinkscope.measure(model, input_ids=fixed_ids(), queries=0)
    with pytest.raises(ValueError, match="expected sampled queries or the flash path, got both"):
        sinkscope.measure(model, input_ids=fixed_ids(), queries=5, attention="flash")


def test_a_sample_has_no_more_replicates_than_queries():
    assert [replicates(count) for count in (1, 3, 8, 100)] == [1, 3, 8, REPLICATES]
