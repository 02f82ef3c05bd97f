"""Laws over all figures of hidden states, each of them once by hand, and where the states come from."""

import dataclasses
import math

import pytest
import torch
from builders import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from soundness import IDS, PADDINGS, state
from tiny_models import tiny_model
from torch import nn

from sinkscope.activations import ACTIVATIONS, States
from sinkscope.activations.base import measured
from sinkscope.activations.layers import Layer, Layers, decoder_layers
from sinkscope.activations.moments import kurtosis, pooled, swept
from sinkscope.activations.record import HiddenRecord
from sinkscope.activations.states import median
from sinkscope.activations.watching import Place, watching
from sinkscope.attention import Site
from sinkscope.hooks.handshake import handshake
from sinkscope.hooks.model_state import restored

CARDS = tuple(ACTIVATIONS.values())
EACH = pytest.mark.parametrize("card", CARDS, ids=ACTIVATIONS)


def random_states(batch=2, positions=9, width=12):
    """States with a massive first token, and tails of their own in each window."""
    values = torch.randn(batch, positions, width, generator=torch.Generator().manual_seed(5)) ** 3
    values[:, 0, 3] = 3000 * torch.arange(1, batch + 1)
    return States(values, torch.ones(batch, positions, dtype=torch.bool))


def figures(states, cards=CARDS):
    """Each figure of each window by its name; NaN where it is undefined or no number."""
    sums, counts = measured(cards, states)
    return dict(zip((card.name for card in cards), (sums / counts).T, strict=True))


def of(*windows):
    """States that are given token by token."""
    values = torch.tensor(windows, dtype=torch.float32)
    return States(values, torch.ones(values.shape[:2], dtype=torch.bool))


@EACH
def test_a_figure_is_one_sum_and_one_count_per_window_in_double_precision(card):
    sums, counts = card.function(random_states())
    assert sums.shape == counts.shape == (2,)
    assert sums.dtype == counts.dtype == torch.float64
    assert sums.isfinite().all()
    assert (counts > 0).all()


@EACH
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_a_figure_stays_in_its_range(card, scale):
    states = random_states()
    found = figures(States(scale * states.values, states.keep), [card])[card.name]
    assert card.low is None or (found >= card.low - 1e-6).all()
    assert card.high is None or (found <= card.high + 1e-6).all()


@EACH
@pytest.mark.parametrize("filling", [torch.nan, torch.inf, 1e9])
@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 2)])
def test_padding_that_holds_anything_changes_no_figure(card, filling, before, after):
    alone = random_states()
    values = nn.functional.pad(alone.values, (0, 0, before, after), value=filling)
    together = States(values, nn.functional.pad(alone.keep, (before, after)))
    for one, other in zip(card.function(alone), card.function(together), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@EACH
def test_a_batch_of_two_is_two_batches(card):
    both = random_states()
    together = card.function(both)
    for window in (0, 1):
        at = slice(window, window + 1)
        alone = card.function(States(both.values[at], both.keep[at]))
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[at], part, rtol=1e-6, atol=0)


