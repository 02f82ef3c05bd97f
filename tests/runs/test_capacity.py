"""Windows longer than a model's positions are refused wherever these come from a table, and only there."""

import pytest
import torch
from builders import tiny
from soundness import plain
from tiny_models import tiny_model

import sinkscope
from sinkscope.runs.capacity import longest_window, table_positions

pytestmark = pytest.mark.slow

TABLES = {
    **dict.fromkeys(("gpt2", "gptj", "codegen", "ctrl", "opt", "biogpt", "openai-gpt", "bert"), 64),
    **dict.fromkeys(("roberta", "xlm-roberta"), 63),
    "whisper": 448,
}
"""How many tokens each tiny model takes; RoBERTa's relatives keep the first rows for padding."""

COMPUTED = ("llama", "bloom", "gemma3")
"""Rotary and ALiBi models take any length; the tower for images of one of them has a table of its own."""


@pytest.mark.parametrize("model_type", TABLES)
def test_the_longest_window_is_the_longest_that_the_model_itself_takes(model_type):
    model, longest = tiny_model(model_type, layers=1), TABLES[model_type]
    ids = torch.randint(3, 128, (1, longest + 1), generator=torch.Generator().manual_seed(0))
    assert table_positions(model) == longest == longest_window(model)
    assert plain(model, ids[:, :longest]).shape[1] == longest
    with pytest.raises((IndexError, RuntimeError)):
        plain(model, ids)
    sinkscope.measure(model, input_ids=ids[:, :longest])
    with pytest.raises(
        sinkscope.TextError, match=f"longer than the {longest} positions of .*: use --seq-len {longest}"
    ):
        sinkscope.measure(model, input_ids=ids)


@pytest.mark.parametrize("model_type", COMPUTED)
def test_positions_that_are_computed_have_no_end_and_a_warning(model_type):
    model = tiny_model(model_type, layers=2)
    ids = torch.randint(3, 128, (1, 100), generator=torch.Generator().manual_seed(0))
    assert longest_window(model) is None
    warnings = sinkscope.measure(model, input_ids=ids).metadata["text"]["warnings"]
    assert any("longer than the 64 positions" in each for each in warnings) is (model_type != "bloom")


def test_a_limit_that_only_the_models_code_knows_is_found_by_trying():
    model = tiny_model("mpt", layers=2)
    ids = torch.randint(3, 128, (1, 65), generator=torch.Generator().manual_seed(0))
    assert table_positions(model) is None
    assert longest_window(model) == 64
    sinkscope.measure(model, input_ids=ids[:, :64])
    with pytest.raises(sinkscope.TextError, match="longer than the 64 positions of MptForCausalLM"):
        sinkscope.measure(model, input_ids=ids)


@pytest.mark.parametrize("how", [{"text": "Some text. " * 40}, {"synthetic": "random"}, {}])
def test_default_windows_are_no_longer_than_the_model_has_positions(tokenizer, how):
    report = sinkscope.measure(tiny("gpt2"), tokenizer, **how)
    assert set(report.heads["seq_len"]) == {64}
    assert any("64 tokens: the model has no more positions" in each for each in report.metadata["text"]["warnings"])


def test_a_length_that_was_asked_for_is_never_shortened(tokenizer):
    with pytest.raises(sinkscope.TextError, match="use --seq-len 64 or less"):
        sinkscope.measure(tiny("gpt2"), tokenizer, seq_len=65)
    report = sinkscope.measure(tiny("gpt2"), tokenizer, seq_len=32)
    assert not any("positions" in each for each in report.metadata["text"]["warnings"])


def test_the_command_line_shortens_its_default_windows_too(run, tmp_path, tokenizer):
    tiny("gpt2").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = run("measure", str(tmp_path))
    assert found.status == 0, found.err
    assert "no more positions" in found.out
