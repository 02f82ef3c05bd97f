"""A report comes back from its file as it was, in strict JSON."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_cli import report_of
from pandas.testing import assert_frame_equal

from sinkscope.errors import OutputError, ReportError
from sinkscope.report import Report

SHARES = [[0.9, math.nan], [0.1, 0.2]]
TEXTS = ["inf", "NaN", "null", "a\nb", "\x1b[31m", '"\\', "你好", "👍", "\u2028", "=1+1", "[/INST]", "\x00", "", None]
"""Token texts that a careless writer changes."""


def _refuse(constant):
    raise AssertionError(constant)


def _strict(report):
    return json.loads(report.to_json(), parse_constant=_refuse)


def _back(report, folder):
    report.save(folder / "run.json")
    return Report.load(folder / "run.json")


def _with(frame, **columns):
    return dataclasses.replace(report_of(SHARES), **{frame: pd.DataFrame(columns)})


def _equal(one, other):
    for name, table in one.tables().items():
        assert_frame_equal(table, other.tables()[name])


def test_every_table_and_the_metadata_come_back_equal(tmp_path):
    report = report_of(SHARES)
    found = _back(report, tmp_path)
    _equal(report, found)
    assert found.metadata == report.metadata


def test_a_file_written_again_is_the_same_file(tmp_path):
    report = report_of(SHARES)
    assert _back(report, tmp_path).to_json() == report.to_json()


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([0.1, math.nan, math.inf, -math.inf, 5e-324, -0.0]),
        pd.Series([0.1, math.nan, 3.0], dtype="float32"),
        pd.Series([1, 2**53 + 1, -3]),
        pd.Series([1, 2], dtype="int32"),
        pd.Series([True, False]),
        pd.Series(["a", "b"]),
        pd.Series(TEXTS, dtype=object),
        pd.Series([], dtype="float64"),
        pd.Series([], dtype=object),
    ],
    ids=lambda column: f"{column.dtype}-{len(column)}",
)
def test_a_column_of_any_kind_comes_back_exactly(column, tmp_path):
    report = _with("heads", cells=column)
    _equal(report, _back(report, tmp_path))


def test_undefined_is_null_and_overflow_is_not(tmp_path):
    stored = _strict(_with("summary", perplexity=[math.nan, math.inf, -math.inf, 0.0]))
    assert stored["tables"]["summary"]["columns"]["perplexity"] == [None, "inf", "-inf", 0.0]


def test_an_empty_table_keeps_its_columns(tmp_path):
    report = report_of(SHARES)
    report = dataclasses.replace(report, tokens=report.tokens[:0])
    assert list(_back(report, tmp_path).tokens.columns) == list(report.tokens.columns)
    assert _back(report, tmp_path).tokens.empty


def test_metadata_may_hold_what_libraries_return(tmp_path):
    extra = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": (1, 2), "e": Path("x"), 7: math.inf}
    extra |= {"nan": np.float64("nan")}
    found = _back(report_of(SHARES, extra=extra), tmp_path).metadata["extra"]
    assert found == {"a": 0.5, "b": 3, "c": True, "d": [1, 2], "e": "x", "7": "inf", "nan": None}


def test_a_file_name_that_is_not_utf8_survives(tmp_path):
    name = "caf\udce9.txt"
    found = _back(report_of(SHARES, name=name), tmp_path)
    assert found.metadata["model"]["name"] == name
    assert (tmp_path / "run.json").read_bytes().decode("utf-8")


def test_the_first_of_several_normalizers_can_be_had_alone():
    one, other = report_of(SHARES), report_of([[0.3, 0.4], [0.5, 0.6]])
    tables = {
        name: pd.concat([table, other.tables()[name].assign(normalizer="softmax1")], ignore_index=True)
        for name, table in one.tables().items()
        if "normalizer" in table
    }
    _equal(one, dataclasses.replace(one, **tables).first())


GOOD = report_of(SHARES).to_json()
BAD_FILES = {
    "nothing": (b"", "not a JSON report"),
    "half of one": (GOOD[: len(GOOD) // 2].encode(), "not a JSON report"),
    "not UTF-8": (b"\xff\xfe{", "not a JSON report"),
    "a NaN": (GOOD.replace("12.5", "NaN").encode(), "NaN is not JSON"),
    "a list": (b"[]", "but not a report"),
    "another document": (b'{"format": "other"}', "but not a report"),
    "a later version": (GOOD.replace('"version": 1', '"version": 99').encode(), "version 99"),
    "no tables": (b'{"format": "sinkscope-report", "version": 1}', "damaged"),
    "a table of another shape": (GOOD.replace('"types"', '"kinds"').encode(), "damaged"),
    "a table too few": (GOOD.replace('"positions": {\n', '"places": {\n').encode(), "damaged"),
    "columns of different lengths": (GOOD.replace('"query_from": [1, 2, 4]', '"query_from": [1]').encode(), "damaged"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_no_report_is_refused_in_one_line(case, tmp_path):
    content, reason = BAD_FILES[case]
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=reason) as caught:
        Report.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(ReportError, match="No such file"):
        Report.load(tmp_path / "none.json")
    with pytest.raises(ReportError, match="directory"):
        Report.load(tmp_path)


def test_saving_where_nothing_can_be_written_is_refused(tmp_path):
    with pytest.raises(OutputError, match="is a directory"):
        report_of(SHARES).save(tmp_path)