@EACH
def test_the_order_of_the_tokens_after_the_first_changes_no_figure(card):
    states = random_states()
    turned = torch.cat([states.values[:, :1], states.values[:, 1:].flip(1)], dim=1)
    for one, other in zip(card.function(states), card.function(States(turned, states.keep)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_window_with_a_value_that_is_no_number_has_no_figure_and_the_others_have(value):
    states = random_states()
    wanted = figures(states)
    states.values[1, 4, 2] = value
    for name, found in figures(States(states.values, states.keep)).items():
        assert found.isnan().tolist() == [False, True], name
        assert found[0] == wanted[name][0]


def test_every_figure_of_two_tokens_by_hand():
    found = figures(of([[1, 1, 1, 5], [-1, 3, -1, 3]]))
    root = [math.sqrt(24 + sign * math.sqrt(272)) for sign in (1, -1)]
    wanted = {
        "max_activation": 5,
        "top2_activation": 3,
        "top3_activation": 3,
        "median_activation": 1,
        "activation_ratio": 5,
        "massive_activations": 0,
        "outlier_tokens": 0,
        "first_norm_ratio": math.sqrt(28 / 20),
        "kurt_layer": 2.12,
        "kurt_excess": -0.88,
        "kurt_qualcomm": 238.5 / 8 / ((30 / 7) ** 2 + 1e-6),
        "kurt_token_first": 7 / 3,
        "kurt_token_others": 1,
        "inf_norm": 5,
        "effective_rank": math.exp(-sum(each / sum(root) * math.log(each / sum(root)) for each in root)),
        "mean_cosine": 16 / math.sqrt(28 * 20),
    }
    assert {name: float(each) for name, each in found.items()} == pytest.approx(wanted, rel=1e-6)


def test_massive_are_entries_above_a_hundred_and_at_least_a_thousand_medians():
    row = [0.125] * 40
    entries = [125.0, -300.0, 124.9, 100.0, 2000.0]
    assert float(figures(of([row, entries + row[5:], row]))["massive_activations"]) == 3
    low = [1e-3] * 40
    assert float(figures(of([low, entries + low[5:]]))["massive_activations"]) == 4  # 100 itself is not above it


def test_outliers_are_tokens_above_a_thousand_means_of_the_window():
    quiet = [0.0] * 1500
    assert float(figures(of([[1.0, *quiet[1:]], quiet]))["outlier_tokens"]) == 1
    assert float(figures(of([[1.0, *quiet[1:]]] * 3))["outlier_tokens"]) == 3
    assert float(figures(of([[1.0, 1.0, *quiet[2:]]] * 3))["outlier_tokens"]) == 0


def test_what_equal_entries_leave_undefined_is_counted_nowhere():
    for values, defined in (([[2.0] * 6] * 3, {"mean_cosine": 1, "effective_rank": 1}), ([[0.0] * 6] * 3, {})):
        found = figures(of(values))
        kurtoses = {"kurt_layer", "kurt_excess", "kurt_token_first", "kurt_token_others"}
        assert all(found[name].isnan() for name in kurtoses)
        for name in ("mean_cosine", "effective_rank"):
            assert float(found[name]) == pytest.approx(defined.get(name, math.nan), nan_ok=True)


def test_a_window_of_one_token_has_no_others_to_compare_with():
    found = figures(of([[1.0, 2.0, 4.0]]))
    undefined = {name for name, each in found.items() if each.isnan()}
    assert undefined == {"first_norm_ratio", "kurt_token_others", "mean_cosine"}


def test_half_precision_is_reduced_in_single():
    record = recorded([random_states().values.to(torch.bfloat16)], layers=1)
    exact = recorded([random_states().values.to(torch.bfloat16).float()], layers=1)
    for place, seen in record.places.items():
        for one, other in zip(seen.tally.by_window(), exact.places[place].tally.by_window(), strict=True):
            assert torch.equal(one, other)
    large = States(torch.full((1, 4, 8), 6e4, dtype=torch.float16).float(), torch.ones(1, 4, dtype=torch.bool))
    assert figures(large)["max_activation"] == 60000 - 60000 % 32


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 500), kinds=st.integers(1, 600), seed=st.integers(0, 99))
def test_the_median_is_the_lower_one_of_torch(count, kinds, seed):
    values = torch.randint(0, kinds, (count,), generator=torch.Generator().manual_seed(seed)).float()
    wanted = values.median()
    assert median(values) == wanted


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize(("positions", "width"), [(7, 5), (700, 300)])
def test_moments_of_parts_merge_into_those_of_the_whole(offset, positions, width):
    values = torch.randn(2, positions, width, generator=torch.Generator().manual_seed(1)) ** 3 + offset
    exact = values.double()
    off = exact - exact.mean((1, 2), keepdim=True)
    wanted = [off.pow(power).sum((1, 2)) for power in (2, 3, 4)]
    found = pooled(swept(values).moments)
    count = float(positions * width)
    assert found[:, 0].tolist() == [count, count]
    torch.testing.assert_close(found[:, 1], exact.mean((1, 2)), rtol=1e-6, atol=1e-6)
    for one, other in zip(found[:, 2:].T, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=0)
    torch.testing.assert_close(kurtosis(found), count * wanted[2] / wanted[0] ** 2, rtol=2e-5, atol=0)


def test_an_empty_part_changes_no_moments():
    parts = swept(random_states().values).moments
    empty = torch.tensor([0, math.nan, math.nan, math.nan, math.nan], dtype=torch.float64).expand(2, 1, 5)
    assert torch.equal(pooled(torch.cat([parts, empty], 1)), pooled(parts))


