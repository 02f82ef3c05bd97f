"""Files are as they were or complete, and what cannot be written is known at once."""

import os
import re
import threading
from pathlib import Path

import pytest

from sinkscope.errors import OutputError
from sinkscope.files import check_writable, replacing

IMPOSSIBLE = {
    "a directory": (lambda folder: folder, "is a directory"),
    "a device": (lambda _: "/dev/full", "not a regular file"),
    "a missing directory": (lambda folder: folder / "none" / "run.json", "there is no directory"),
    "a file in place of a directory": (
        lambda folder: _file(folder / "file") / "run.json",
        "Not a directory|no directory",
    ),
    "a name that is too long": (lambda folder: folder / ("x" * 300), "File name too long"),
}


def _file(path):
    path.write_text("old")
    return path


def _write(path, more):
    """Write a text; or half of one, and then do something else."""
    with replacing(path) as temporary:
        temporary.write_text(more if isinstance(more, str) else "half")
        if callable(more):
            more()


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_written_is_refused_by_the_check_and_by_the_writer(case, tmp_path):
    make, reason = IMPOSSIBLE[case]
    path = Path(make(tmp_path))
    with pytest.raises(OutputError, match=reason):
        check_writable(path)
    with pytest.raises(OutputError, match=f"^cannot write {re.escape(str(path))}: "):
        _write(path, "new")


def test_a_read_only_file_is_refused(tmp_path, monkeypatch):
    path = _file(tmp_path / "run.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # who is root may write anything
    with pytest.raises(OutputError, match="read-only"):
        check_writable(path)


def test_a_check_leaves_nothing_and_touches_nothing(tmp_path):
    path = _file(tmp_path / "run.json")
    check_writable(path)
    check_writable(tmp_path / "other.json")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("run.json", "old")]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = _file(tmp_path / "run.json")
    with pytest.raises(ZeroDivisionError):
        _write(path, lambda: 1 / 0)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("run.json", "old")]


def test_a_full_disk_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="No space left"):
        _write(tmp_path / "run.json", lambda: Path("/dev/full").write_text("x" * 100_000, encoding="utf-8"))
    assert list(tmp_path.iterdir()) == []


def test_permissions_are_those_of_the_old_file_or_the_usual_ones(tmp_path):
    old, plain, new = _file(tmp_path / "old.json"), _file(tmp_path / "plain.json"), tmp_path / "new.json"
    old.chmod(0o640)
    _write(old, "new")
    _write(new, "new")
    assert (old.stat().st_mode & 0o777, new.stat().st_mode) == (0o640, plain.stat().st_mode)


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    target, link = _file(tmp_path / "target.json"), tmp_path / "link.json"
    link.symlink_to(target)
    _write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_two_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "run.json"
    writers = [threading.Thread(target=_write, args=(path, letter * 200_000)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(path.read_text()) in ({"a"}, {"b"})
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
