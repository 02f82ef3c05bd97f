"""The screen is readable at every width, in a pipe, without colour and in ASCII."""

import dataclasses
import io
import math

import numpy as np
import pytest
from fixtures_cli import report_of, tokens_of
from rich.cells import cell_len

from sinkscope.cli.columns import columns, entries
from sinkscope.cli.console import _console
from sinkscope.cli.heat import LEVELS, SHADES, heat
from sinkscope.cli.screen import show

SHARES = np.linspace(0, 1, 4 * 9).reshape(4, 9).tolist()
NASTY = ["[/INST] [bold]x[/] :smile:", "\x1b[31m\x07\x08", "[link=file:///etc]a", "你好" * 30, "\u202e", "x" * 200]


def _screen(report, monkeypatch, *, width=80, encoding="utf-8", **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment | {"COLUMNS": str(width)}).items():
        monkeypatch.setenv(name, value)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    show(report, _console(stream))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [30, 40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
@pytest.mark.parametrize("heads", [1, 9, 64, 128])
def test_no_line_is_wider_than_the_screen(width, encoding, heads, monkeypatch):
    report = report_of(np.linspace(0, 1, 2 * heads).reshape(2, heads).tolist(), name="owner/a-model-with-a-long-name")
    report = dataclasses.replace(report, tokens=tokens_of(NASTY))
    lines = _screen(report, monkeypatch, width=width, encoding=encoding).splitlines()
    # What stands in for a sign in ASCII can be longer than the sign: ± in a sentence, never in a table.
    slack = 0 if encoding == "utf-8" else 6
    assert max(cell_len(line.rstrip()) for line in lines) <= width + slack


@pytest.mark.parametrize("width", [30, 40, 80])
def test_no_number_loses_digits(width, monkeypatch):
    shown = _screen(report_of(SHARES), monkeypatch, width=width)
    assert "…" not in shown
    for row in SHARES:
        assert f"{np.mean(row):.3f}" in shown
    assert "12.50" in shown


def test_a_narrow_screen_has_fewer_columns_and_whole_ones(monkeypatch):
    wide, narrow = (_screen(report_of(SHARES), monkeypatch, width=width) for width in (80, 30))
    assert "|v0|/|v|" in wide
    assert "|v0|/|v|" not in [name for line in narrow.splitlines() if "layer" in line for name in line.split()]
    assert "Not shown in 30 columns: mass, entropy, |v0|/|v|, type" in " ".join(narrow.split())
    assert "layer  head  share     se" in narrow


def test_tokens_are_shown_literally_and_cannot_command_a_terminal(monkeypatch):
    report = dataclasses.replace(report_of(SHARES, name="[/x] [red]\x1b[31m"), tokens=tokens_of(NASTY))
    shown = _screen(report, monkeypatch, width=200)
    assert "[/INST]␣[bold]x[/]␣:smile:" in shown
    assert r"\x1b[31m\x07\x08" in shown
    assert r"[/x] [red]\x1b[31m" in shown
    assert all(each.isprintable() for line in shown.splitlines() for each in line)


def test_ascii_has_signs_of_its_own(monkeypatch):
    shown = _screen(report_of(SHARES), monkeypatch, encoding="ascii")
    assert '"The"' in shown
    assert "+/-" in shown
    assert "@@" in shown
    assert "\\u" not in shown


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
        ({"FORCE_COLOR": "1", "TERM": "xterm-256color"}, True),
    ],
)
def test_colour_is_as_the_environment_says(environment, coloured, monkeypatch):
    assert ("\x1b" in _screen(report_of(SHARES), monkeypatch, **environment)) == coloured


@pytest.mark.parametrize(("columns_", "width"), [("0", 80), ("abc", 80), ("-5", 80), ("10", 30), ("120", 120)])
def test_a_senseless_width_is_not_believed(columns_, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns_)
    assert _console(io.StringIO()).width == width


def test_nothing_ranked_is_said(monkeypatch):
    report = report_of(SHARES)
    report = dataclasses.replace(report, tokens=report.tokens.assign(receivers=3))
    assert "none is seen by 32 later queries" in _screen(report, monkeypatch)
    assert "not measured" not in _screen(report, monkeypatch)


def test_received_mass_that_was_not_asked_for_is_not_called_unranked(monkeypatch):
    report = report_of(SHARES, not_measured={"received": "the mass that each token receives was not asked for"})
    report = dataclasses.replace(report, tokens=report.tokens.assign(receivers=0, received=math.nan))
    said = _screen(report, monkeypatch)
    assert "not measured: --only leaves received mass out" in said
    assert "none is seen by" not in said


@pytest.mark.parametrize("layers", [1, 126])
@pytest.mark.parametrize("heads", [1, 64, 128])
def test_a_map_has_a_line_a_layer_and_a_cell_for_every_head(layers, heads):
    key, *lines = heat(report_of([[0.9] * heads] * layers), 80, ascii_only=False)
    assert len(lines) == layers
    (cells,) = {line.plain.count("█") for line in lines}
    assert {1: 2, 64: 32, 128: 42}[heads] <= cells <= max(heads, 2)
    assert ("largest of" in key.plain) == (cells < heads)
    assert max(len(line.plain) for line in lines) <= 80


