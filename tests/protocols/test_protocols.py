"""Every published protocol against a plain reading of its paper on full maps, and figures worked out by hand."""

import json

import pandas as pd
import pytest
import torch
from builders import tiny
from eager_maps import eager
from handmade import asked, real, reduced

import sinkscope
from sinkscope.errors import ProtocolError, TextError, UnknownNameError
from sinkscope.exporters import export
from sinkscope.protocols import OWN, PROTOCOLS, chosen, settled
from sinkscope.protocols.figures import exceeding, first_column, last_query, lower_triangle_zeros

PUBLISHED = [name for name, card in PROTOCOLS.items() if card.published]


def gu(maps, epsilon=0.3):
    """Sink rate of Gu et al. from maps [sample layer head query key], row by row and with nothing of ours."""
    hits = []
    for sample in maps:
        for layer in sample:
            for head in layer:
                alpha = 0.0
                for row in head:
                    whole = row.abs().sum()
                    alpha += float(row[0].abs() / whole) if whole > 0 else 0.0
                hits.append(alpha / len(head) > epsilon)
    return sum(hits) / len(hits)


def softpick(maps, epsilon=0.3):
    """The rate of the Softpick paper: raw first columns, each sample's mean over all its rows."""
    hits = [float(head[:, 0].sum()) / len(head) > epsilon for sample in maps for layer in sample for head in layer]
    return sum(hits) / len(hits)


def sparsity(maps):
    """The share of exact zeros in the lower triangle."""
    zeros = entries = 0
    for head in maps.flatten(0, 2):
        for query, row in enumerate(head):
            zeros += int((row[: query + 1] == 0).sum())
            entries += query + 1
    return zeros / entries


def streaming(maps):
    """What the last token gives to the first, over samples, layers and heads."""
    last = [float(head[-1, 0]) for sample in maps for layer in sample for head in layer]
    return sum(last) / len(last)


PLAIN = {
    "gu2025_sink_rate": gu,
    "barbero2025_sink_rate": lambda maps: gu(maps, 0.8),
    "gu2025_mass": lambda maps: float((maps[..., 0].abs() / maps.abs().sum(-1)).mean()),
    "softpick2025_sink_rate": softpick,
    "softpick2025_sink_rate_02": lambda maps: softpick(maps, 0.2),
    "softpick2025_sparsity": sparsity,
    "streamingllm2024_mass": streaming,
}


def test_every_published_figure_has_a_plain_reading_here():
    assert set(PLAIN) == {figure for name in PUBLISHED for figure in PROTOCOLS[name].figures}


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral", "gemma3_text", "deepseek_v3"])
@pytest.mark.parametrize("attention", ["auto", "dense"])
def test_protocols_agree_with_a_plain_reading_of_eager_maps(architecture, attention):
    model = tiny(architecture, max_position_embeddings=64)
    ids = torch.randint(3, 300, (3, 64), generator=torch.Generator().manual_seed(2))
    maps = torch.stack([each.weights for each in eager(model, ids).maps], dim=1)
    for name in ("gu2025", "barbero2025"):
        report = sinkscope.measure(model, input_ids=ids, protocol=name, attention=attention)
        for _, row in report.protocols.iterrows():
            assert row["value"] == pytest.approx(PLAIN[row["figure"]](maps), abs=1e-6), row["figure"]
    # The others ask for lengths that tiny models have no room for, so their metrics are measured on their own.
    extra = [metric for name in ("softpick2025", "streamingllm2024") for metric in PROTOCOLS[name].metrics]
    report = sinkscope.measure(model, input_ids=ids, metrics=extra, attention=attention)
    for metric in extra:
        assert report.summary[metric.name][0] == pytest.approx(PLAIN[metric.name](maps), abs=1e-6), metric.name


@pytest.mark.parametrize("normalizer", ["softmax1", "softpick", "polynomial", "entmax"])
def test_protocols_agree_with_a_plain_reading_where_rows_are_no_distributions(normalizer):
    scores = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(3)) * 2
    hidden = torch.ones(12, 12).triu(1).bool()
    weights = sinkscope.NORMALIZERS[normalizer](scores.masked_fill(hidden, -torch.inf))
    found = reduced(weights)
    maps = weights[:, None]
    for metric in (metric for name in PUBLISHED for metric in PROTOCOLS[name].metrics):
        if metric.name == "gu2025_mass" and normalizer == "softpick":
            continue  # rows of zeros: by hand below
        sums, counts = (side.sum(0) for side in metric.function(found))
        assert float((sums / counts).mean()) == pytest.approx(PLAIN[metric.name](maps), abs=1e-6), metric.name


