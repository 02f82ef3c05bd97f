"""The command line as a user meets it: what it prints, what it writes, what it refuses and how it ends."""

import io
import json
import shutil
import sys

import pytest
import torch
from fixtures_cli import QUICK, call, written
from safetensors.torch import load_file

from sinkscope.exporters import EXPORTERS
from sinkscope.metrics import METRICS
from sinkscope.normalizers import NORMALIZERS
from sinkscope.report import Report
from sinkscope.study import runs
from sinkscope.tokens import TOKEN_CLASSES


@pytest.fixture
def run(capfd, monkeypatch):
    """The command line as a function."""
    monkeypatch.delenv("SINKSCOPE_MODEL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: call(capfd, monkeypatch, *words)


def _refuse(constant):
    raise AssertionError(constant)


def _one_line(ended, *words):
    assert ended.status == 1
    assert ended.out == ""
    lines = [line for line in ended.err.splitlines() if line.startswith("sinkscope: ")]
    assert len(lines) == 1
    assert "Traceback" not in ended.err
    for word in words:
        assert word in lines[0]


def test_a_run_prints_the_verdict_and_writes_every_format(run, tiny_llama, tmp_path):
    names = [f"run{suffix}" for suffix in EXPORTERS]
    outputs = [word for name in names for word in ("-o", tmp_path / name)]
    ended = run("measure", tiny_llama, *QUICK, *outputs)
    assert ended.status == 0
    order = ["tiny-llama", "first token", "Token 0 was", "Perplexity", "\nlayer 3 ", "Heads with", "Most-attended"]
    places = [ended.out.index(words) for words in order]
    assert places == sorted(places)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    said = [f"wrote {tmp_path / name}{' (the table `heads`)' if name == 'run.csv' else ''}" for name in names]
    assert ended.err.splitlines()[-len(names) :] == said


def test_json_goes_to_stdout_beside_files_and_is_the_same_run(run, tiny_llama, tmp_path):
    ended = run("measure", "-m", tiny_llama, *QUICK, "--json", "--quiet", "-o", tmp_path / "run.json")
    assert (ended.status, ended.err) == (0, "")
    document = json.loads(ended.out, parse_constant=_refuse)
    assert ended.out == (tmp_path / "run.json").read_text(encoding="utf-8")
    assert Report.load(tmp_path / "run.json").to_json() == ended.out
    assert document["metadata"]["command"][:2] == ["sinkscope", "measure"]


def test_json_is_utf8_and_without_colour_whatever_the_terminal_is(run, tiny_llama, tmp_path, monkeypatch):
    text = written(tmp_path, "你好，[/INST] \x1b[31m 👍 café\n" * 40)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    ended = run("measure", tiny_llama, "--text", text, *QUICK, "--json")
    assert (ended.status, b"\x1b" in raw.getvalue()) == (0, False)
    document = json.loads(raw.getvalue().decode("utf-8"), parse_constant=_refuse)
    # The tokenizer of the tests knows bytes only, so a character of three bytes is three tokens.
    assert document["tables"]["tokens"]["columns"]["token"][:3] == ["\\xe4", "\\xbd", "\\xa0"]


def test_quiet_says_nothing_but_results(run, tiny_llama, tmp_path):
    ended = run("measure", tiny_llama, *QUICK, "-q", "-o", tmp_path / "run.csv")
    assert ended.err == ""
    assert "Perplexity" in ended.out


def test_texts_prompts_and_stdin_are_measured_together(run, tiny_llama, tmp_path, monkeypatch):
    text = written(tmp_path, "\x1b[31m [bold] :smile: \x07\n" * 30)
    words = ["--text", text, "--text", "-", "--prompt", "[/] a short one", "--windows", "all", "--seq-len", "40"]
    with text.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        ended = run("measure", tiny_llama, *words, "--json", "-q")
    assert ended.status == 0
    documents = json.loads(ended.out)["metadata"]["text"]["documents"]
    assert [each["name"] for each in documents] == [str(text), "stdin", "prompt 1"]


def test_options_reach_the_measurement(run, tiny_llama):
    words = ["--seq-len", "33", "--windows", "3", "--bos", "always", "--initial", "2", "--epsilon", "0.05"]
    ended = run("measure", tiny_llama, *words, "-b", "2", "--dtype", "bfloat16", "--device", "cpu", "--json", "-q")
    found = json.loads(ended.out)["metadata"]
    assert (found["initial"], found["epsilon"], found["model"]["dtype"]) == (2, 0.05, "bfloat16")
    text = found["text"]
    assert (text["seq_len"], text["windows"], text["bos"], text["bos_added_by"]) == (33, 3, "always", "sinkscope")


def test_the_old_name_of_dtype_is_taken_with_a_warning(run, tiny_llama):
    ended = run("measure", tiny_llama, *QUICK, "--torch-dtype", "bfloat16", "--json", "-q")
    assert json.loads(ended.out)["metadata"]["model"]["dtype"] == "bfloat16"
    assert ended.err == "warning: --torch-dtype is called --dtype now\n"


def test_pickled_weights_are_read_only_where_that_is_said(run, tiny_llama, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_llama, folder)
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    _one_line(run("measure", folder, *QUICK), "pytorch_model.bin", "--allow-pickle")
    ended = run("measure", folder, *QUICK, "--allow-pickle")
    assert ended.status == 0
    assert "pickle" in ended.err


@pytest.mark.parametrize("words", [["--token", "hf_secret"], ["--token=hf_secret"]])
def test_a_token_is_kept_nowhere(run, tiny_llama, words):
    ended = run("measure", tiny_llama, *QUICK, "--json", *words)
    assert ended.status == 0
    assert "hf_secret" not in ended.out + ended.err


BAD_TEXTS = {
    "empty": (b"", "is empty"),
    "white space": (b" \n", "is empty"),
    "not UTF-8": (b"caf\xe9 au lait", "not valid UTF-8 at byte 3"),
    "UTF-16 without a mark": ("abc".encode("utf-16-le"), "has a NUL at byte 1"),
    "too short": (b"a few words", "has 11 tokens, fewer than one window of 40"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_text_that_cannot_be_measured_is_one_line(case, run, tiny_llama, tmp_path):
    content, reason = BAD_TEXTS[case]
    (tmp_path / "t.txt").write_bytes(content)
    words = ["--text", tmp_path / "t.txt", *QUICK, "-o", tmp_path / "run.json"]
    _one_line(run("measure", tiny_llama, *words), str(tmp_path / "t.txt"), reason)
    assert not (tmp_path / "run.json").exists()


def test_more_windows_than_there_are_is_one_line(run, tiny_llama, tmp_path):
    words = ["--text", written(tmp_path), "--seq-len", "40", "--windows", "99"]
    _one_line(run("measure", tiny_llama, *words), "gives 12 windows of 40 tokens, fewer than the 99 asked for")


BAD_MODELS = {
    "nothing": ("", "is empty"),
    "a missing directory": ("./none", "no such file"),
    "markup": ("./[/x]", "./[/x]: no such file"),
    "escapes": ("./\x1b[31m", r"./\x1b[31m"),
    "offline": ("owner/none", "owner/none is not on this disk"),
    "no id": ("a b", "is neither a file, nor a directory, nor a Hub id"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_is_not_there_is_one_line(case, run):
    word, reason = BAD_MODELS[case]
    ended = run("measure", word)
    _one_line(ended, reason)
    assert "\x1b" not in ended.err


def test_a_directory_without_a_config_a_cut_gguf_and_a_text_are_one_line(run, tmp_path):
    _one_line(run("measure", tmp_path), "config.json")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    _one_line(run("measure", tmp_path / "cut.gguf"), "cut.gguf")
    _one_line(run("measure", written(tmp_path)), "is not a .gguf file")


def test_a_model_without_a_tokenizer_is_one_line(run, tiny_llama, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_llama / name).read_bytes())
    _one_line(run("measure", tmp_path), "comes without a tokenizer")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("run.xyz", "'.xyz'"), ("run", "no suffix"), ("none/run.json", "no directory"), (".", "is a directory")],
)
def test_an_output_is_refused_before_a_model_is_looked_for(name, reason, run, tmp_path):
    _one_line(run("measure", "./none", "-o", tmp_path / name), "cannot write", reason)


def test_a_device_is_no_place_for_an_output(run):
    _one_line(run("measure", "./none", "-o", "/dev/full"), "cannot write /dev/full: it is not a regular file")


def test_a_disk_that_fills_up_costs_neither_the_figures_nor_the_other_files(run, tiny_llama, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(EXPORTERS._cards, ".csv", type(EXPORTERS[".csv"])(".csv", full, ""))
    ended = run("measure", tiny_llama, *QUICK, "-o", tmp_path / "heads.csv", "-o", tmp_path / "run.json")
    assert ended.status == 1
    assert "Perplexity" in ended.out
    assert f"sinkscope: cannot write {tmp_path / 'heads.csv'}: No space left on device" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def _out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("tried to allocate 97 GiB")


@pytest.mark.parametrize("where", ["observe", "handshake"])
def test_out_of_memory_is_one_line_with_a_way_out(where, run, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, where, _out_of_memory)
    ended = run("measure", tiny_llama, *QUICK, "-o", tmp_path / "run.json")
    _one_line(ended, "out of memory", "--seq-len", "--batch-size", "--dtype bfloat16")
    assert list(tmp_path.iterdir()) == []


def test_one_process_of_several_is_refused(run, tiny_llama, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    _one_line(run("measure", tiny_llama), "WORLD_SIZE", "without a launcher")


def test_a_bug_shows_its_traceback(run, tiny_llama, monkeypatch):
    monkeypatch.setattr(runs, "handshake", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("measure", tiny_llama, *QUICK)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--windows", "0"], "'0' is neither a whole number from 1 nor 'all'"),
        (["--windows", "auto"], "'auto' is neither"),
        (["--batch-size", "all"], "nor 'auto'"),
        (["-b", "-1"], "'-1' is neither"),
        (["--seq-len", "1"], "--seq-len"),
        (["--initial", "0"], "--initial"),
        (["--epsilon", "1.1"], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--dtype", "float8"], "--dtype"),
        (["--frobnicate"], "--frobnicate"),
        (["one", "two"], "two"),
        (["one", "-m", "two"], "MODEL is given twice"),
        (["one", "\x1b[31m"], r"\x1b[31m"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(words, reason, run):
    ended = run("measure", *words)
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("sinkscope: ")
    assert ended.err.endswith("see `sinkscope measure --help`\n")
    assert ended.err.count("\n") == 1
    assert reason in ended.err
    assert "\x1b" not in ended.err


def test_a_wrong_command_is_one_line_with_the_nearest(run):
    ended = run("mesure")
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert "Did you mean 'measure'?" in ended.err


CATALOGS = {"metrics": METRICS, "tokens": TOKEN_CLASSES, "formats": EXPORTERS, "normalizers": NORMALIZERS}


@pytest.mark.parametrize("family", CATALOGS)
@pytest.mark.parametrize("width", ["40", "80"])
def test_a_listing_names_everything_in_whole_words(family, width, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    ended = run("list", family)
    assert (ended.status, ended.err) == (0, "")
    words = ended.out.split()
    for card in CATALOGS[family].values():
        assert any(word.split(":")[0].removeprefix("CLASS_") == card.name for word in words)
        text = card.formula if family == "normalizers" else card.summary
        assert " ".join(text.split()) in " ".join(words)
    if family != "normalizers" or width == "80":
        assert max(map(len, ended.out.splitlines())) <= int(width)


def test_the_environment_can_be_pasted_and_holds_no_secret(run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ended = run("env")
    assert {"sinkscope", "python", "torch", "transformers", "cache"} <= {
        line.split()[0] for line in ended.out.splitlines()
    }
    assert "hf_secret" not in ended.out


def test_the_cache_is_shown_and_cleared(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path))
    entry = tmp_path / "0123-v1"
    entry.mkdir()
    (entry / "model.safetensors").write_bytes(b"x" * 1500)
    record = {"name": "[/x]", "source": "x.gguf", "sha256": "0123456789abcdef", "created": "2026-01-01T00:00:00Z"}
    (entry / "entry.json").write_text(json.dumps(record | {"bytes": 1500, "path": None, "notes": []}))
    shown = run("cache", "show")
    assert f"{tmp_path}: 1 converted, 2 kB" in shown.out
    assert "[/x]   2 kB  2026-01-01T00:00:00Z  0123456789ab" in shown.out
    _one_line(run("cache", "clear", "other"), "the cache holds no 'other'")
    assert run("cache", "clear").out == "removed 1, freed 2 kB\n"
    assert run("cache", "show").out == f"{tmp_path}: 0 converted, 0 B\n"
