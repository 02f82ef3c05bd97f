"""A CSV reads back to the run's tables, whatever tokens there are, and its name says which table it holds."""

import dataclasses
import io
import json
import re
import unicodedata
from pathlib import Path

import pandas as pd
import pytest
from builders import tiny
from fixtures_cli import QUICK, report_of, tokens_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import sinkscope
from sinkscope.errors import OutputError
from sinkscope.exporters import check, contents, export
from sinkscope.exporters.naming import FILLED_BY, USUAL, one_slip, table_named, table_names
from sinkscope.runs.comparison import EXPLAINED_BY_LSE

DOCS = Path(__file__).parents[2] / "docs"
READER = (DOCS / "tokens.md").read_text("utf-8").partition("```python\n")[2].partition("```")[0]
SHARES = [[0.9, 0.1], [0.2, 0.5]]
AWKWARD = [
    "NA",
    "null",
    "nan",
    "None",
    "",
    None,
    "=1+1",
    "'=1+1",
    "''=1",
    "'",
    "-",
    "+1",
    "@x",
    "＝1",
    "a\r\nb",
    "\x00",
]
AWKWARD += [r"\xe4", r"\\xe4", r"\x1b", "\x1b", r"\n", "\n", "␣", " ", '"', "a,b", '","', "\ufeff", "\u0301", "◌\u0301"]
AWKWARD += ["1", "1e5", "inf", "True", "#N/A", "  ", "\t", "caf\xe9", "👍"]
ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
LETTERS = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\\": "\\"}


def _read(path):
    """What docs/tokens.md says to do."""
    line, of_tokens = [each for each in READER.splitlines() if each.startswith("table")]
    names = {"pd": pd, "json": json}
    exec(line.replace('"tokens.csv"', repr(str(path))), names)  # noqa: S102 - it is our own page
    if "token_json" in names["table"]:
        exec(of_tokens, names)  # noqa: S102
    return names["table"]


def _written(texts, folder):
    export(dataclasses.replace(report_of(SHARES), tokens=tokens_of(texts)), folder / "tokens.csv")
    return folder / "tokens.csv"


def _sign(found):
    escape = found[0]
    if escape in LETTERS:
        return LETTERS[escape]
    point = int(f"0{escape[1:].replace('u', 'x').replace('U', 'x')}", 0)
    return escape if escape[1] == "x" and point >= 0x80 else chr(point)


def _unshown(cell):
    """The token that a cell of the column for people shows."""
    cell = re.sub(r"^'(?='*[=+@＝＋＠－-])", "", cell)
    if cell[:1] == "◌" and unicodedata.category(cell[1:2] or " ").startswith("M"):
        cell = cell[1:]
    return ESCAPE.sub(_sign, cell.replace("␣", " "))


def test_awkward_tokens_come_back_exactly(tmp_path):
    path = _written(AWKWARD, tmp_path)
    assert _read(path)["token"].tolist() == AWKWARD
    assert path.read_bytes().count(b"\n") == len(AWKWARD) + 1
    assert path.read_bytes().isascii() is False


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(texts=st.lists(st.none() | st.text(st.characters()) | st.sampled_from(AWKWARD), min_size=1))
def test_any_text_comes_back_exactly_and_is_one_line_of_harmless_signs(texts, tmp_path):
    path = _written(texts, tmp_path)
    raw = path.read_text(encoding="utf-8")
    assert _read(path)["token"].tolist() == texts
    assert raw.count("\n") == len(texts) + 1
    assert all(sign.isprintable() for line in raw.split("\n") for sign in line)
    assert not any(re.match("[=+@-]", cell) for cell in _column(raw, "token"))


def _column(raw, name):
    return pd.read_csv(io.StringIO(raw), keep_default_na=False, dtype=str)[name].tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(texts=st.lists(st.text(st.characters()) | st.sampled_from([each for each in AWKWARD if each]), min_size=1))
def test_the_column_for_people_shows_different_tokens_differently(texts, tmp_path):
    cells = _column(_written(texts, tmp_path).read_text("utf-8"), "token")
    assert [_unshown(cell) for cell in cells] == texts


def test_a_byte_is_escaped_once(tmp_path):
    cells = _column(_written([r"\xe4", r"a\xbd", r"\x1b"], tmp_path).read_text("utf-8"), "token")
    assert cells == [r"\xe4", r"a\xbd", r"\\x1b"]


def _awkward_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["NA", "null", "nan", "'="]
    pieces = ["<pad>", "<s>", "</s>", *alphabet]
    merges = [("N", "A"), ("n", "u"), ("l", "l"), ("nu", "ll"), ("n", "a"), ("na", "n"), ("'", "=")]
    pieces += ["nu", "ll", "na", *words]
    made = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")  # noqa: S106


