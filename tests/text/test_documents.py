"""Reading is strict: the same text is the same document from anywhere, and what is not text is refused in one line."""

import io
import json
import os
import sys
import threading

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from sinkscope.errors import TextError
from sinkscope.text.documents import Document, Rows, decoding, notes, read_documents
from sinkscope.text.documents.sources import bytes_of

PARAGRAPH = "The café by the water opens at six.\nNobody is ever there before seven.\n"


def write(folder, content, name="text.txt"):
    path = folder / name
    path.write_bytes(content)
    return path


def text_of(source):
    return source.beginning().text


def texts_in(paths, **options):
    """The names and texts of all documents that there are."""
    sources = read_documents([str(path) for path in paths], **options)
    documents = [each for source in sources for each in (source if isinstance(source, Rows) else [source])]
    return {document.name: text_of(document) for document in documents}


def test_the_same_text_is_the_same_however_it_is_encoded_and_wherever_it_comes_from(tmp_path, monkeypatch):
    plain = PARAGRAPH.encode()
    variants = [plain, b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r")]
    variants += [PARAGRAPH.encode(encoding) for encoding in ("utf-16", "utf-32")]
    variants += [b"\xfe\xff" + PARAGRAPH.encode("utf-16-be"), b"\x00\x00\xfe\xff" + PARAGRAPH.encode("utf-32-be")]
    found = [read_documents([write(tmp_path, content)])[0].beginning() for content in variants]
    assert {each.text for each in found} == {PARAGRAPH}
    assert [each.reading.line_endings_changed for each in found] == [False, False, True, True, *[False] * 4]
    assert [each.reading.encoding for each in found[3:]] == [
        "utf-8",
        "utf-16-le",
        "utf-32-le",
        "utf-16-be",
        "utf-32-be",
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(variants[2]), encoding="ascii"))
    (document,) = read_documents(["-"])
    assert (document.name, text_of(document)) == ("stdin", PARAGRAPH)
    for given_as_text in (*read_documents([], [PARAGRAPH]), Document("text 1", PARAGRAPH.replace("\n", "\r\n"))):
        assert text_of(given_as_text) == PARAGRAPH


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("abc".encode("utf-16-le"), "has a NUL at byte 1, so it is binary or UTF-16"),
        (b"caf\xe9 noir", "is not valid UTF-8 at byte 3"),
        (b"\xef\xbb\xbfcaf\xe9 noir", "is not valid UTF-8 at byte 6"),
        (b"before \xff\xfe\x00 after", "is not valid UTF-8 at byte 7"),
        (b"half \xed\xa0\xbd of a pair", "is not valid UTF-8 at byte 5"),
        (b"caf\xc3", "is not valid UTF-8 at byte 3"),
        ("ab".encode("utf-16") + b"\x00\xd8c\x00", "is not valid UTF-16-LE at byte 6"),
        ("ab".encode("utf-16") + b"c", "is not valid UTF-16-LE at byte 6"),
        ("ab\0".encode("utf-16"), "has a NUL at byte 6"),
        (b"ab\0", "has a NUL at byte 2"),
        (b"", "is empty or only white space"),
        (b" \n\t ", "is empty or only white space"),
        (b"\xef\xbb\xbf", "is empty or only white space"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line_from_a_file_and_from_stdin(tmp_path, monkeypatch, content, reason):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for path, name in [(write(tmp_path, content), r"text\.txt"), ("-", "stdin")]:
        with pytest.raises(TextError, match=f"{name} {reason}") as caught:
            read_documents([path])
        assert "\n" not in str(caught.value)


def test_a_prompt_with_bytes_that_were_not_utf8_is_refused():
    with pytest.raises(TextError, match="prompt 2 is not valid UTF-8 at byte 3"):
        read_documents([], ["good", b"caf\xe9".decode("utf-8", "surrogateescape")])


def test_what_cannot_be_read_is_one_line(tmp_path):
    for path in [tmp_path / "absent", "nul\0name", "x" * 5000]:
        with pytest.raises(TextError, match=r"cannot read .*: give a readable UTF-8 file$"):
            read_documents([path])


def test_a_closed_stdin_is_one_line(monkeypatch):
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stdin, reason in [(None, "it is closed: pipe"), (closed, "closed file: give")]:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(TextError, match=f"cannot read stdin: .*{reason}"):
            read_documents(["-"])


def test_file_names_are_never_shown_raw(tmp_path):
    with pytest.raises(TextError, match=r"red\\x1b\[31m\\n") as caught:
        read_documents([tmp_path / "red\x1b[31m\n"])
    assert str(caught.value).isprintable()
    assert read_documents([write(tmp_path, b"text", "a\nb.txt")])[0].name.endswith(r"a\nb.txt")


def test_files_come_before_prompts_and_keep_their_order(tmp_path):
    paths = [write(tmp_path, b"one", "z.txt"), str(write(tmp_path, b"two", "a.txt"))]
    documents = read_documents(paths, ["three", "four"])
    assert [text_of(document) for document in documents] == ["one", "two", "three", "four"]
    assert [document.prompt for document in documents] == [False, False, True, True]
    assert [document.name for document in documents[2:]] == ["prompt 1", "prompt 2"]


@given(
    text=st.text(
        st.one_of(st.sampled_from("\r\na🦊é\x0c"), st.characters(codec="utf-8", exclude_characters="\0\ufeff"))
    ),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
    chunk=st.integers(4, 9),
    characters=st.integers(0, 30),
)
def test_reading_in_parts_changes_nothing(text, encoding, chunk, characters):
    content = text.encode(encoding)
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "CHUNK", chunk)
        reads = []

        def read(start, size):
            reads.append(start)
            return content[start : start + size]

        assert decoding.excerpt("text", read).text == plain
        assert list(decoding.lines("text", read)) == plain.split("\n")
        reads.clear()
        begun = decoding.excerpt("text", read, characters)
        assert begun.text == plain[:characters]
        assert begun.reading.size == min(len(content), reads[-1] + chunk)
        assert begun.reading.whole or begun.reading.size < len(content) or len(content) % chunk == 0


