"""What has to hold whatever is measured: texts, windows, models, normalizers and options are drawn at random.

`SINKSCOPE_FUZZ=1000` tries as many new examples of each law; without it a few are tried, the same in every run.
"""

import contextlib
import io
import json
import math
import unicodedata

import fuzzing
import numpy as np
import pandas as pd
import pytest
import torch
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st
from soundness import difference, logits, state

import sinkscope
from sinkscope.cli import compared, screen
from sinkscope.cli.console import _console
from sinkscope.metrics import METRICS
from sinkscope.normalizers import resolve
from sinkscope.report.verdict import verdict

pytestmark = pytest.mark.slow

PARTITION = ("first", "special", "punctuation", "newline", "other")
EXACT = 1e-5
"""Of single precision after a few layers."""


def compare(model, ids, swap, **options):
    """A comparison of plain softmax with one swap."""
    normalizer, modifier, places = swap
    return sinkscope.compare(model, input_ids=ids, normalizers=[normalizer], modifier=modifier, **places, **options)


def assert_in_range(table, length, slack=1e-4):
    """Hold every figure against the bounds on its card, and those that the number of keys sets."""
    bounds = {name: (card.low, card.high) for name, card in METRICS.items()}
    bounds |= {"effective_support": (1, length), "entropy": (0, math.log(length)), "exact_zeros": (0, 1)}
    for column in table:
        name = next((part for part in (column, column.partition("_")[2]) if part in bounds), None)
        if name is None:
            continue
        low, high = bounds[name]
        figures = table[column].dropna()
        assert low is None or (figures >= low - slack).all(), (column, figures.min())
        assert high is None or (figures <= high * (1 + slack) + slack).all(), (column, figures.max())


def assert_shared_out(heads, learned):
    """The classes that partition the keys account for every row, and for all of its weight."""
    parts = [name for name in PARTITION if f"{name}_mass" in heads]
    mass = sum(heads[f"{name}_mass"].fillna(0) * heads[f"{name}_queries"] for name in parts)
    whole = (heads["row_mass"] * heads["queries"]).fillna(0)
    np.testing.assert_allclose(mass, whole, rtol=1e-4, atol=1e-4 * (1 + whole.abs().max()))
    full = heads[heads["zero_rows"] == 0]
    share = sum(full[f"{name}_share"].fillna(0) * full[f"{name}_queries"] for name in parts)
    if learned:
        assert (share <= full["queries"] * (1 + 1e-4)).all()
    else:
        np.testing.assert_allclose(share, full["queries"], rtol=1e-4)


def assert_declared_sums(heads, card):
    """Rows add up to what the normalizer's card says, learned sinks included."""
    total = heads["row_mass"] + heads["sink_logit_mass"].fillna(0)
    if card.row_sum == "one":
        np.testing.assert_allclose(total.dropna(), 1, atol=1e-4)
    if card.row_sum in {"one or zero", "at most one"}:
        assert (total.dropna() <= 1 + 1e-4).all()
    if card.row_sum == "one or zero":
        np.testing.assert_allclose((total + heads["zero_rows"]).dropna(), 1, atol=1e-4)


def assert_nothing_counted_is_null(heads):
    """A figure is null exactly where there was no row for it."""
    assert (heads["row_mass"].notna() == (heads["queries"] > 0)).all()
    whole = heads[heads["zero_rows"] == 0]
    for name in (column.removesuffix("_queries") for column in heads if column.endswith("_queries")):
        seen = heads[f"{name}_queries"] > 0
        assert (heads[f"{name}_mass"].notna() == seen).all(), name
        assert (whole[f"{name}_share"].notna() == seen[whole.index]).all(), name
    if "entropy" in heads:
        # Where a learned sink leaves next to nothing, Σw² is 0 before Σw is, and such rows have no shape.
        weighty = heads[~(heads["row_mass"].abs() < 1e-12)]
        assert (weighty["entropy"].notna() == ((weighty["queries"] > 0) & (weighty["zero_rows"] < 1))).all()


@given(st.tuples(fuzzing.architectures(), fuzzing.dtypes()), fuzzing.windows(), fuzzing.swaps(), fuzzing.options())
@fuzzed
def test_figures_keep_to_their_ranges_and_classes_share_out_every_row(tokenizer, kind, windows, swap, options):
    model = fuzzing.model(*kind)
    report = compare(model, windows.ids, swap, tokenizer=tokenizer, **options)
    assert not [key for key, reason in report.metadata["undefined"].items() if reason.startswith("the model's output")]
    for table in (report.heads, report.layers, report.summary):
        for _, rows in table.groupby("normalizer"):
            assert_in_range(rows, windows.length)
    for (name, heads), card in zip(
        report.heads.groupby("normalizer", sort=False), map(resolve, ("softmax", swap[0])), strict=True
    ):
        assert heads["first_queries"].max() <= heads["queries"].max(), name
        assert_nothing_counted_is_null(heads)
        if "classes" not in options:
            assert_shared_out(heads, learned=kind[0] == "gpt_oss")
        if not swap[2] or card.row_sum == "one":
            assert_declared_sums(heads, card)