def test_the_largest_entries_have_their_signs_and_places():
    values = torch.zeros(2, 5, 7)
    values[0, 2, 3], values[0, 2, 5], values[0, 4, 0], values[0, 1, 1] = 5, -7, 6, 4
    values[1, 3, 6] = -1
    keep = torch.tensor([[True] * 5, [False] * 3 + [True] * 2])
    top = States(values, keep).top
    assert top.values[0].tolist() == [-7, 6, 5]
    assert top.positions[0].tolist() == [2, 4, 2]
    assert top.dimensions[0].tolist() == [5, 0, 3]
    assert (float(top.values[1, 0]), int(top.positions[1, 0]), int(top.dimensions[1, 0])) == (-1, 3, 6)
    assert set(top.positions[1].tolist()) <= {3, 4}


TYPES = (
    *("llama", "gpt2", "gemma2", "gemma3_text", "gpt_oss", "olmo2", "cohere2", "opt", "gpt_neox", "phi3", "bert"),
    *("jamba", "qwen3_next", "zamba", "zamba2", "bamba", "recurrent_gemma", "minimax", "nemotron_h", "lfm2"),
    *("bloom", "mpt", "falcon", "gpt_neo", "openai-gpt", "xglm", "musicgen", "mllama", "deepseek_v3"),
)


def outputs(model, layers, keep=PADDINGS["none"]):
    """What goes by in one forward, in order."""
    found = []
    with torch.no_grad(), watching(model, layers, lambda place, states: found.append((place, states))):
        model(input_ids=IDS, attention_mask=keep.long(), use_cache=False)
    return found


@pytest.mark.parametrize("model_type", TYPES)
def test_what_goes_by_are_the_hidden_states_that_transformers_returns(model_type):
    model = tiny_model(model_type, layers=4)
    layers = decoder_layers(model, handshake(model, IDS).sites)
    with torch.no_grad(), restored(model):
        told = {"attention_mask": PADDINGS["none"].long(), "use_cache": False}
        theirs = model(input_ids=IDS, output_hidden_states=True, **told).hidden_states
    found = outputs(model, layers)
    ours = [states for place, states in found if not place.attention]
    assert [place.layer for place, _ in found if not place.attention] == list(range(len(ours)))
    assert len(theirs) == len(ours) + 1
    # The last of theirs has been through the final norm.
    for one, other in zip(ours[:-1], theirs[1:-1], strict=True):
        assert torch.equal(one, other)
    for place, states in found:
        assert states.shape[:2] == IDS.shape
        if place.attention:
            assert place.inside == Place(place.inside.module, place.layer, place.inside.call)
            assert place.module.startswith(place.inside.module) or place.call > 0
    assert layers.undefined == {}


def test_layers_without_attention_are_layers_too():
    model = tiny_model("jamba", layers=4)
    sites = handshake(model, IDS).sites
    layers = decoder_layers(model, sites)
    assert [site.layer for site in sites] == [1, 3]
    assert [layer.number for layer in layers.layers] == [0, 1, 2, 3]
    assert layers.attention == ("model.layers.1.self_attn", "model.layers.3.self_attn")


class Blocks(nn.Module):
    """A module list within another, and attention beside it."""

    def __init__(self):
        super().__init__()
        block = nn.ModuleDict({"attn": nn.ModuleList([nn.Identity(), nn.Identity()])})
        self.blocks = nn.ModuleList([nn.Identity(), block, nn.Identity()])
        self.attention = nn.Identity()


def test_layers_count_on_from_those_that_attend_and_attention_outside_of_a_list_has_a_reason():
    sites = [Site("blocks.1.attn.1", 11, 0, None, None), Site("attention", 3, 0, None, None)]
    found = decoder_layers(Blocks(), sites)
    assert found.layers == (Layer("blocks.0", 10), Layer("blocks.1", 11), Layer("blocks.2", 12))
    assert found.attention == ("blocks.1.attn.1", "attention")
    assert found.undefined == {"attention": "it is in no list of modules, so its decoder layer cannot be told"}


def test_a_layer_that_runs_twice_has_two_calls(ids):
    model = tiny("llama")
    model.model.layers[1] = model.model.layers[0]
    layers = decoder_layers(model, handshake(model, ids).sites)
    assert [layer.name for layer in layers.layers] == [f"model.layers.{number}" for number in (0, 2, 3)]
    found = [(place.layer, place.call) for place, _ in outputs(model, layers) if not place.attention]
    assert found == [(0, 0), (0, 1), (2, 0), (3, 0)]