@given(before=st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), max_size=9), chunk=st.integers(4, 9))
def test_the_place_of_a_wrong_byte_is_right_in_any_part(before, chunk):
    for wrong, reason in [(b"\xff", "not valid UTF-8"), (b"\0", "NUL")]:
        content = before.encode() + wrong + b"after"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "CHUNK", chunk)
            with pytest.raises(TextError, match=f"{reason} at byte {len(before.encode())}\\b"):
                decoding.excerpt("text", bytes_of(content))


def test_a_named_pipe_is_read_once_and_stdin_no_further_than_asked(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("words " * 10,))
    writer.start()
    (document,) = read_documents([pipe])
    writer.join()
    assert text_of(document) == text_of(document) == "words " * 10
    endless = io.BufferedReader(Endless())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless))
    assert read_documents(["-"])[0].beginning(1000).text == "y\n" * 500


class Endless(io.RawIOBase):
    """What `yes` writes."""

    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = (b"y\n" * len(buffer))[: len(buffer)]
        return len(buffer)


@pytest.fixture
def folder(tmp_path):
    """A directory of texts, with some that are none."""
    for name in ["b.txt", "a.md", "sub/c.TXT", "sub/deep/d.txt", ".hidden.txt", ".git/e.txt", "code.py", "a.txt"]:
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, "utf-8")
    (tmp_path / "texts" / "rows.jsonl").write_text('"one"\n\n{"text": "two"}\n', "utf-8")
    return tmp_path / "texts"