ROWS = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [0.2, -0.6, 0.1, 0.1]])
"""Four rows: the trivial one, an even one, one of zeros, and one that is negative in part."""


def test_the_first_row_counts_and_a_row_of_zeros_counts_as_nothing():
    total, count = first_column(reduced(ROWS[None, None]), shares=True)
    assert (float(total), float(count)) == (pytest.approx(1 + 0.5 + 0 + 0.2), 4)
    raw, _ = first_column(reduced(ROWS[None, None]), shares=False)
    assert float(raw) == pytest.approx(1 + 0.5 + 0 + 0.2)
    # Twice the weights are the same shares.
    doubled, _ = first_column(reduced(2 * ROWS[None, None]), shares=True)
    assert float(doubled) == pytest.approx(float(total))
    assert float(first_column(reduced(2 * ROWS[None, None]), shares=False)[0]) == pytest.approx(2 * float(raw))


def test_the_threshold_is_strict_and_for_each_sample():
    half = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # its mean over rows is exactly one half
    above = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    found = reduced(torch.stack([half, above])[:, None])
    exceeds, count = exceeding(found, shares=False, epsilon=0.5)
    assert exceeds[:, 0].tolist() == [0, 1]
    assert count[:, 0].tolist() == [1, 1]
    # A mean over samples before the threshold would have said 5/8 > 1/2: one sink, and not a half.
    assert float(exceeds.mean()) == 0.5


def test_a_row_that_cannot_see_the_first_token_gives_it_nothing_and_counts():
    seen = torch.ones(4, 4).tril().bool() & ~torch.ones(4, 4).tril(-2).bool()
    weights = torch.full((1, 1, 4, 4), 0.5) * seen
    weights[0, 0, 0, 0] = 1
    total, count = first_column(reduced(weights, visible=seen[None, None]), shares=True)
    assert (float(total), float(count)) == (1.5, 4)
    # Hidden keys of the lower triangle weigh 0: 3 of its 10 entries.
    zeros, entries = lower_triangle_zeros(reduced(weights, visible=seen[None, None]))
    assert (float(zeros), float(entries)) == (3, 10)


def test_a_learned_sink_is_part_of_the_whole_that_shares_are_of():
    weights = torch.tensor([[0.5, 0.0], [0.25, 0.25]])[None, None]
    total, _ = first_column(reduced(weights, sink=torch.full((1, 1, 1), 0.5)), shares=True)
    assert float(total) == pytest.approx(0.5 / 1.0 + 0.25 / 1.0)


def test_the_last_query_is_the_last_real_one():
    weights = torch.rand(2, 1, 4, 4).tril()
    keep = torch.tensor([[True] * 4, [True, True, True, False]])
    total, count = last_query(reduced(weights, asked(keep)))
    assert total[:, 0].tolist() == pytest.approx([float(weights[0, 0, 3, 0]), float(weights[1, 0, 2, 0])])
    assert count[:, 0].tolist() == [1, 1]


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 3), (2, 1)])
def test_padding_changes_no_figure(left, right):
    weights = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(7)).tril()
    padded = torch.nn.functional.pad(weights, (left, right, left, right))
    keep = torch.nn.functional.pad(real(1, 6), (left, right))
    seen = torch.ones(6, 6).tril().bool()[None, None]
    wider = torch.nn.functional.pad(seen, (left, right, left, right))
    for metric in (metric for name in PUBLISHED for metric in PROTOCOLS[name].metrics):
        alone = metric.function(reduced(weights, asked(real(1, 6)), visible=seen))
        among = metric.function(reduced(padded, asked(keep), visible=wider))
        for one, other in zip(alone, among, strict=True):
            torch.testing.assert_close(one, other, msg=metric.name)


def test_the_programs_own_numbers_are_defaults_and_a_papers_are_not():
    own = settled(PROTOCOLS[OWN], seq_len=128, windows=7, bos="never", epsilon=0.5, chat=True, queries=3)
    assert (own.seq_len, own.count, own.bos, own.epsilon) == (128, 7, "never", 0.5)
    assert (settled(PROTOCOLS[OWN]).count, settled(PROTOCOLS[OWN], windows="all").count) == (4, None)
    plain = settled(PROTOCOLS["gu2025"])
    assert (plain.seq_len, plain.count, plain.explicit, plain.epsilon, plain.bos) == (64, 100, True, 0.3, "auto")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"seq_len": 65}, "--seq-len 65"),
        ({"bos": "never"}, "--bos never"),
        ({"chat": True}, "--chat"),
        ({"queries": 8}, "--queries 8"),
    ],
)
def test_an_option_that_contradicts_a_protocol_is_refused(name, option, said):
    with pytest.raises(ProtocolError, match=f"^{said} contradicts {name}, which takes"):
        settled(PROTOCOLS[name], **option)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_threshold_contradicts_where_the_paper_has_one(name):
    if PROTOCOLS[name].epsilon is None:
        assert (settled(PROTOCOLS[name]).epsilon, settled(PROTOCOLS[name], epsilon=0.25).epsilon) == (0.3, 0.25)
    else:
        with pytest.raises(ProtocolError, match=f"^--epsilon 0.25 contradicts {name}, which takes"):
            settled(PROTOCOLS[name], epsilon=0.25)


