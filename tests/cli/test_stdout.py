"""stdout holds the results and nothing else, and one that cannot be written ends in one line."""

import ctypes
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fixtures_cli import QUICK, SINKSCOPE, process

from sinkscope.cli import stdout
from sinkscope.cli.writing import put_out
from sinkscope.errors import OutputError

NOISE = """
import ctypes, os, sys
print("noise at import")
def talkative(scores):
    print("noise of python")
    sys.__stdout__.write("noise in a buffer\\n")
    os.write(1, b"noise of a descriptor\\n")
    ctypes.CDLL(None).puts(b"noise of C")
    os.system("echo noise of a process")
    return scores.softmax(-1)
"""
KINDS = {"at import", "of python", "in a buffer", "of a descriptor", "of C", "of a process"}


def _shell(line, *words):
    command = ["/bin/sh", "-c", line, *SINKSCOPE[:1], *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, timeout=300)


def _one_line(ended, *words):
    assert ended.stderr.count(b"\n") == 1, ended.stderr
    assert all(word in ended.stderr for word in words), ended.stderr
    assert b"Traceback" not in ended.stderr


def test_what_a_users_code_prints_goes_to_stderr_and_leaves_the_document_whole(tiny_llama, tmp_path):
    (tmp_path / "noise.py").write_text(NOISE)
    ended = process("patch", tiny_llama, "-n", "noise:talkative", *QUICK, "--json", PYTHONPATH=_path_with(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["format"] == "sinkscope-report"
    for kind in KINDS:
        assert b"noise " + kind.encode() in ended.stderr


def test_what_a_users_code_prints_is_no_part_of_the_screen(run, tiny_llama, tmp_path, monkeypatch):
    (tmp_path / "noisy.py").write_text(NOISE)
    monkeypatch.syspath_prepend(tmp_path)
    ended = run("patch", tiny_llama, "-n", "noisy:talkative", *QUICK)
    assert "noise " not in ended.out
    assert {line.removeprefix("noise ") for line in ended.err.splitlines() if line.startswith("noise ")} >= {
        "of python"
    }


def _path_with(folder):
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])])  # noqa: PTH109


def test_a_closed_stdout_is_one_line_and_a_status():
    ended = _shell('"$0" -m sinkscope list formats >&-')
    _one_line(ended, b"cannot write the results: stdout is closed")
    assert ended.returncode == 1


@pytest.mark.parametrize("words", ["--help", "--version", "measure --help", "env", "cache show"])
def test_every_command_says_that_stdout_is_closed(words):
    ended = _shell(f'"$0" -m sinkscope {words} >&-')
    _one_line(ended, b"stdout is closed")
    assert ended.returncode == 1


def test_a_document_that_has_nowhere_to_go_is_refused_before_a_model_is_looked_for():
    ended = _shell('"$0" -m sinkscope measure ./none --json >&-')
    _one_line(ended, b"stdout is closed", b"-o run.json")
    assert ended.returncode == 1


def test_files_are_written_where_stdout_is_closed(tiny_llama, tmp_path):
    line = '"$0" -m sinkscope measure "$1" --seq-len 40 --windows 2 -q -o "$2" >&-'
    ended = _shell(line, tiny_llama, tmp_path / "run.json")
    _one_line(ended, b"cannot write the results: stdout is closed")
    assert json.loads((tmp_path / "run.json").read_text())["format"] == "sinkscope-report"


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_other_streams_that_are_closed_cost_nothing(closed):
    ended = _shell(f'"$0" -m sinkscope list formats {closed}')
    assert ended.returncode == 0
    assert b".json" in ended.stdout
    assert ended.stderr == b""


def test_half_a_document_is_one_line_and_python_ends_in_peace(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(sys, "stdout", open(writing, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - a descriptor
    report = SimpleNamespace(to_json=lambda: "{}" * 100_000)
    with pytest.raises(OutputError, match="cannot write the results: their reader has closed the pipe"):
        put_out(report, show=lambda *_: None, json=True)
    sys.stdout.close()


def test_stdout_is_itself_again_afterwards_whatever_happened(capfd):
    before = sys.stdout

    def interrupted():
        with stdout.reserved():
            print("python")  # noqa: T201 - what is tested
            os.write(1, b"descriptor\n")
            ctypes.CDLL(None).puts(b"native")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    print("mine")  # noqa: T201 - likewise
    os.write(1, b"mine too\n")
    assert sys.stdout is before
    found = capfd.readouterr()
    assert sorted(found.out.split("\n")) == ["", "mine", "mine too"]
    assert sorted(found.err.split()) == ["descriptor", "native", "python"]