def test_a_directory_stands_for_its_texts_in_sorted_order_and_says_how_many(folder):
    expected = ["a.md", "a.txt", "b.txt", "rows.jsonl line 1", "rows.jsonl line 3", "sub/c.TXT", "sub/deep/d.txt"]
    assert list(texts_in([folder])) == [f"{folder}/{name}" for name in expected]
    assert notes([folder, "-", folder / "a.md"]) == [f"{folder}: 6 files"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt", "b.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "sub/deep/d.txt"]),
        ("sub/**", ["sub/c.TXT", "sub/deep/d.txt"]),
        ("[ab].*", ["a.md", "a.txt", "b.txt"]),
        ("*.py", ["code.py"]),
    ],
)
def test_a_pattern_stands_for_its_files(folder, pattern, names):
    assert list(texts_in([folder / pattern])) == [f"{folder}/{name}" for name in names]


def test_a_pattern_at_home_is_found_there(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert list(texts_in(["~/b.*"])) == [f"{folder}/b.txt"]


def test_a_file_that_looks_like_a_pattern_is_a_file(folder):
    path = write(folder, b"text", "b[1]*.txt")
    assert texts_in([path]) == {str(path): "text"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("*.tex", r"no file is like .*\*\.tex: give"), ("empty", r"holds none of \.txt, \.md, \.jsonl, \.parquet: name")],
)
def test_finding_nothing_is_one_line(folder, name, reason):
    (folder / "empty").mkdir()
    with pytest.raises(TextError, match=reason):
        read_documents([folder / name])


def test_one_bad_file_of_many_is_told_by_its_name(folder):
    write(folder, b"caf\xe9", "z.txt")
    with pytest.raises(TextError, match=r"texts/z\.txt is not valid UTF-8 at byte 3"):
        texts_in([folder])


ROWS = [{"id": 1, "text": "The first.\r\nOf all", "txt": "a"}, {"id": 2, "text": "你好，世界。", "txt": "b"}]


def tables_of(folder, rows):
    """The same rows in either format."""
    lines = write(folder, "".join(json.dumps(row) + "\n" for row in rows).encode(), "rows.jsonl")
    parquet.write_table(pa.Table.from_pandas(pd.DataFrame(rows, dtype=object)), folder / "rows.parquet")
    return [lines, folder / "rows.parquet"]


def test_each_row_of_a_table_is_a_document(tmp_path):
    lines, table = tables_of(tmp_path, ROWS)
    texts = ["The first.\nOf all", "你好，世界。"]
    assert texts_in([lines]) == {f"{lines} line {number}": text for number, text in enumerate(texts, 1)}
    assert texts_in([table]) == {f"{table} row {number}": text for number, text in enumerate(texts, 1)}
    for path in (lines, table):
        assert list(texts_in([path], column="txt").values()) == ["a", "b"]


def test_lines_are_strings_or_objects_in_any_encoding_with_empty_lines_between(tmp_path):
    path = write(tmp_path, '"one\\u0000"\r\n\r\n{"text": ""}\n  "three"'.encode("utf-16"), "rows.jsonl")
    assert list(texts_in([path]).values()) == ["one\0", "", "three"]