def test_synthetic_tokens_are_without_bos_unless_that_is_said():
    card = PROTOCOLS["gu2025"]
    assert settled(card, synthetic=True).bos == "never"
    assert settled(card, synthetic=True, bos="always").bos == "always"
    assert settled(card).bos == "auto"


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_a_protocol_takes_anyway_is_no_contradiction(name):
    card = PROTOCOLS[name]
    same = settled(card, seq_len=card.seq_len, bos=card.bos, epsilon=card.epsilon)
    assert same == settled(card)
    assert settled(card, windows=3).count == 3
    some = settled(card, windows="all")
    assert (some.count, some.explicit) == (card.windows, False)


def test_all_is_every_protocol_once_and_an_unknown_name_is_told():
    assert chosen(None) == chosen([]) == [PROTOCOLS[OWN]]
    named = [card.name for card in chosen(["gu2025", "all"])]
    assert named == ["gu2025", *(name for name in PROTOCOLS if name != "gu2025")]
    assert chosen(PROTOCOLS["gu2025"]) == chosen("gu2025") == chosen(["gu2025", PROTOCOLS["gu2025"]])
    with pytest.raises(UnknownNameError, match="did you mean 'gu2025'"):
        chosen(["gu2024"])


@pytest.mark.parametrize("card", PROTOCOLS.values(), ids=lambda card: card.name)
def test_every_protocol_states_its_conventions_and_names_its_columns(card):
    assert card.conventions
    assert all(sentence.endswith(".") for sentence in card.conventions)
    assert {metric.name for metric in card.metrics} <= set(card.figures) or not card.published
    assert all(figure.startswith(card.name) for figure in card.figures) == card.published
    assert set(card.thresholds) == {figure for figure in card.figures if "rate" in figure}


@pytest.fixture(scope="module")
def long_llama():
    return tiny("llama", max_position_embeddings=5000, num_hidden_layers=2)


def test_several_protocols_stand_below_each_other(long_llama, tokenizer):
    report = sinkscope.measure(long_llama, tokenizer, protocol=["gu2025", "barbero2025"], windows=3)
    assert report.protocols["figure"].tolist() == ["gu2025_sink_rate", "gu2025_mass", "barbero2025_sink_rate"]
    assert report.protocols["windows"].tolist() == [3, 3, 3]
    assert report.heads.groupby("protocol")["epsilon"].first().to_dict() == {"gu2025": 0.3, "barbero2025": 0.8}
    assert len(report.first().heads) == len(report.by("barbero2025").heads) == len(report.heads) / 2
    assert report.by("barbero2025").metadata["protocol"]["name"] == "barbero2025"
    alone = sinkscope.measure(long_llama, tokenizer, protocol="gu2025", windows=3)
    assert alone.protocols["value"].tolist() == pytest.approx(report.by("gu2025").protocols["value"].tolist(), abs=1e-6)
    json.dumps(report.metadata)


def test_of_all_protocols_those_that_the_model_has_no_room_for_are_named(tokenizer):
    model = tiny("gpt2", n_positions=128, max_position_embeddings=128)
    report = sinkscope.measure(model, tokenizer, protocol="all", windows=2)
    assert set(report.metadata["not_followed"]) == {"softpick2025", "streamingllm2024"}
    assert "128 positions" in report.metadata["not_followed"]["streamingllm2024"]
    # The program's own windows are a default, no paper's: they become as long as the model can take.
    assert report.by(OWN).metadata["text"]["seq_len"] == 128
    with pytest.raises(TextError, match=r"tokens, but .* the 128 positions of .*: give more"):
        sinkscope.measure(model, tokenizer, protocol="streamingllm2024", windows=1)


def test_a_text_that_is_too_short_for_a_protocol_is_refused_unless_windows_are_named(long_llama, tokenizer):
    text = "One two three. " * 20
    with pytest.raises(TextError, match="100"):
        sinkscope.measure(long_llama, tokenizer, text, protocol="gu2025")
    report = sinkscope.measure(long_llama, tokenizer, text, protocol="gu2025", windows="all")
    assert report.metadata["protocol"]["samples"] == report.protocols["windows"][0] == 300 // 64
    assert "4 samples" in report.metadata["protocol"]["conventions"][-1]


