"""What users of neighbouring tools ran into with BOS, punctuation, text, screens and files, end to end."""

import io
import json
import sys

import pandas as pd
import pytest
import torch
from builders import tiny
from fixtures_cli import QUICK
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

import sinkscope
from sinkscope.errors import SinkscopeError, TextError
from sinkscope.text import corpus

PARAGRAPH = "The café by the water opens at six, they said.\nNobody is ever there before seven.\n"
CHATML = "{% for turn in messages %}<s>{{ turn.role }}\n{{ turn.content }}</s>{% endfor %}"
MARKUP = "[/INST] [bold]x [red] [/] :smile: [link=file:///etc]a \x1b[31m \x07 \x08 "


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def adds_bos(tokenizer):
    """The same tokenizer, putting <s> in front itself."""
    core = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")  # noqa: S106


def text_file(folder, content):
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(ended, *words):
    """One line on stderr that says these words, and a status of 1."""
    lines = [line for line in ended.err.splitlines() if line.startswith("sinkscope: ")]
    assert (ended.status, ended.out, len(lines)) == (1, "", 1)
    assert "Traceback" not in ended.err
    assert [word for word in words if word not in lines[0]] == []


def strict(text):
    def fail(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=fail)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("text", ["plain, text.", "<s>literal, text."])
def test_trial_12_bos_is_told_and_null_where_there_is_none(model, tokenizer, adds_bos, native, text):
    chosen = adds_bos if native else tokenizer
    reports = {bos: sinkscope.measure(model, chosen, text, bos=bos) for bos in ("auto", "always", "never")}
    assert len(reports["always"].tokens) == len(reports["never"].tokens) + 1
    literal = text.startswith("<s>")
    for bos, report in reports.items():
        told = report.metadata["text"]
        ours = bos == "always" or (bos == "auto" and native)
        assert told["bos_token"] == "<s>"  # noqa: S105
        assert told["n_leading_bos"] == ours + literal
        assert told["bos_added_by"] == (
            ("tokenizer" if native else "sinkscope") if ours else "text" if literal else None
        )
        assert told["first_token"] == ("<s>" if ours or literal else "p")
        assert any("begins with 2 BOS" in warning for warning in told["warnings"]) == (told["n_leading_bos"] == 2)
        assert report.summary["bos_mass"].notna().all() == (told["n_leading_bos"] > 0)


@pytest.mark.parametrize("native", [False, True])
def test_trial_12_a_chat_template_never_doubles_bos(tokenizer, adds_bos, native, monkeypatch):
    chosen = adds_bos if native else tokenizer
    monkeypatch.setattr(chosen, "chat_template", CHATML)
    prompt = [corpus.Document("prompt", "Hi, you.", prompt=True)]
    found = {bos: corpus.windows(chosen, prompt, bos=bos, chat=True) for bos in ("auto", "always", "never")}
    assert [each.provenance["n_leading_bos"] for each in found.values()] == [1, 1, 0]
    assert found["always"].ids[:, 1:].equal(found["never"].ids)


def test_trial_12_before_and_after_a_swap_begin_alike(model, adds_bos):
    report = sinkscope.compare(model, adds_bos, PARAGRAPH, normalizers=["softmax1"], seq_len=40)
    firsts = report.tokens[report.tokens["position"] == 0].groupby("normalizer")["token"].unique()
    assert [list(tokens) for tokens in firsts] == [["<s>"], ["<s>"]]