def test_the_tables_of_a_run_over_awkward_tokens_read_back_equal(tmp_path):
    text = "NA null nan '= =1 -1 你好\r\n\t\x1b[31m\\xe4 " * 3
    report = sinkscope.compare(
        tiny("llama", max_position_embeddings=512), _awkward_tokenizer(), text, normalizers=["softmax1"], seq_len=64
    )
    for name, table in report.tables().items():
        if table.empty:
            continue
        export(report, tmp_path / f"{name}.csv")
        found = _read(tmp_path / f"{name}.csv")
        if "token" in table:
            assert {"NA", "null", "nan", "'="} <= set(report.tokens["token"])
            assert found["token"].tolist() == table["token"].tolist()
        pd.testing.assert_frame_equal(found, table, check_dtype=False, check_exact=True)


def test_names_of_documents_are_no_formulas_and_keep_their_spaces(tmp_path):
    report = report_of(SHARES)
    names = ["=cmd|' /C calc'!A0", "a file.txt", "'=x", "NA"]
    report = dataclasses.replace(report, documents=pd.DataFrame({"document": names, "nll": [1.0] * 4}))
    export(report, tmp_path / "documents.csv")
    assert _read(tmp_path / "documents.csv")["document"].tolist() == [f"'{names[0]}", "a file.txt", "''=x", "NA"]


@pytest.mark.parametrize("name", ["lse", "sweep", "activations", "massive", "documents"])
def test_an_empty_table_is_refused_with_the_reason_and_leaves_no_file(name, tmp_path):
    with pytest.raises(OutputError, match=rf"^cannot write .*{name}.csv: the table {name} is empty: \w+") as caught:
        export(report_of(SHARES), tmp_path / f"{name}.csv")
    assert FILLED_BY.get(name, "this run has no rows") in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_reason_names_what_log_sum_exp_explains():
    assert all(name in FILLED_BY["lse"] for name in EXPLAINED_BY_LSE)
    assert set(FILLED_BY) < set(table_names())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("measure",), "lse"),
        (("measure",), "sweep"),
        (("patch", "-n", "softmax1"), "sweep"),
        (("measure", "--only", "masses"), "activations"),
        (("patch", "-n", "softmax1", "--only", "entropy"), "massive"),
    ],
)
def test_a_table_that_the_run_will_not_fill_is_refused_before_a_model_is_looked_for(words, name, run, tmp_path):
    ended = run(*words, "-m", "./none", "-o", tmp_path / f"{name}.csv")
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert f"{name}.csv: the table {name} is empty: " in ended.err


def test_tables_that_the_run_does_fill_are_not_refused(run, tiny_llama, tmp_path):
    outputs = [word for name in ("activations", "massive", "lse") for word in ("-o", tmp_path / f"{name}.csv")]
    ended = run("patch", tiny_llama, "-n", "softmax1", *QUICK, *outputs)
    assert ended.status == 0
    assert all(len(_read(path)) for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", table_names())
def test_a_table_is_found_by_its_name_in_any_case(name):
    assert table_named(name) == table_named(name.upper()) == name


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("summery", "summary"),
        ("summry", "summary"),
        ("summaary", "summary"),
        ("smumary", "summary"),
        ("head", "heads"),
        ("Layer", "layers"),
        ("tokes", "tokens"),
        ("les", "lse"),
        ("swep", "sweep"),
        ("positionss", "positions"),
        ("activation", "activations"),
    ],
)
def test_a_stem_one_slip_away_from_a_table_is_refused_with_the_right_one(stem, name, tmp_path):
    for refused in (
        lambda: check(tmp_path / f"{stem}.csv"),
        lambda: export(report_of(SHARES), tmp_path / f"{stem}.csv"),
    ):
        with pytest.raises(OutputError, match=rf"^cannot write .*: no table is named '{stem}': write {name}\.csv, or"):
            refused()
    check(tmp_path / f"{stem}.json")


@pytest.mark.parametrize("name", table_names())
@given(st.data())
def test_every_single_slip_is_one_and_two_are_none(name, data):
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("qxzé9"))
    near = [name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :], name[:at] + name[at + 1 :]]
    near += (
        [name[:at] + name[at + 1] + name[at] + name[at + 2 :]]
        if name[at : at + 2] != name[at : at + 1] * 2 and at + 1 < len(name)
        else []
    )
    for each in near:
        assert one_slip(each, name)
        assert one_slip(name, each)
        assert not one_slip(each + "qq", name)
    assert not one_slip(name, name)


def test_a_stem_of_another_kind_gives_the_heads_and_that_is_said(run, tiny_llama, tmp_path):
    names = ["results.csv", "HEADS.csv", "layers.csv", "summery.json"]
    ended = run("measure", tiny_llama, *QUICK, *(word for name in names for word in ("-o", tmp_path / name)))
    assert ended.status == 0
    assert f"wrote {tmp_path / 'results.csv'} (the table `{USUAL}`)\n" in ended.err
    assert ended.err.count("the table") == 1
    assert "head" in _read(tmp_path / "results.csv")


def test_a_figure_holds_no_single_table(tmp_path):
    assert contents(tmp_path / "summery.png") == str(tmp_path / "summery.png")