def test_a_sample_shorter_than_the_protocol_takes_is_never_measured(long_llama, tokenizer):
    text = "A text that is long enough for one sample at least, and for some more. " * 2
    with pytest.raises(TextError, match="gu2025 takes 100 samples of 64 tokens, but"):
        sinkscope.measure(long_llama, tokenizer, ["hi", "yo"] * 50, protocol="gu2025")
    report = sinkscope.measure(long_llama, tokenizer, ["hi", text, "yo"], protocol="gu2025", windows="all")
    assert set(report.tokens["document"]) == {"text 2"}
    assert report.tokens.groupby("window").size().tolist() == [64, 64]
    ids, mask = torch.randint(3, 300, (2, 64)), torch.ones(2, 64)
    mask[1, 20:] = 0
    with pytest.raises(TextError, match="but one of the text's has 20: give more or longer texts"):
        sinkscope.measure(long_llama, input_ids=ids, attention_mask=mask, protocol="gu2025")


def test_each_figure_has_its_own_threshold_or_none(long_llama, tokenizer):
    report = sinkscope.measure(long_llama, tokenizer, protocol="all", windows=1)
    found = report.protocols.set_index("figure")["epsilon"]
    assert (found["softpick2025_sink_rate_02"], found["softpick2025_sink_rate"]) == (0.2, 0.3)
    assert found[["gu2025_mass", "softpick2025_sparsity", "streamingllm2024_mass", "first_mass"]].isna().all()
    own = sinkscope.measure(long_llama, tokenizer, epsilon=0.1, seq_len=32, windows=1)
    assert own.protocols.set_index("figure")["epsilon"]["sink_rate"] == 0.1


def test_what_only_one_of_several_protocols_measures_is_said(long_llama, tokenizer):
    report = sinkscope.measure(long_llama, tokenizer, protocol=["gu2025", "barbero2025"], windows=2)
    assert report.summary["barbero2025_sink_rate"].isna().tolist() == [True, False]
    assert report.metadata["undefined"]["barbero2025_sink_rate"] == "only barbero2025 measures it"


def test_a_map_of_several_protocols_is_that_of_the_first(long_llama, tokenizer, tmp_path):
    several = sinkscope.measure(long_llama, tokenizer, protocol=["gu2025", "barbero2025"], windows=2)
    export(several, tmp_path / "several.svg")
    export(several.by("gu2025"), tmp_path / "first.svg")
    assert (tmp_path / "several.svg").read_bytes() == (tmp_path / "first.svg").read_bytes()


def test_token_ids_come_with_their_own_length_and_number(long_llama, ids):
    with pytest.raises(ValueError, match="got seq_len and bos beside them"):
        sinkscope.measure(long_llama, input_ids=ids, seq_len=7, bos="always")
    report = sinkscope.measure(long_llama, input_ids=torch.cat([ids, ids, ids], dim=1)[:, :64], protocol="all")
    assert set(report.protocols["protocol"]) == {OWN, "gu2025", "barbero2025"}
    assert set(report.metadata["not_followed"]) == {"softpick2025", "streamingllm2024"}


def test_before_and_after_are_compared_under_a_protocol(long_llama, tokenizer):
    report = sinkscope.compare(long_llama, tokenizer, protocol="gu2025", windows=3, normalizers=["softmax1"])
    values = report.protocols.set_index(["normalizer", "figure"])["value"]
    change = report.summary.iloc[1]["gu2025_mass_delta"]
    assert change == pytest.approx(values["softmax1", "gu2025_mass"] - values["softmax", "gu2025_mass"])


def test_token_ids_have_to_have_the_length_that_the_protocol_takes(long_llama, ids):
    with pytest.raises(ProtocolError, match="--seq-len 24 contradicts gu2025, which takes 64"):
        sinkscope.measure(long_llama, input_ids=ids, protocol="gu2025")


def test_a_report_of_several_protocols_is_read_back_equal(long_llama, tokenizer, tmp_path):
    report = sinkscope.measure(long_llama, tokenizer, protocol=["sinkscope", "gu2025"], windows=2)
    report.save(tmp_path / "run.json")
    loaded = sinkscope.Report.load(tmp_path / "run.json")
    pd.testing.assert_frame_equal(loaded.protocols, report.protocols, check_exact=True)
    pd.testing.assert_frame_equal(loaded.documents, report.documents, check_exact=True)