@pytest.mark.parametrize(
    ("text", "punctuation", "newlines"),
    [
        ("x a ,b", ",", 0),
        ("x 你好，世界。「引」", "，。「」", 0),
        ('x stop."\n\nThen', '."', 2),
        ("x ...", "...", 0),
        ("x don't", "'", 0),
        ("x $ + < = > ^ | ~ `", "$+<=>^|~`", 0),
        ("x\n\n", "", 2),
        ("x e\u0301 \u200b \u00ad \x00 \U0001f98a \u0645\u064e", "", 0),
        ("x ؟ ، ¿ — …", "؟،¿—…", 0),
    ],
    ids=ascii,
)
def test_trial_13_punctuation_is_what_it_is_in_any_script(model, tokenizer, text, punctuation, newlines):
    report = sinkscope.measure(model, tokenizer, text)
    counts = report.tokens["class"].value_counts()
    # The tokens of this tokenizer are bytes, and each byte of a sign is part of it.
    assert counts.get("punctuation", 0) == len(punctuation.encode())
    assert counts.get("newline", 0) == newlines
    assert "mixed tokens such as 't too" in report.metadata["punctuation_rule"]
    assert "$ + < = > ^ ` | ~" in report.metadata["punctuation_rule"]


class WithoutOffsets(PreTrainedTokenizerFast):
    """Every offset is empty, and decoding is all there is: pieces are in no known alphabet."""

    def __call__(self, text, **options):
        encoded = super().__call__(text, **options)
        encoded["offset_mapping"] = [(0, 0)] * len(encoded["input_ids"])
        return encoded

    def convert_ids_to_tokens(self, ids, **options):
        pieces = super().convert_ids_to_tokens(ids, **options)
        return pieces if isinstance(pieces, str) else [f"#{piece}#" for piece in pieces]


def test_trial_13_bad_offsets_and_unknown_alphabets_change_no_class(model, tokenizer):
    core = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    bad = WithoutOffsets(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")  # noqa: S106
    text = 'x stop."\n\nThen 你好，世界。「引」 e\u0301'
    good, worse = (sinkscope.measure(model, each, text).tokens for each in (tokenizer, bad))
    assert worse["class"].tolist() == good["class"].tolist()


@pytest.mark.parametrize("content", ["", " ", "\n", "\ufeff"], ids=ascii)
def test_trial_14_no_text_is_one_line(run, tiny_llama, tmp_path, content):
    refused(run("measure", tiny_llama, "--text", text_file(tmp_path, content)), "text.txt is empty or only white space")


def test_trial_14_one_token_and_no_tokens_are_refused(run, tiny_llama, tmp_path):
    refused(run("measure", tiny_llama, "--text", text_file(tmp_path, ".")), "has 1 token, and at least 2 are needed")
    for wrong in (["--seq-len", "0"], ["--seq-len", "-1"], ["--windows", "0"]):
        assert run("measure", tiny_llama, *wrong).status == 2


def test_trial_14_bos_and_one_token_have_a_perplexity_of_one_prediction(model, adds_bos):
    report = sinkscope.measure(model, adds_bos, ".")
    assert report.summary["tokens_scored"].tolist() == [1]


def test_trial_14_too_long_is_refused_with_both_numbers_or_warned_about(tokenizer):
    with pytest.raises(TextError, match="windows of 65 tokens are longer than the 64 positions of GPT2LMHeadModel"):
        sinkscope.measure(tiny("gpt2"), tokenizer, "a " * 100, seq_len=65)
    warnings = sinkscope.measure(tiny("llama"), tokenizer, "a " * 100, seq_len=100).metadata["text"]["warnings"]
    assert warnings == ["windows of 100 tokens are longer than the 64 positions the model was made for"]


def test_trial_15_every_encoding_of_a_text_gives_the_same_windows(tokenizer, tmp_path, monkeypatch):
    plain = PARAGRAPH.encode()
    variants = {
        "LF": plain,
        "CRLF": plain.replace(b"\n", b"\r\n"),
        "BOM": b"\xef\xbb\xbf" + plain,
        "UTF-16": PARAGRAPH.encode("utf-16"),
    }
    found = {
        name: corpus.windows(tokenizer, corpus.read_documents([text_file(tmp_path, content)]), seq_len=40)
        for name, content in variants.items()
    }
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(variants["CRLF"])))
    found["stdin"] = corpus.windows(tokenizer, corpus.read_documents(["-"]), seq_len=40)
    assert {tuple(each.ids.flatten().tolist()) for each in found.values()} == {
        tuple(found["LF"].ids.flatten().tolist())
    }
    endings = {name: each.provenance["line_endings"] for name, each in found.items()}
    changed = {name for name, told in endings.items() if told == "normalised to LF"}
    assert changed == {"CRLF", "stdin"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9 noir", "text.txt is not valid UTF-8 at byte 3"),
        (b"before \xff\xfe\x00 after", "text.txt is not valid UTF-8 at byte 7"),
        ("no mark".encode("utf-16-le"), "text.txt has a NUL at byte 1"),
    ],
)
def test_trial_15_bytes_that_are_no_text_are_one_line_with_their_place(run, tiny_llama, tmp_path, content, reason):
    refused(run("measure", tiny_llama, "--text", text_file(tmp_path, content)), reason)


