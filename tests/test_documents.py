"""Reading is strict: the same text is the same document from anywhere, and what is not text is refused in one line."""

import io
import sys

import pytest

from sinkscope.documents import read_documents
from sinkscope.errors import TextError

PARAGRAPH = "The café by the water opens at six.\nNobody is ever there before seven.\n"


def write(folder, content, name="text.txt"):
    path = folder / name
    path.write_bytes(content)
    return path


def test_the_same_text_is_the_same_however_it_is_encoded_and_wherever_it_comes_from(tmp_path, monkeypatch):
    plain = PARAGRAPH.encode()
    variants = [plain, b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r")]
    documents = [read_documents([write(tmp_path, content)])[0] for content in variants]
    assert {document.text for document in documents} == {PARAGRAPH}
    assert [document.line_endings_changed for document in documents] == [False, False, True, True]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(variants[2]), encoding="ascii"))
    (document,) = read_documents(["-"])
    assert (document.name, document.text) == ("stdin", PARAGRAPH)
    assert read_documents([], [PARAGRAPH])[0].text == PARAGRAPH


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (PARAGRAPH.encode("utf-16"), "is UTF-16: convert it to UTF-8"),
        (b"\xfe\xff" + PARAGRAPH.encode("utf-16-be"), "is UTF-16: convert it to UTF-8"),
        (PARAGRAPH.encode("utf-32"), "is UTF-32: convert it to UTF-8"),
        (b"\x00\x00\xfe\xff" + PARAGRAPH.encode("utf-32-be"), "is UTF-32: convert it to UTF-8"),
        ("abc".encode("utf-16-le"), "has a NUL at byte 1, so it is binary or UTF-16"),
        (b"caf\xe9 noir", "is not valid UTF-8 at byte 3"),
        (b"\xef\xbb\xbfcaf\xe9 noir", "is not valid UTF-8 at byte 6"),
        (b"before \xff\xfe\x00 after", "is not valid UTF-8 at byte 7"),
        (b"", "is empty or only white space"),
        (b" \n\t ", "is empty or only white space"),
        (b"\xef\xbb\xbf", "is empty or only white space"),
    ],
)
def test_what_is_not_utf8_text_is_refused_in_one_line_from_a_file_and_from_stdin(
    tmp_path, monkeypatch, content, reason
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for path, name in [(write(tmp_path, content), r"text\.txt"), ("-", "stdin")]:
        with pytest.raises(TextError, match=f"{name} {reason}") as caught:
            read_documents([path])
        assert "\n" not in str(caught.value)


def test_a_prompt_with_bytes_that_were_not_utf8_is_refused():
    with pytest.raises(TextError, match="prompt 2 is not valid UTF-8 at byte 3"):
        read_documents([], ["good", b"caf\xe9".decode("utf-8", "surrogateescape")])


def test_what_cannot_be_read_is_one_line(tmp_path):
    for path in [tmp_path / "absent", tmp_path, "nul\0name"]:
        with pytest.raises(TextError, match=r"cannot read .*: give a readable UTF-8 file$"):
            read_documents([path])


def test_file_names_are_never_shown_raw(tmp_path):
    with pytest.raises(TextError, match=r"red\\x1b\[31m\\n") as caught:
        read_documents([tmp_path / "red\x1b[31m\n"])
    assert str(caught.value).isprintable()
    assert read_documents([write(tmp_path, b"text", "a\nb.txt")])[0].name.endswith(r"a\nb.txt")


def test_files_come_before_prompts_and_keep_their_order(tmp_path):
    paths = [write(tmp_path, b"one", "z.txt"), str(write(tmp_path, b"two", "a.txt"))]
    documents = read_documents(paths, ["three", "four"])
    assert [document.text for document in documents] == ["one", "two", "three", "four"]
    assert [document.prompt for document in documents] == [False, False, True, True]
    assert [document.name for document in documents[2:]] == ["prompt 1", "prompt 2"]


def test_the_built_in_sample_is_what_there_is_without_files_and_prompts():
    (document,) = read_documents([])
    assert document.name == "built-in sample"
    assert not document.line_endings_changed
    assert len(document.text) > 30_000
    assert document.text[:8_000].isascii()
    scripts = ["的", "の", "في", "ы", "η", "है", "é", "ß", "ñ", "def ", "SELECT"]
    assert [sign for sign in scripts if sign not in document.text] == []


def test_nothing_in_the_built_in_sample_is_padding():
    (document,) = read_documents([])
    paragraphs = [part for part in document.text.split("\n") if len(part.strip("- ")) > 60]
    assert len(set(paragraphs)) == len(paragraphs) > 100
    assert document.text.strip() + "\n" == document.text