def test_a_cell_of_several_heads_is_the_largest_of_them():
    shares = [0.0] * 128
    shares[50] = 0.95
    _, line = heat(report_of([shares]), 80, ascii_only=False)
    assert line.plain.count("█") == 1


def test_shades_give_way_at_their_levels():
    edges = [0.0, *(edge for level in LEVELS for edge in (level, level + 1e-9))]
    _, line = heat(report_of([edges]), 80, ascii_only=False)
    expected = SHADES[0] * 2 + "".join(SHADES[index : index + 2] for index in range(len(LEVELS)))
    assert line.plain.removeprefix("layer 0  ")[: 2 * len(edges) : 2] == expected[1:]


def test_ragged_heads_are_not_padded_with_zeros():
    _, *lines = heat(report_of([[0.9] * 2, [0.9] * 6, [math.nan, 0.5]]), 80, ascii_only=False)
    assert [line.plain for line in lines] == [
        "layer 0  ████          0.900",
        "layer 1  ████████████  0.900",
        "layer 2  ??▒▒          0.500",
    ]


def test_layers_of_several_kinds_and_calls_are_told_apart():
    report = report_of([[0.9], [0.1]])
    report.layers["layer_type"] = ["sliding_attention", "full_attention"]
    report.layers["window_length"] = [16.0, math.nan]
    _, *lines = heat(report, 80, ascii_only=False)
    assert [line.plain.split("  ")[-1] for line in lines] == ["0.900 sliding 16", "0.100 full"]
    for table in (report.heads, report.layers):
        table["call"], table["layer"] = table["layer"], 5
    _, *lines = heat(report, 80, ascii_only=False)
    assert [line.plain[:9] for line in lines] == ["layer 5.0", "layer 5.1"]


def _printed(function, width, *arguments):
    stream = io.StringIO()
    console = _console(stream)
    console.width = width
    function(console, *arguments)
    return stream.getvalue().splitlines()


def test_columns_that_do_not_fit_go_from_the_right():
    rows = [["1", "2.000", "text"]]
    assert _printed(columns, 20, ["a", "b", "c"], rows, frozenset("c"))[1].split() == rows[0]
    assert _printed(columns, 9, ["a", "b", "c"], rows, frozenset("c"))[1].split() == rows[0][:2]
    assert _printed(columns, 3, ["a", "b", "c"], rows, frozenset("c"))[1].split() == rows[0][:1]


LABELS = ["softmax", "sink_logit:value=2.5,sink_bias=-0.3,window=64,keep_sinks,initial=4"]


@pytest.mark.parametrize("width", range(30, 121, 6))
def test_a_column_is_shown_whole_or_named_with_the_width_that_shows_it(width):
    header = ["normalizer", "perplexity", "KL", "top-1", "row mass", "entropy", "zeros"]
    rows = [[label, "1,234.56", "0.123", "0.999", "1.000", "3.141", "0.500"] for label in LABELS]
    lines = _printed(columns, width, header, rows, frozenset({"normalizer"}))
    said = " ".join(" ".join(lines).split())
    missing = [index for index, name in enumerate(header) if name not in lines[0]]
    assert all(rows[0][index] in said for index in set(range(len(header))) - set(missing))
    assert max(cell_len(line.rstrip()) for line in lines) <= width
    folded = "".join(line[: width - 5].split(" ")[0] for line in lines[2:])
    assert folded.startswith(LABELS[1]) or width < 60
    if missing:
        note = f"Not shown in {width} columns: {', '.join(header[index] for index in missing)} (COLUMNS="
        assert note in said
        needed = int(said.partition("(COLUMNS=")[2].partition(" ")[0])
        assert "Not shown" not in " ".join(_printed(columns, needed, header, rows, frozenset({"normalizer"})))
        assert "Not shown" in " ".join(_printed(columns, needed - 1, header, rows, frozenset({"normalizer"})))
    else:
        assert "Not shown" not in said


def test_a_long_label_costs_no_column_at_eighty():
    header = ["normalizer", "perplexity", "KL", "top-1", "row mass", "entropy", "zeros"]
    rows = [[label, "1,234.56", "0.123", "0.999", "1.000", "3.141", "0.500"] for label in LABELS]
    assert _printed(columns, 80, header, rows, frozenset({"normalizer"}))[0].split("  ")[-1] == "zeros"


@pytest.mark.parametrize("width", [30, 50, 80])
def test_entries_keep_every_word_whole(width):
    rows = [("name", "some words that are many more than one line can hold, so they go on"), ("longer:a=1,b=2", "few")]
    shown = " ".join(_printed(entries, width, rows)).split()
    assert shown == " ".join(f"{name} {text}" for name, text in rows).split()
