"""Every format writes a whole file, and the tables read back equal."""

import dataclasses
import json
import math
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fixtures_cli import report_of, tokens_of
from matplotlib.image import imread

from sinkscope.errors import OutputError
from sinkscope.exporters import EXPORTERS, check, export, figure

SHARES = [[0.9, 0.1, -0.0], [0.2, math.nan, 0.5]]
NAMES = ["$$", "$a_b^c", r"\frac{", "你好", "👍", "\x1b[31m\x00\x07", "\u202eabc", "caf\udce9", "x" * 500, "", "a\nb"]


def _picture(report, folder):
    export(report, folder / "map.png")
    return imread(folder / "map.png")


@pytest.mark.parametrize("suffix", EXPORTERS)
def test_every_format_writes_a_file_that_is_recognised(suffix, tmp_path):
    path = tmp_path / f"run{suffix}"
    export(report_of(SHARES), path)
    starts = {".json": b"{", ".csv": b"normalizer,", ".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[suffix])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", EXPORTERS)
def test_a_run_gives_the_same_file_each_time_and_in_capitals(suffix, tmp_path):
    paths = [tmp_path / f"one{suffix}", tmp_path / f"two{suffix}", tmp_path / f"three{suffix.upper()}"]
    for path in paths:
        export(report_of(SHARES), path)
    assert len({path.read_bytes() for path in paths}) == 1


@pytest.mark.parametrize("name", ["heads", "layers", "summary", "positions"])
def test_a_csv_reads_back_equal(name, tmp_path):
    report = report_of(SHARES)
    export(report, tmp_path / f"{name}.csv")
    found = pd.read_csv(tmp_path / f"{name}.csv")
    pd.testing.assert_frame_equal(found, report.tables()[name], check_dtype=False)


def test_undefined_is_an_empty_cell_and_negative_numbers_stay_numbers(tmp_path):
    report = report_of(SHARES)
    report = dataclasses.replace(report, summary=pd.DataFrame({"a": [math.nan, -0.02], "b": [math.inf, 1e-9]}))
    export(report, tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text() == "a,b\n,inf\n-0.02,1e-09\n"


def test_token_text_is_one_line_and_no_formula(tmp_path):
    texts = ["=1+1", "+1", "-0.5", "@x", "\x1b[31m", "a,b", 'say "x"', "a\r\nb", " the", None]
    export(dataclasses.replace(report_of(SHARES), tokens=tokens_of(texts)), tmp_path / "tokens.csv")
    raw = (tmp_path / "tokens.csv").read_bytes()
    assert b"\x1b" not in raw
    assert raw.count(b"\n") == len(texts) + 1
    found = pd.read_csv(tmp_path / "tokens.csv", keep_default_na=False)["token"].tolist()
    shown = ["'=1+1", "'+1", "'-0.5", "'@x", r"\x1b[31m", "a,b", 'say␣"x"', r"a\r\nb", "␣the", ""]
    assert found == shown


@pytest.mark.parametrize("layers", [1, 4, 80])
@pytest.mark.parametrize("heads", [1, 12, 128])
def test_no_two_labels_of_a_figure_overlap(layers, heads):
    report = report_of(np.linspace(0, 1, layers * heads).reshape(layers, heads).tolist())
    with mpl.rc_context(figure.SETTINGS):
        drawn = figure._drawn(report)
        drawn.draw_without_rendering()
        for axes in drawn.axes:
            for side in (axes.xaxis, axes.yaxis):
                boxes = [label.get_window_extent() for label in side.get_ticklabels() if label.get_text()]
                assert not any(one.overlaps(other) for one, other in pairwise(boxes))
        title = drawn._suptitle.get_window_extent()
        assert not any(title.overlaps(axes.get_window_extent()) for axes in drawn.axes)
        assert title.x0 >= 0
        assert title.x1 <= drawn.bbox.x1


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_figure_is_drawn_whatever_the_model_is_called(name, tmp_path, capfd):
    image = _picture(report_of(SHARES, name=name), tmp_path)
    assert image.std() > 0.1
    assert capfd.readouterr().err == ""


def test_ragged_heads_leave_blanks_and_not_zeros():
    grid = figure._grid(report_of([[0.5, 0.5], [0.1, 0.2, 0.3, 0.4], [0.9]]))
    assert np.isnan(grid).tolist() == [[False, False, True, True], [False] * 4, [False, True, True, True]]


def test_rows_of_a_figure_bear_the_numbers_of_the_model():
    report = report_of(SHARES)
    report.heads["layer"] = report.heads["layer"] * 4 + 3
    report.layers["layer"] = report.layers["layer"] * 4 + 3
    assert [label.get_text() for label in figure._drawn(report).axes[0].get_yticklabels()] == ["3", "7"]


def test_a_layer_that_attends_twice_has_two_rows():
    report = report_of(SHARES)
    for table in (report.heads, report.layers):
        table["call"], table["layer"] = table["layer"], 0
    assert figure._labels(report) == ["0.0", "0.1"]
    assert figure._grid(report).shape == (2, 3)


def test_settings_of_the_user_neither_matter_nor_change(tmp_path):
    before = _picture(report_of(SHARES), tmp_path)
    with mpl.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "red"}):
        assert np.array_equal(_picture(report_of(SHARES), tmp_path), before)
        assert mpl.rcParams["font.size"] == 30


def test_a_figure_of_nothing_defined_is_still_drawn(tmp_path):
    assert _picture(report_of([[math.nan]]), tmp_path).std() > 0


@pytest.mark.parametrize(("name", "reason"), [("run", "no suffix"), ("run.xlsx", "'.xlsx'"), (".json", "no suffix")])
def test_a_suffix_that_names_no_format_is_refused_with_all_that_do(name, reason):
    with pytest.raises(OutputError, match=f"{reason}.*.json, .csv, .png, .svg, .pdf"):
        check(Path(name))


def test_a_format_whose_library_is_missing_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OutputError, match="needs matplotlib, which is not installed"):
        check(tmp_path / "map.png")


def test_json_holds_the_exact_token(tmp_path):
    texts = ["[/INST] [bold]x :smile: \x1b[31m", "\ufeff"]
    export(dataclasses.replace(report_of(SHARES), tokens=tokens_of(texts)), tmp_path / "run.json")
    stored = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert stored["tables"]["tokens"]["columns"]["token"] == texts