def figures(report):
    """Everything that is measured of heads, layers and the model, as numbers by column."""
    tables = (report.heads, report.layers, report.summary)
    return {
        (index, name): table[name].to_numpy()
        for index, table in enumerate(tables)
        for name in table.select_dtypes("number")
    }


def assert_same(one, other, *, rtol, atol, without=()):
    """Hold two reports against each other, figure by figure."""
    theirs = figures(other)
    for key, values in figures(one).items():
        if not key[1].endswith(without):
            np.testing.assert_allclose(values, theirs[key], rtol=rtol, atol=atol, err_msg=str(key))


@given(
    fuzzing.architectures(),
    fuzzing.windows(most=4),
    fuzzing.options(),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
@fuzzed
def test_neither_the_order_of_windows_nor_the_size_of_batches_changes_a_figure(
    architecture, windows, options, size, random
):
    model, ids, order = fuzzing.model(architecture), windows.ids, list(range(windows.count))
    random.shuffle(order)
    report = sinkscope.measure(model, input_ids=ids, **options)
    moved = sinkscope.measure(model, input_ids=ids[order], **options | {"batch_size": size})
    # The model itself rounds otherwise in other batches.
    assert_same(moved, report, rtol=EXACT, atol=1e-6, without=("largest_window",))
    received = report.tokens.groupby("window")["received"].apply(list)
    for place, window in enumerate(order):
        again = moved.tokens[moved.tokens["window"] == place]["received"]
        np.testing.assert_allclose(again, received[window], rtol=1e-5, atol=1e-6)


@given(fuzzing.architectures(), fuzzing.windows(most=2), fuzzing.options(), st.integers(2, 3))
@fuzzed
def test_windows_that_come_twice_give_the_same_figures(architecture, windows, options, times):
    model = fuzzing.model(architecture)
    once = sinkscope.measure(model, input_ids=windows.ids, **options)
    often = sinkscope.measure(model, input_ids=windows.ids.repeat(times, 1), **options)
    counted = ("queries", "_se", "windows", "tokens_scored")
    assert_same(often, once, rtol=1e-6, atol=1e-6, without=counted)


COUNTED = dict.fromkeys(("row_mass", "entropy", "effective_support", "output_norm"), "queries")
COUNTED |= {"first_share": "first_queries", "other_mass": "other_queries"}
"""Means over rows, and the column that says over how many."""


@given(
    fuzzing.architectures(),
    fuzzing.windows(),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.sampled_from(["auto", "dense"]),
)
@fuzzed
def test_padding_on_either_side_changes_nothing(architecture, windows, room, attention):
    model, rows = fuzzing.model(architecture), windows.ids.unbind()
    rows = [row[: max(2, len(row) - gap)] for row, gap in zip(rows, room, strict=False)]
    length = max(map(len, rows)) + room[-1]
    reports = []
    for side in ("left", "right"):
        gaps = [(length - len(row), 0) if side == "left" else (0, length - len(row)) for row in rows]
        ids, keep = (
            torch.stack([torch.nn.functional.pad(each, gap) for each, gap in zip(made, gaps, strict=True)])
            for made in (rows, [torch.ones_like(row, dtype=torch.bool) for row in rows])
        )
        reports.append(sinkscope.measure(model, input_ids=ids, attention_mask=keep, attention=attention))
    alone = [sinkscope.measure(model, input_ids=row[None], attention=attention) for row in rows]
    received = np.concatenate([each.tokens["received"] for each in alone])
    for report in reports:
        np.testing.assert_allclose(report.tokens["received"], received, atol=EXACT)
        for name, queries in COUNTED.items():
            total = sum((each.heads[name] * each.heads[queries]).fillna(0) for each in alone)
            ours = (report.heads[name] * report.heads[queries]).fillna(0)
            np.testing.assert_allclose(ours, total, rtol=1e-4, atol=1e-4, err_msg=name)
        nll = sum(each.summary["nll"][0] * each.summary["tokens_scored"][0] for each in alone)
        assert report.summary["nll"][0] * report.summary["tokens_scored"][0] == pytest.approx(nll, rel=1e-4)


class Stopped(Exception):  # noqa: N818 - no error of the program's
    """What an interrupted normalizer raises."""


def stopping(calls):
    """Softmax that stops after so many calls."""
    left = iter(range(calls))

    def interrupted(scores):
        if next(left, None) is None:
            raise Stopped
        return scores.softmax(-1)

    return interrupted


USES = ("measure", "compare", "patched", "compare, stopped", "patched, stopped")


def use(name, model, ids, swap, options):
    """Do to a model what the name says."""
    if name == "measure":
        sinkscope.measure(model, input_ids=ids, **options)
    elif name.startswith("compare"):
        compare(model, ids, swap, **options)
    else:
        swapped(model, ids, swap)


@given(
    st.tuples(fuzzing.architectures(), fuzzing.dtypes()),
    fuzzing.windows(),
    fuzzing.swaps(),
    fuzzing.options(),
    st.tuples(st.sampled_from(USES), st.integers(0, 12)),
)
@fuzzed
def test_the_model_is_as_it_was_whatever_was_done_to_it(kind, windows, swap, options, done):
    model, keep = fuzzing.model(*kind), torch.ones(windows.count, windows.length, dtype=torch.bool)
    before, found = logits(model, ids=windows.ids, keep=keep), state(model)
    name, calls = done
    stopped = name.endswith("stopped")
    with contextlib.suppress(Stopped):
        use(name, model, windows.ids, (stopping(calls), *swap[1:]) if stopped else swap, options)
    assert torch.equal(logits(model, ids=windows.ids, keep=keep), before)
    assert state(model) == found


def swapped(model, ids, swap):
    """The logits under a swap."""
    normalizer, modifier, places = swap
    with sinkscope.patched(model, normalizer, modifier=modifier, **places):
        return logits(model, ids=ids, keep=torch.ones_like(ids).bool())


@given(fuzzing.architectures(), fuzzing.windows(), fuzzing.swaps(), st.integers(1, 255))
@fuzzed
def test_no_swap_lets_a_token_see_a_later_one(architecture, windows, swap, step):
    model, ids = fuzzing.model(architecture), windows.ids
    other = ids.clone()
    other[:, -1] = (other[:, -1] + step) % fuzzing.IDS
    before, after = (swapped(model, each, swap)[:, :-1] for each in (ids, other))
    assert before.isfinite().all()
    assert difference(after, before) < EXACT


def controls(text):
    """What a terminal would obey."""
    return [sign for sign in text if unicodedata.category(sign) in {"Cc", "Cs"} and sign != "\n"]


def printed(show, report, encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    show(report, _console(stream))
    stream.flush()
    return raw.getvalue().decode(encoding)


def refuse(constant):
    pytest.fail(f"{constant} is not JSON")


def assert_written_and_read(report, folder):
    json.loads(report.to_json(), parse_constant=refuse)
    report.save(folder / "run.json")
    loaded = sinkscope.Report.load(folder / "run.json")
    assert loaded.metadata == json.loads(json.dumps(report.metadata))
    for name, table in report.tables().items():
        pd.testing.assert_frame_equal(loaded.tables()[name], table, check_exact=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# A number of windows is a demand; any text of two tokens gives one window.
CUTS = st.fixed_dictionaries(
    {"seq_len": st.integers(3, fuzzing.LONGEST), "windows": st.sampled_from([1, None])},
    optional={"bos": st.sampled_from(["always", "never"])},
)
LONGER = fuzzing.texts().map(lambda text: text * 9)
TEXTS = st.lists(fuzzing.texts() | LONGER, min_size=1, max_size=3)


@given(st.data(), TEXTS, fuzzing.architectures())
@fuzzed
def test_any_text_is_measured_shown_and_kept(tokenizer, folder, data, texts, architecture):
    model, how = fuzzing.model(architecture), data.draw(CUTS) | data.draw(fuzzing.options())
    report = sinkscope.measure(model, tokenizer, texts, **how)
    assert_written_and_read(report, folder)
    assert not controls("".join(verdict(report)))
    assert not controls(printed(screen.show, report, data.draw(st.sampled_from(["utf-8", "ascii", "cp1252"]))))


@given(st.data(), TEXTS, fuzzing.architectures())
@fuzzed
def test_any_comparison_is_shown_and_kept(tokenizer, folder, data, texts, architecture):
    model, how = fuzzing.model(architecture), data.draw(CUTS) | data.draw(fuzzing.options())
    normalizer, modifier, places = data.draw(fuzzing.swaps())
    how |= {"normalizers": [normalizer], "modifier": modifier, "sweep": data.draw(st.booleans())} | places
    report = sinkscope.compare(model, tokenizer, texts, **how)
    assert_written_and_read(report, folder)
    for each in map(report.under, report.summary["normalizer"]):
        assert not controls("".join(verdict(each)))
    assert not controls(printed(compared.show, report, "utf-8"))


@given(fuzzing.texts())
@fuzzed
def test_tokens_joined_are_the_text(tokenizer, text):
    # One byte to a token: a token of four characters that begins like an escape is one.
    report = sinkscope.measure(fuzzing.model("llama"), tokenizer, text, seq_len=512, only=[], bos="never")
    pieces = [
        bytes.fromhex(piece[2:]) if len(piece) == 4 and piece.startswith("\\x") else piece.encode()
        for piece in report.tokens["token"]
    ]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    assert b"".join(pieces) == lines.encode()