def _exhausted(*_, **__):
    raise torch.OutOfMemoryError("tried to allocate 97 GiB")


def test_trial_16_out_of_memory_is_one_line_and_no_file(run, model, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr(type(model.model.layers[2].mlp), "forward", _exhausted)
    text = text_file(tmp_path, PARAGRAPH)
    ended = run("measure", tiny_llama, "--text", text, *QUICK, "-o", tmp_path / "run.json")
    refused(ended, "out of memory", "--seq-len", "--batch-size")
    assert not (tmp_path / "run.json").exists()


def test_trial_16_out_of_memory_in_a_layer_leaves_the_model_as_it_was(model, tokenizer, monkeypatch):
    ids = torch.arange(3, 15)[None]
    before = model(ids).logits
    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[2].mlp, "forward", _exhausted)
        with pytest.raises((SinkscopeError, torch.OutOfMemoryError), match=r"out of memory|97 GiB"):
            sinkscope.measure(model, tokenizer, PARAGRAPH, seq_len=40)
    assert model(ids).logits.equal(before)


def test_trial_17_markup_and_escapes_are_shown_and_never_obeyed(run, tiny_llama, tmp_path):
    words = [
        "--text",
        text_file(tmp_path, MARKUP * 4),
        *QUICK,
        "-o",
        tmp_path / "tokens.csv",
        "-o",
        tmp_path / "r.json",
    ]
    ended = run("measure", tiny_llama, *words)
    assert ended.status == 0
    raw = (tmp_path / "tokens.csv").read_text("utf-8")
    for sign in ("\x1b", "\x07", "\x08"):
        assert sign not in ended.out + ended.err + raw
    tokens = sinkscope.Report.load(tmp_path / "r.json").tokens
    assert "".join(tokens["token"]) == (MARKUP * 4)[: len(tokens)]


@pytest.mark.parametrize("name", ["[/x]", "[red]", ":smile:", "\x1b[31m"], ids=ascii)
def test_trial_17_names_are_shown_literally_in_errors(run, tiny_llama, name):
    literal = name.replace("\x1b", r"\x1b")
    for words in (["measure", tiny_llama, "--text", name], ["measure", f"./{name}"]):
        ended = run(*words)
        refused(ended, literal)
        assert "\x1b" not in ended.err


