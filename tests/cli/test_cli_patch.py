"""`sinkscope patch`: before and after, from the command line."""

import json
import math

import pytest
from fixtures_cli import QUICK, call

from sinkscope.report import Report


@pytest.fixture
def run(capfd, monkeypatch):
    return lambda *words: call(capfd, monkeypatch, *words)


def test_one_table_with_softmax_first_and_a_sentence_for_each(run, tiny_llama, tmp_path):
    path = tmp_path / "run.json"
    ended = run("patch", tiny_llama, "-n", "softmax1", "-n", "entmax:alpha=1.5", *QUICK, "-o", path, "-q")
    assert ended.status == 0, ended.err
    lines = ended.out.splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("normalizer"))
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == ["softmax", "softmax1", "entmax:alpha=1.5"]
    assert any(line.startswith("softmax1: Perplexity") for line in lines)
    assert any(line.startswith("entmax:alpha=1.5: Perplexity") for line in lines)
    report = Report.load(path)
    assert report.summary["normalizer"].tolist() == ["softmax", "softmax1", "entmax:alpha=1.5"]
    assert len(report.heads) == 3 * 16
    assert report.heads["first_mass_delta"].notna().sum() == 2 * 16
    assert not report.lse.empty


def test_options_of_the_swap_reach_it(run, tiny_llama):
    swap = ["-n", "softpick", "--layers", "0-1,3", "--heads", "2.1", "--sweep", "layers"]
    changes = ["--window", "9", "--keep-sinks", "--sink-bias", "-0.3", "--alibi", "--initial", "2"]
    ended = run("patch", tiny_llama, *swap, *changes, *QUICK, "--json", "-q")
    document = json.loads(ended.out)
    label = "softpick + sink_bias=-0.3,window=9,keep_sinks,initial=2,alibi"
    assert document["tables"]["summary"]["columns"]["normalizer"] == ["softmax", label]
    modules = document["metadata"]["comparison"]["normalizers"][label]["modules"]
    assert list(modules.values()) == ["all heads", "all heads", [1], "all heads"]
    assert document["tables"]["sweep"]["columns"]["layer"] == [0, 1, 2, 3]


def test_a_change_of_the_scores_alone_keeps_softmax(run, tiny_llama):
    ended = run("patch", tiny_llama, "--sink-bias", "-inf", "--initial", "1", *QUICK, "--json", "-q")
    columns = json.loads(ended.out)["tables"]["summary"]["columns"]
    assert columns["normalizer"] == ["softmax", "softmax + sink_bias=-inf,initial=1"]
    assert columns["first_mass"][1] is None
    assert columns["row_mass"][1] == pytest.approx(1)


def test_initial_auto_grows_with_the_window(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "softmax1", "--initial", "auto", *QUICK, "--json", "-q")
    assert json.loads(ended.out)["metadata"]["initial"] == 4


def test_the_identity_is_told(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "softmax", *QUICK, "-q")
    assert "Check passed: sinkscope's softmax reproduces the model's output" in ended.out
    assert "softmax (identity): Perplexity unchanged" in ended.out


def test_a_comparison_shows_what_changed_by_layer(run, tiny_llama, tmp_path):
    ended = run("patch", tiny_llama, "-n", "softmax1", "--window", "8", *QUICK, "-q", "-o", tmp_path / "run.json")
    assert ended.status == 0
    table = ended.out.partition("First token's share by layer")[2].partition("In words")[0].splitlines()
    layers = Report.load(tmp_path / "run.json").layers
    after = layers[layers["normalizer"] != "softmax"].set_index("layer")
    for line in table[2:6]:
        number, before, _, now = line.split()
        row = after.loc[int(number)]
        assert (before, now) == (f"{row['first_share_before']:.3f}", f"{row['first_share']:.3f}")
    assert "Queries that no longer see the first token" in ended.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give a --normalizer"),
        (["-n", "softmax1", "--keep-sinks"], "--window"),
        (["-n", "softmax1", "--layers", "4-x"], "neither a layer nor a range"),
        (["-n", "softmax1", "--layers", "5-4"], "ends before it begins"),
        (["-n", "softmax1", "--heads", "3"], "write layer.head"),
        (["-n", "softmax1", "--sweep", "heads"], "layers"),
        (["-n", "softmax1", "--window", "0"], "--window"),
        (["--sink-bias", "inf"], "below infinity"),
        (["--sink-bias", "nan"], "below infinity"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(words, reason, run):
    ended = run("patch", "no/such/model/at/all", *words)
    assert ended.status == 2
    assert reason in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("softpik", "'softpick'"),
        ("entmax:alfa=1.5", "'alpha'"),
        ("entmax:alpha=0.5", "from 1 to 10"),
        ("entmax:alpha=nan", "from 1 to 10"),
        ("no_such_module:f", "no_such_module"),
    ],
)
def test_an_unknown_normalizer_is_one_line_before_a_model_is_loaded(spec, reason, run, tiny_llama, monkeypatch):
    monkeypatch.setattr("sinkscope.models.loading.load", None)
    ended = run("patch", tiny_llama, "-n", spec, "-q")
    assert ended.status == 1
    assert reason in ended.err
    assert len(ended.err.splitlines()) == 1


def test_one_spec_in_two_spellings_is_one_and_a_bias_of_zero_is_a_change(run, tiny_llama):
    twice = ["-n", "temperature:t=2", "-n", "temperature:t=2.0"]
    ended = run("patch", tiny_llama, *twice, "--sink-bias", "0", *QUICK, "--json", "-q")
    names = json.loads(ended.out)["tables"]["summary"]["columns"]["normalizer"]
    assert names == ["softmax", "temperature:t=2 + sink_bias=0,initial=4"]


def test_a_sweep_that_breaks_the_model_is_still_shown(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "torch:log", "--sweep", "layers", *QUICK, "-q")
    assert ended.status == 0, ended.err
    assert "One layer at a time" in ended.out
    assert "no longer a number" in ended.out


def test_an_unknown_layer_is_one_line(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "softmax1", "--layers", "7", *QUICK, "-q")
    assert ended.status == 1
    assert "there are layers 0-3" in ended.err


def test_a_broken_model_prints_no_bare_infinity(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "polynomial:p=9", *QUICK, "--json", "-q")

    def refuse(constant):
        raise AssertionError(constant)

    columns = json.loads(ended.out, parse_constant=refuse)["tables"]["summary"]["columns"]
    assert math.isfinite(columns["perplexity"][0])
