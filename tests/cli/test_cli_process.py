"""The command line as a process: signals, streams that fail, terminals, and what is imported when."""

import errno
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
from fixtures_cli import SINKSCOPE, process, written

from sinkscope import progress
from sinkscope.cli.bars import ENOUGH, PATIENCE, _State, pace, watched
from sinkscope.cli.caching import _size

pytestmark = pytest.mark.slow

HELPS = [[], ["--help"], ["measure", "--help"], ["list", "-h"], ["env", "--help"], ["cache", "--help"]]
COLOURS = [
    {"NO_COLOR": "1"},
    {"NO_COLOR": "1", "FORCE_COLOR": "1"},
    {"FORCE_COLOR": "0"},
    {"FORCE_COLOR": "1", "TERM": "dumb"},
]
IMPORTS = """
import runpy, sys
sys.argv = ["sinkscope", {words}]
try:
    runpy.run_module("sinkscope", run_name="__main__")
except SystemExit:
    pass
sys.exit(bool({{"torch", "transformers", "pandas", "matplotlib"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_needs_no_heavy_library(words):
    code = IMPORTS.format(words=", ".join(map(repr, words)))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == 0
    assert b"Usage: sinkscope" in ended.stdout


def test_the_version_is_printed():
    ended = process("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"sinkscope 0.1.0\n", b"")


def test_completion_can_be_had_for_a_shell():
    # Typer asks which shell it was started from.
    words = ["bash", "-c", '"$@"; exit $?', "bash", *SINKSCOPE, "--show-completion"]
    ended = subprocess.run(words, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert b"complete -o default -F _sinkscope_completion sinkscope" in ended.stdout


@pytest.mark.parametrize("environment", COLOURS, ids=str)
def test_help_and_errors_are_without_escapes_where_colour_is_refused(environment):
    for words in (["measure", "--help"], ["measure", "--frobnicate"]):
        ended = process(*words, **environment)
        assert b"\x1b" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}, {"COLUMNS": "0"}]
)
def test_help_can_be_read_everywhere(environment):
    ended = process("measure", "--help", **environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"--seq-len" in ended.stdout


def _started(*words, stdout=subprocess.PIPE):
    # Where the tests run in the background of a shell, Ctrl-C is ignored, and children inherit that.
    return subprocess.Popen(
        [*SINKSCOPE, *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread runs here
    )


def test_a_full_disk_behind_stdout_is_one_line():
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        ended = subprocess.run([*SINKSCOPE, "list", "formats"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert ended.stderr == b"sinkscope: cannot write the results: No space left on device\n"


def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with _started("list", "formats", stdout=writing) as running:
        os.close(writing)
        _, said = running.communicate(timeout=120)
    assert said == b""
    assert running.returncode == 1


def test_ctrl_c_while_measuring_leaves_the_old_file_and_no_other(tiny_llama, tmp_path):
    output, text = tmp_path / "run.json", written(tmp_path, "Some text, with a comma. " * 8_000)
    output.write_text("old")
    words = ["--text", text, "--seq-len", "400", "--windows", "all", "-b", "1", "-o", output]
    with _started("measure", tiny_llama, *words) as running:
        said = b""
        while b"measuring" not in said:
            line = running.stderr.readline()
            assert line, said
            said += line
        running.send_signal(signal.SIGINT)
        out, rest = running.communicate(timeout=120)
    assert running.returncode == 130
    assert out == b""
    assert b"Traceback" not in rest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "text.txt"]
    assert output.read_text() == "old"


def _on_a_terminal(code, **environment):
    """What a program writes to a stderr that is a terminal."""
    master, slave = pty.openpty()
    variables = {
        name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}
    }
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=slave, env=variables | environment
    )
    os.close(slave)
    found = b""
    while select.select([master], [], [], 30)[0]:
        try:
            found += os.read(master, 65536)
        except OSError as error:
            assert error.errno == errno.EIO  # noqa: PT017 - how Linux says that the other side has closed
            break
    running.wait()
    os.close(master)
    return found.decode()


BAR = """
import time
from sinkscope.cli.bars import watched
from sinkscope.cli.console import settle
settle()
with watched(quiet=False) as progress:
    for done in range(4):
        progress("meas[/]uring", done, 3)
        time.sleep(0.15)
"""


def test_a_terminal_gets_a_bar_while_stdout_is_a_file():
    shown = _on_a_terminal(BAR, TERM="xterm")
    assert "meas[/]uring" in shown
    assert "\x1b" in shown


def test_a_bar_is_drawn_before_anything_heavy_is_imported():
    code = """
import sys
from sinkscope.cli.bars import watched
with watched(quiet=False):
    heavy = {"torch", "transformers", "pandas", "numpy"} & set(sys.modules)
    print("\\nalready there:", sorted(heavy), file=sys.stderr)
"""
    shown = _on_a_terminal(code, TERM="xterm", NO_COLOR="1", FORCE_COLOR="1")
    before, _, there = shown.partition("already there:")
    assert "starting" in before
    assert there.split()[0] == "[]"


def test_a_terminal_without_colour_gets_no_escapes():
    assert "\x1b" not in _on_a_terminal(BAR, TERM="xterm", NO_COLOR="1")


def test_a_pace_is_not_told_before_it_can_be_believed():
    assert pace(1, 272, 5.5) == ""
    assert pace(100, 272, 0.9 * PATIENCE) == ""
    assert pace(0, 0, 10.0) == ""
    assert pace(5, None, 10.0) == ""
    assert pace(int(ENOUGH * 1000), 1000, 10.0) == "5/s, 3 min left"
    assert pace(500, 1000, 10.0) == "50/s, 10 s left"


def test_a_line_is_due_after_patience_and_then_now_and_again(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    state, said = _State(), []
    for tick in range(300):
        now[0] = tick / 10
        if tick == 50:
            state("measuring", 0, 100)
        if tick >= 50:
            state("measuring", (tick - 50) // 3, 100)
        said.append(state.due())
    lines = [line for line in said if line]
    assert lines == [
        "starting",
        "measuring 6 of 100, 3/s, 31 s left",
        "measuring 40 of 100, 3.3/s, 18 s left",
        "measuring 73 of 100, 3.3/s, 8 s left",
    ]


def test_short_work_says_nothing_and_leaves_no_thread(capfd):
    before = threading.active_count()
    with watched(quiet=False) as told:
        told("measuring", 1, 2)
    assert threading.active_count() == before
    assert capfd.readouterr().err == ""


def test_quiet_work_tells_nobody():
    with watched(quiet=True) as told:
        assert told is progress.silent


@pytest.mark.parametrize(("size", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (2_400_000_000, "2.4 GB")])
def test_sizes_are_short(size, shown):
    assert _size(size) == shown