@pytest.mark.parametrize(
    "environment",
    [
        {"COLUMNS": "30"},
        {"COLUMNS": "0"},
        {"TERM": "dumb"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"},
        {"FORCE_COLOR": "0"},
        {"NO_COLOR": "1"},
    ],
    ids=str,
)
def test_trial_18_no_number_is_cut_and_no_escape_is_sent(run, tiny_llama, tmp_path, environment, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ended = run("measure", tiny_llama, "--text", text_file(tmp_path, PARAGRAPH), *QUICK)
    assert ended.status == 0
    assert "\x1b" not in ended.out + ended.err
    assert not [word for word in ended.out.split() if word[:1].isdigit() and word.endswith("…")]


def test_trial_18_json_has_no_escapes_where_colour_is_forced(run, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    ended = run("measure", tiny_llama, "--text", text_file(tmp_path, MARKUP * 4), *QUICK, "--json")
    assert "\x1b" not in ended.out
    assert strict(ended.out)["metadata"]["text"]["windows"] == 2


def test_trial_19_what_is_not_finite_is_null_or_told(tokenizer):
    model = tiny("llama", tie_word_embeddings=False)
    model.lm_head.weight.data.mul_(1e6)
    report = sinkscope.compare(model, tokenizer, PARAGRAPH, normalizers=["softpick"], seq_len=40)
    document = strict(report.to_json())
    assert "bos_*" in document["metadata"]["undefined"]
    assert report.summary["perplexity"].tolist() == [torch.inf, torch.inf]
    assert sinkscope.measure(model, tokenizer, "ab").summary["tokens_scored"].tolist() == [1]


def test_trial_20_tables_have_dots_and_guards_touch_tokens_only(run, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    words = ["--text", text_file(tmp_path, "=1+1 -0.5 @x " * 8), *QUICK]
    ended = run(
        "patch", tiny_llama, *words, "-n", "softmax1", "-o", tmp_path / "heads.csv", "-o", tmp_path / "tokens.csv"
    )
    assert ended.status == 0
    heads = pd.read_csv(tmp_path / "heads.csv")
    change = heads["first_share_delta"].dropna()
    assert (change < 0).any()
    assert '"-0.' not in (tmp_path / "heads.csv").read_text("utf-8")
    tokens = pd.read_csv(tmp_path / "tokens.csv", keep_default_na=False)["token"]
    assert not tokens.str.match(r"[=+\-@]").any()
    assert tokens.str.match(r"'[=+\-@]").any()


@pytest.mark.parametrize("name", ["folder.csv", "missing/run.json", "run.unknown"])
def test_trial_20_a_path_that_cannot_be_written_is_told_before_a_model_is_looked_for(run, tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    refused(run("measure", "no/such-model", "-o", tmp_path / name), name)


def test_trial_20_old_files_are_kept_where_a_run_fails(run, tiny_llama, tmp_path):
    (tmp_path / "run.json").write_text("old")
    text = text_file(tmp_path, "too short")
    refused(run("measure", tiny_llama, "--text", text, "-o", tmp_path / "run.json"), "fewer than one window")
    assert (tmp_path / "run.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "text.txt"]


def test_trial_12_chat_on_the_command_line_marks_the_template(run, tiny_llama, tokenizer, tmp_path):
    folder = tmp_path / "chatty"
    folder.mkdir()
    for path in tiny_llama.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    refused(run("measure", folder, "--prompt", "Hi, you.", "--chat"), "no chat template: leave out --chat")
    (folder / "chat_template.jinja").write_text(CHATML, "utf-8")
    ended = run("measure", folder, "--prompt", "Hi, you.", "--chat", "-o", tmp_path / "run.json")
    assert ended.status == 0
    report = sinkscope.Report.load(tmp_path / "run.json")
    said = report.tokens[~report.tokens["class"].isin(["first", "special"])]
    assert "".join(said["token"]) == "Hi, you."
    assert report.metadata["text"]["chat"]["template_tokens"] == len(report.tokens) - len(said)


def test_trial_14_directories_and_tables_are_texts_on_the_command_line(run, tiny_llama, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("short", "utf-8")
    (texts / "b.jsonl").write_text(json.dumps({"body": PARAGRAPH * 2}) + "\n", "utf-8")
    refused(run("measure", tiny_llama, "--text", texts), "b.jsonl line 1 has no column 'text'", "there are body")
    ended = run("measure", tiny_llama, "--text", texts, "--column", "body", *QUICK, "-o", tmp_path / "run.json")
    assert ended.status == 0
    assert f"note: {texts}: 2 files" in ended.err
    told = sinkscope.Report.load(tmp_path / "run.json").metadata["text"]
    assert (told["documents_read"], told["documents_too_short"]) == (2, 1)
    assert [each["name"] for each in told["documents"]] == [f"{texts / 'b.jsonl'} line 1"]