def test_a_wrong_column_gives_those_there_are_the_nearest_first(tmp_path):
    for path, place in zip(tables_of(tmp_path, ROWS), [r"rows\.jsonl line 1", r"rows\.parquet"], strict=True):
        with pytest.raises(TextError, match=rf"{place} has no column 'texts': .*there are text, txt, id$"):
            read_documents([path], column="texts")
    with pytest.raises(TextError, match=r"line 1 has no column 'text' and no other"):
        read_documents([write(tmp_path, b"{}", "rows.jsonl")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": null}', "line 2: text is null: give it a text, or leave the row out"),
        ('{"text": 7}', "line 2: text is of type int: give text"),
        ('{"text": ["a"]}', "line 2: text is of type list"),
        ("null", "line 2 is null"),
        ("[1]", "line 2 is of type list"),
        ('{"text": "a"', "line 2 is not JSON .*: put one JSON string or object on each line"),
        ("[" * 100_000, "line 2 is not JSON"),
        (r'"half \ud83d of a pair"', "line 2 has a lone surrogate at character 5"),
    ],
    ids=lambda value: value[:16],
)
def test_a_line_without_a_text_is_told_by_its_number(tmp_path, line, reason):
    path = write(tmp_path, f'"good"\n{line}\n'.encode(), "rows.jsonl")
    with pytest.raises(TextError, match=rf"rows\.jsonl {reason}") as caught:
        texts_in([path])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array(["good", None]), r"rows\.parquet row 2: text is null"),
        (pa.array([1, 2]), r"rows\.parquet row 1: text is of type int: give text"),
        (pa.array([], pa.string()), r"rows\.parquet has no rows"),
        (pa.array([b"good", b"caf\xe9"]).view(pa.string()), r"rows\.parquet row 2 is not valid UTF-8"),
    ],
    ids=["null", "numbers", "empty", "bytes"],
)
def test_a_row_without_a_text_is_told_by_its_number(tmp_path, values, reason):
    parquet.write_table(pa.table({"text": values}), tmp_path / "rows.parquet")
    with pytest.raises(TextError, match=reason):
        texts_in([tmp_path / "rows.parquet"])


def test_text_of_any_parquet_type_is_text(tmp_path):
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        parquet.write_table(pa.table({"text": pa.array(["a", "b", "a"]).cast(kind)}), tmp_path / "rows.parquet")
        assert list(texts_in([tmp_path / "rows.parquet"]).values()) == ["a", "b", "a"]


def test_a_file_that_is_not_parquet_and_a_missing_one_are_one_line(tmp_path):
    for path in [write(tmp_path, b"text", "rows.parquet"), tmp_path / "absent.parquet"]:
        with pytest.raises(TextError, match=f"cannot read {path} as Parquet: .*: give a whole Parquet file") as caught:
            read_documents([path])
        assert "\n" not in str(caught.value)


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TextError, match=r"reading rows\.parquet needs pyarrow: pip install pyarrow$"):
        read_documents(["rows.parquet"])


def test_a_column_without_a_table_is_refused(tmp_path):
    with pytest.raises(TextError, match=r"--column is for \.jsonl and \.parquet files and datasets, and there is none"):
        read_documents([write(tmp_path, b"text")], column="text")


def test_rows_from_elsewhere_stand_between_files_and_prompts_and_have_columns_too(tmp_path):
    others = Rows("others", lambda: iter([Document("others row 1", "two", many=True)]))
    found = read_documents([write(tmp_path, b"one")], ["three"], "column", [others])
    assert (text_of(found[0]), found[1], text_of(found[2])) == ("one", others, "three")
    assert read_documents([], others=[others]) == [others]


def test_an_empty_table_is_refused(tmp_path):
    with pytest.raises(TextError, match=r"rows\.jsonl has no rows"):
        read_documents([write(tmp_path, b"\n\n", "rows.jsonl")])


def test_only_the_rows_that_are_asked_for_are_read(tmp_path):
    path = write(tmp_path, b'"one"\n"two"\nnot JSON', "rows.jsonl")
    (rows,) = read_documents([path])
    assert [document.text for _, document in zip(range(2), rows, strict=False)] == ["one", "two"]


def test_the_built_in_sample_is_what_there_is_without_files_and_prompts():
    (document,) = read_documents([])
    assert document.name == "built-in sample"
    text = text_of(document)
    assert not document.beginning().reading.line_endings_changed
    assert len(text) > 30_000
    assert text[:8_000].isascii()
    scripts = ["的", "の", "في", "ы", "η", "है", "é", "ß", "ñ", "def ", "SELECT"]
    assert [sign for sign in scripts if sign not in text] == []


def test_nothing_in_the_built_in_sample_is_padding():
    (document,) = read_documents([])
    text = text_of(document)
    paragraphs = [part for part in text.split("\n") if len(part.strip("- ")) > 60]
    assert len(set(paragraphs)) == len(paragraphs) > 100
    assert text.strip() + "\n" == text
