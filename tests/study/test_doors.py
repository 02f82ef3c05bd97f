"""The command line and Python are two doors to one house: the same request gives the same report."""

import json

import pytest

import sinkscope
from sinkscope.errors import TextError

TEXT = "She said, “wait”; he did.\nThen — nothing: no word, no sound at all. Nobody answered.\n\n" * 12
ROWS = "".join(json.dumps({"body": f"{number}: {TEXT[: 40 * number]}"}) + "\n" for number in range(1, 9))

MEASURED = {
    "a file": (["--text", "text.txt", "--seq-len", "32"], {"files": "text.txt"}, {"seq_len": 32}),
    "files and a prompt": (
        ["--text", "text.txt", "--text", "other.txt", "--prompt", "Yes, no.", "--seq-len", "24", "--windows", "all"],
        {"files": ["text.txt", "other.txt"], "prompts": "Yes, no."},
        {"seq_len": 24, "windows": "all"},
    ),
    "a table": (
        ["--text", "rows.jsonl", "--column", "body", "--seq-len", "16", "--windows", "3", "--bos", "always"],
        {"files": "rows.jsonl", "column": "body"},
        {"seq_len": 16, "windows": 3, "bos": "always"},
    ),
    "the built-in sample": (
        ["--seq-len", "64", "--windows", "2", "--only", "masses"],
        {},
        {"seq_len": 64, "windows": 2, "only": "masses"},
    ),
    "sampled": (
        ["--text", "text.txt", "--queries", "9", "--seed", "4", "--seq-len", "48"],
        {"files": "text.txt"},
        {"queries": 9, "seed": 4, "seq_len": 48},
    ),
    "more than usual": (
        ["--text", "text.txt", "--seq-len", "32", "--also", "dormancy,lse", "--gradients", "--bootstrap", "100"],
        {"files": "text.txt"},
        {"seq_len": 32, "also": ["dormancy", "lse"], "gradients": True, "bootstrap": 100},
    ),
    "synthetic tokens": (
        ["--synthetic", "random", "--seq-len", "32", "--windows", "3", "--seed", "2"],
        None,
        {"synthetic": "random", "seq_len": 32, "windows": 3, "seed": 2},
    ),
    "two protocols": (
        ["--text", "text.txt", "--protocol", "gu2025", "--protocol", "barbero2025", "--windows", "2"],
        {"files": "text.txt"},
        {"protocol": ["gu2025", "barbero2025"], "windows": 2},
    ),
}
COMPARED = {
    "normalizers": (
        ["-n", "softmax1", "-n", "softpick", "--text", "text.txt", "--seq-len", "32", "--layers", "1-2"],
        {"normalizers": ["softmax1", "softpick"], "seq_len": 32, "layers": [1, 2]},
    ),
    "a window whose initial keys follow the length": (
        ["--window", "9", "--keep-sinks", "--initial", "auto", "--text", "text.txt", "--seq-len", "32"],
        {"modifier": sinkscope.Modifier(initial=None, window=9, keep_sinks=True), "initial": None, "seq_len": 32},
    ),
    "a sweep": (
        ["-n", "relu2", "--sweep", "layers", "--text", "text.txt", "--seq-len", "32", "--windows", "2"],
        {"normalizers": "relu2", "sweep": True, "seq_len": 32, "windows": 2},
    ),
}


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    (tmp_path / "other.txt").write_text(TEXT[::-1], "utf-8")
    (tmp_path / "rows.jsonl").write_text(ROWS, "utf-8")


@pytest.fixture(scope="module")
def loaded(tiny_llama):
    return sinkscope.load(str(tiny_llama))


def typed(run, words):
    ended = run(*words, "-o", "run.json", "--quiet")
    assert ended.status == 0, ended.err
    return sinkscope.Report.load("run.json")


def same(report, other):
    """Every table to the last digit, and all that is known of them but the words that were typed."""
    for name, table in report.tables().items():
        assert table.equals(other.tables()[name]), name
    left, right = (json.loads(json.dumps(each.metadata)) for each in (report, other))
    assert left["text"] == right["text"]
    assert left["undefined"] == right["undefined"]


@pytest.mark.parametrize("name", MEASURED)
def test_measuring_gives_the_same_report_at_both_doors(name, run, texts, loaded, tiny_llama):
    words, named, options = MEASURED[name]
    model, tokenizer = loaded
    text = None if named is None else sinkscope.read(**named)
    report = sinkscope.measure(model, tokenizer, text, **options)
    report.save("python.json")
    same(typed(run, ["measure", tiny_llama, *words]), sinkscope.Report.load("python.json"))


@pytest.mark.parametrize("name", COMPARED)
def test_comparing_gives_the_same_report_at_both_doors(name, run, texts, loaded, tiny_llama):
    words, options = COMPARED[name]
    report = sinkscope.compare(*loaded, sinkscope.read("text.txt"), **options)
    report.save("python.json")
    same(typed(run, ["patch", tiny_llama, *words]), sinkscope.Report.load("python.json"))


def test_too_few_windows_are_an_error_at_both_doors(run, texts, loaded, tiny_llama):
    with pytest.raises(TextError, match="the 9999 asked for") as refused:
        sinkscope.measure(*loaded, sinkscope.read("text.txt"), seq_len=32, windows=9999)
    ended = run("measure", tiny_llama, "--text", "text.txt", "--seq-len", "32", "--windows", "9999")
    assert ended.status == 1
    assert str(refused.value) in ended.err


def test_texts_and_documents_go_together(texts, loaded):
    report = sinkscope.measure(*loaded, [*sinkscope.read("other.txt"), "A text, as it is."], seq_len=16, windows="all")
    assert report.documents["document"].tolist() == ["other.txt", "text 2"]