@pytest.mark.parametrize("model_type", ["gemma3n_text", "deepseek_v4"])
def test_outputs_of_another_shape_are_undefined_with_a_reason(model_type):
    model = tiny_model(model_type, layers=4)
    layers = decoder_layers(model, handshake(model, IDS).sites)
    record = HiddenRecord("softmax", layers, CARDS[:3])
    with torch.no_grad(), record.watch(model, range(2), IDS.shape[1]):
        model(input_ids=IDS, use_cache=False)
    assert {layer.name for layer in layers.layers} <= record.undefined.keys()
    assert set(record.undefined.values()) == {"its output is of another kind, not [batch, position, width]"}
    assert not any(record.defined(place) for place in record.places if not place.attention)


def test_watching_leaves_no_trace_also_after_an_exception(ids):
    model = tiny("llama")
    layers = decoder_layers(model, handshake(model, ids).sites)
    before = state(model)
    seen = []

    def fail(place, _):
        seen.append(place)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watching(model, layers, fail):
        model(ids)
    assert len(seen) == 3
    assert state(model) == before


def test_a_forward_that_failed_does_not_move_the_next_one(ids):
    model = tiny("llama")
    layers = decoder_layers(model, handshake(model, ids).sites)
    whole = [place for place, _ in outputs(model, layers)]
    seen = []

    def fail_once(place, _):
        seen.append(place)
        if len(seen) == 3:
            raise RuntimeError

    with watching(model, layers, fail_once):
        with pytest.raises(RuntimeError):
            model(ids)
        model(ids)
    assert seen == whole[:3] + whole


def recorded(batches, activations=CARDS, layers=2):
    """A record of the same states in every layer and its attention; each batch begins where the last one ended."""
    names = tuple(Layer(f"layers.{number}", number) for number in range(layers))
    record = HiddenRecord("softmax", Layers(names), activations)
    start = 0
    for values in batches:
        windows = range(start, start + len(values))
        fill(record, windows, values)
        start = windows.stop
    return record


def fill(record, windows, values):
    keep = torch.ones(values.shape[:2], dtype=torch.bool)
    for layer in record.layers.layers:
        place = Place(layer.name, layer.number, 0)
        inner = Place(f"{layer.name}.attn", layer.number, 0, attention=True, inside=place)
        record.add(inner, windows, values / 2, keep)
        record.add(place, windows, values + layer.number, keep)


def same(one, other):
    """Whether two records hold the same of the same windows."""
    for place in one.places.keys() | other.places.keys():
        first, second = one.places[place], other.places[place]
        pairs = zip(first.tally.by_window(), second.tally.by_window(), strict=True)
        if first.outlines.keys() != second.outlines.keys() or not all(torch.equal(*pair) for pair in pairs):
            return False
        for window, outline in first.outlines.items():
            if not torch.equal(outline.moments, second.outlines[window].moments):
                return False
            if (outline.entries, outline.high) != (second.outlines[window].entries, second.outlines[window].high):
                return False
    return True


def test_neither_the_order_nor_the_size_of_batches_changes_a_digit():
    values, cards = random_states(batch=5).values, tuple(card for card in CARDS if not card.optional)
    whole = recorded([values], cards)
    for order in ([range(2), range(2, 5)], [range(3, 5), range(3)]):
        other = recorded([], cards)
        for windows in order:
            fill(other, windows, values[windows.start : windows.stop])
        assert same(whole, other)


def test_two_records_merge_into_what_one_would_have_seen_and_share_no_window():
    values = random_states(batch=4).values
    one, other = recorded([values[:1]]), recorded([])
    fill(other, range(1, 4), values[1:])
    assert same(one.merge(other), recorded([values[:1], values[1:]]))
    with pytest.raises(ValueError, match="window 0 was already counted"):
        one.merge(one)


def test_only_the_figures_of_attention_are_measured_there():
    record = recorded([random_states().values])
    named = {card.name for card in record.figures(next(place for place in record.places if place.attention))}
    assert named == {"kurt_qualcomm", "inf_norm"}


def test_a_module_whose_output_changes_its_shape_counts_for_nothing():
    record = recorded([random_states().values])
    place = Place("layers.0", 0, 0)
    record.add(place, range(2, 4), torch.zeros(2, 3, 4), torch.ones(2, 9, dtype=torch.bool))
    assert not record.defined(place)
    assert record.undefined == {"layers.0": "its output is [2, 3, 4], not [batch, position, width]"}


def test_a_layer_that_never_ran_has_a_reason():
    record = recorded([random_states().values])
    record.layers = dataclasses.replace(record.layers, layers=(*record.layers.layers, Layer("layers.2", 2)))
    assert record.undefined == {"layers.2": "it was never called"}
