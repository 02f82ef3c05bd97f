"""Sampled queries: where they stand, what is measured on them, and how far off that may be."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import ARCHITECTURES, tiny
from handmade import asked
from handmade import real as every_token

import sinkscope
from sinkscope.attention import Call, dense
from sinkscope.metrics import METRICS
from sinkscope.metrics.choosing import chosen
from sinkscope.report import tables
from sinkscope.runs.record import Layer, Record
from sinkscope.statistics.sampling import REPLICATES, Sample, replicates, sampling_error, systematic

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
    found = systematic(length, count, 3, 5)
    assert len(found) == count
    assert int(found[0]) >= 0
    assert int(found[-1]) < length
    gaps = found.diff()
    assert all(math.floor(length / count) <= gap <= math.ceil(length / count) for gap in gaps.tolist())
    assert torch.equal(found, systematic(length, count, 3, 5))


@pytest.mark.parametrize("varied", ["seed", "window"])
def test_every_position_is_in_the_sample_equally_often(varied):
    times, length, count = 2000, 30, 8
    of = [systematic(length, count, *((each, 7) if varied == "seed" else (7, each))) for each in range(times)]
    found = torch.stack([torch.bincount(each, minlength=length) for each in of])
    assert int(found.max()) == 1
    expected = count / length
    assert (found.double().mean(0) - expected).abs().max() < 5 * math.sqrt(expected * (1 - expected) / times)


def test_windows_are_sampled_independently():
    starts = torch.tensor([[float(systematic(10**6, 1, seed, window)) for window in range(4)] for seed in range(1000)])
    correlations = torch.corrcoef(starts.T).fill_diagonal_(0)
    assert correlations.abs().max() < 4 / math.sqrt(1000)
    assert torch.corrcoef(torch.stack([starts[:-1, 0], starts[1:, 0]]))[0, 1].abs() < 4 / math.sqrt(1000)


def test_a_window_has_the_sample_of_its_own_length_whatever_it_is_batched_with():
    sample = Sample(6, 3)
    for length in (20, 4, 13):
        together = sample.positions(length, (7, 2, 11))
        assert together.shape == (3, min(6, length))
        assert bool((together.diff(dim=1) > 0).all())
        for row, window in zip(together, (7, 2, 11), strict=True):
            assert row.tolist() == sample.positions(length, (window,))[0].tolist()
            assert row.tolist() == systematic(length, min(6, length), 3, window).tolist()


def test_the_error_is_that_of_replicates_beside_the_next_of_their_window():
    values = torch.tensor([[1.0], [3.0], [11.0], [13.0]], dtype=torch.float64)
    # Two windows of two replicates, 2 from each other: Σ = 8, times 2 / (2·1); and half as many degrees of freedom.
    for fractions, wanted, degrees in (((0, 0), 8, 2), ((0.75, 0.75), 2, 2), ((0, 1), 4, 1), ((1, 1), 0, 1)):
        found = sampling_error(values, 2, torch.tensor(fractions, dtype=torch.float64))
        quantile = {1: 12.7062, 2: 4.30265}[degrees]
        assert float(found) == pytest.approx(math.sqrt(wanted) * quantile / 1.959964, rel=1e-5)
    assert bool(sampling_error(values, 1, torch.tensor([0.5, 0.5]).double()).isnan())


@pytest.mark.parametrize("queries", [1, 5, 40, LENGTH - 1])
def test_figures_are_those_of_the_sampled_rows(model, maps, queries):
    report = sinkscope.measure(model, input_ids=fixed_ids(), queries=queries, seed=5)
    positions = [systematic(LENGTH, queries, 5, window) for window in range(2)]
    rows = [maps[:, window, :, at[at > 0]] for window, at in enumerate(positions)]
    # Each window stands for as many rows as it has, however many of them were sampled.
    wanted = sum(each[..., 0].mean(dim=2) for each in rows) / 2
    np.testing.assert_allclose(report.heads["first_mass"], wanted.flatten(), atol=1e-5)
    entropy = sum(-torch.special.xlogy(each, each).sum(-1).mean(dim=2) for each in rows) / 2
    np.testing.assert_allclose(report.heads["entropy"], entropy.flatten(), atol=1e-4)
    assert report.heads["queries"].tolist() == [sum(each.shape[2] for each in rows)] * 8
    assert report.heads["first_queries"].tolist() == report.heads["queries"].tolist()
    told = report.metadata["queries"]
    assert (told["number"], told["of"], told["seed"]) == (queries, LENGTH, 5)
    assert told["starts"] == [int(at[0]) for at in positions]
    assert {each["path"] for each in report.metadata["attention"]["layers"].values()} == {"dense"}


def test_received_mass_is_the_mean_over_the_sampled_later_queries(model, maps):
    report = sinkscope.measure(model, input_ids=fixed_ids(), queries=40)
    for window in range(2):
        positions = systematic(LENGTH, 40, 0, window)
        later = positions[:, None] > torch.arange(LENGTH)
        sums = torch.where(later, maps[:, window, :, positions], 0).sum(2).mean(dim=(0, 1))
        table = report.tokens[report.tokens["window"] == window]
        np.testing.assert_allclose(table["received"], sums / later.sum(0), atol=1e-6)
        assert table["receivers"].tolist() == later.sum(0).tolist()


def test_as_many_queries_as_there_are_is_no_sample(model):
    everything = sinkscope.measure(model, input_ids=fixed_ids())
    for queries in (LENGTH, 10**6):
        report = sinkscope.measure(model, input_ids=fixed_ids(), queries=queries)
        assert report.heads.equals(everything.heads)
        assert report.metadata["queries"] == {"sampled": False}
    assert not [name for name in everything.heads if "sampling" in name]


def call_of(windows, length=1024, heads=6):
    """Attention of sink heads, about a quarter of it on the first token, and tokens of which one in ten is rare."""
    generator = torch.Generator().manual_seed(4)
    query, key = (torch.randn(windows, heads, length, 8, generator=generator) for _ in range(2))
    query += 1
    key[:, :, 0] = 1.3
    rare = (torch.rand(windows, length, generator=generator) < 0.1) & (torch.arange(length) > 0)
    asks = asked(every_token(windows, length), needs=frozenset({"entropy"}), rare=rare)
    return Call(query, key, key, 0.7, causal=True), asks


def table_of(call, asks, sample=None):
    """The means over the heads of one layer, of every row or of a sample."""
    windows, length = asks.keep.shape
    record = Record.start("softmax", windows, length, chosen(["entropy"]))
    if sample is not None:
        asks = replace(asks, positions=sample.positions(length, range(windows)))
        record.parts = replicates(sample.count)
    layer = Layer("a", 0, 0, None, None, call.query.shape[1], learned_sink=False, path="dense")
    record.add(layer, range(windows), dense.reduce(call, asks))
    return tables.layers(record, tables.Sheet(tuple(asks.marked)))


@pytest.mark.parametrize(("windows", "least"), [(1, 0.85), (4, 0.9), (8, 0.9)])
def test_twice_the_error_that_is_told_holds_the_error_that_is_made(windows, least):
    call, asks = call_of(windows)
    everything = table_of(call, asks)
    names = ["first_mass", "first_share", "first_lift", "entropy", "rare_share"]
    made, told = [], []
    for seed in range(40):
        found = table_of(call, asks, Sample(16, seed))
        made.append(found[names].to_numpy() - everything[names].to_numpy())
        told.append(found[[f"{name}_sampling_se" for name in names]].to_numpy())
    held = np.mean(np.abs(made) <= 2 * np.array(told), axis=(0, 1))
    ratio = np.sqrt(np.mean(np.square(made), axis=(0, 1)) / np.mean(np.square(told), axis=(0, 1)))
    assert (held >= least).all(), held
    assert ((ratio > 0.5) & (ratio < 1.3)).all(), ratio


@pytest.mark.parametrize("windows", [1, 4])
def test_the_error_holds_the_first_rows_that_a_sample_misses(windows):
    """Attention that is even but for noise: a few rows that most samples miss decide the mean, and its replicates."""
    generator = torch.Generator().manual_seed(4)
    query, key = (torch.randn(windows, 6, 512, 8, generator=generator) for _ in range(2))
    call, asks = Call(query, key, key, 0.2, causal=True), asked(every_token(windows, 512), needs=frozenset({"entropy"}))
    everything = table_of(call, asks)
    names = ["first_mass", "first_share", "first_lift"]
    held = []
    for seed in range(40):
        found = table_of(call, asks, Sample(8, seed))
        errors = found[[f"{name}_sampling_se" for name in names]].to_numpy()
        held.append(np.abs(found[names].to_numpy() - everything[names].to_numpy()) <= 2 * errors)
    assert np.mean(held) >= 0.9


def test_frequencies_are_those_of_every_row_and_lift_is_share_by_frequency(model):
    ids = fixed_ids(3)
    keep = torch.ones_like(ids)
    keep[1, 90:] = 0
    everything = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    for seed in range(2):
        report = sinkscope.measure(model, input_ids=ids, attention_mask=keep, queries=10, seed=seed, only=[])
        for table, whole in ((report.heads, everything.heads), (report.summary, everything.summary)):
            for name in ("first", "initial"):
                np.testing.assert_allclose(table[f"{name}_frequency"], whole[f"{name}_frequency"], rtol=1e-6)
                assert f"{name}_frequency_sampling_se" not in table
        lift = report.heads["first_share"] / report.heads["first_frequency"]
        np.testing.assert_allclose(report.heads["first_lift"], lift)
    lift = everything.heads["first_share"] / everything.heads["first_frequency"]
    np.testing.assert_allclose(everything.heads["first_lift"], lift)


def test_windows_weigh_by_their_rows_however_many_of_these_were_sampled(model):
    """The short window is taken whole, and of the long one a sixteenth is: it still weighs sixteen times as much."""
    ids = torch.randint(3, 300, (2, 320), generator=torch.Generator().manual_seed(2))
    keep = torch.ones_like(ids)
    keep[1, 20:] = 0
    everything = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    found = [
        sinkscope.measure(model, input_ids=ids, attention_mask=keep, queries=20, seed=seed, only=["entropy"])
        for seed in range(4)
    ]
    error = np.mean([report.heads["entropy"] - everything.heads["entropy"] for report in found], axis=0)
    alone = sinkscope.measure(model, input_ids=ids[:1], only=["entropy"]).heads["entropy"]
    # Weighed alike, the short window would pull the mean much further.
    assert np.abs(error).max() < 0.15 < 4 * np.abs(alone - everything.heads["entropy"]).min()
    assert found[0].metadata["queries"]["windows_taken_whole"] == 1


def test_the_means_over_heads_have_their_own_error(model):
    everything = sinkscope.measure(model, input_ids=fixed_ids())
    made, told = [], []
    for seed in range(6):
        row = sinkscope.measure(model, input_ids=fixed_ids(), queries=40, seed=seed, only=["entropy"]).summary.iloc[0]
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
        for seed in range(8)
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
    with pytest.raises(ValueError, match="expected queries >= 1, got 0"):
        sinkscope.measure(model, input_ids=fixed_ids(), queries=0)
    with pytest.raises(ValueError, match="expected sampled queries or the flash path, got both"):
        sinkscope.measure(model, input_ids=fixed_ids(), queries=5, attention="flash")


def test_a_sample_has_no_more_replicates_than_queries():
    assert [replicates(count) for count in (1, 3, 8, 100)] == [1, 3, 8, REPLICATES]
