"""What is said of windows whose lengths matter."""

import torch
from builders import tiny

import sinkscope
from sinkscope.text.lengths import length_warnings


def keeping(*lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_windows_of_one_length_that_is_long_enough_need_no_word():
    assert length_warnings(keeping(32, 32, 32)) == []


def test_unequal_windows_and_short_ones_are_named():
    unequal, short = length_warnings(keeping(31, 100, 512))
    assert "windows have 31 to 512 tokens" in unequal
    assert short.startswith("1 of 3 windows have fewer than 32 tokens")
    assert len(length_warnings(keeping(100, 512))) == len(length_warnings(keeping(20, 20))) == 1


def test_a_report_holds_the_warnings_and_the_rule_of_its_errors():
    ids = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(0))
    report = sinkscope.measure(tiny("llama", num_hidden_layers=1), input_ids=ids)
    assert any("fewer than 32 tokens" in each for each in report.metadata["text"]["warnings"])
    told = report.metadata["standard_errors"]
    assert (told["over"], told["number"], told["documents"]) == ("windows", 2, 1)
    assert "too small" in told["note"]
