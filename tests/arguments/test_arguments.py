"""Typical mistakes of Python callers: each is one sentence, or what was meant where that is plain."""

import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import tiny
from fixtures_cli import report_of
from jaxtyping import config
from pandas.testing import assert_frame_equal

import sinkscope
from sinkscope.arguments import checked_model
from sinkscope.arguments.options import CHECKS
from sinkscope.errors import OutputError, ReportError, TextError, UnknownNameError
from sinkscope.exporters import export
from sinkscope.metrics import METRICS
from sinkscope.normalizers import Modifier
from sinkscope.runs.options import Options

TEXT = "She said, no. Then: 1, 2 and 3! " * 8
IDS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def unchecked():
    """The shapes and types that only tests check at run time are not: users get the program's own sentences."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def things(model, tokenizer):
    """What the calls below are made with."""
    loaded = types.SimpleNamespace(model=model, tokenizer=tokenizer, origin={})
    return types.SimpleNamespace(model=model, tokenizer=tokenizer, ids=IDS, text=TEXT, loaded=loaded)


def _ids(**options):
    return lambda t: sinkscope.measure(t.model, input_ids=t.ids, **options)


def _text(text, **options):
    return lambda t: sinkscope.measure(t.model, t.tokenizer, text, **options)


def _given(ids, **options):
    return lambda t: sinkscope.measure(t.model, input_ids=ids, **options)


def _swap(*given, **options):
    return lambda t: sinkscope.compare(
        t.model, input_ids=t.ids, normalizers=given[0] if given else "softmax1", **options
    )


def _patch(*given, **options):
    def call(t):
        with sinkscope.patched(t.model, *given, **options):
            pass

    return call


FRAME = pd.DataFrame({"text": ["a", "b"]})

CALLS = {
    "a name as a model": (
        lambda _: sinkscope.measure("gpt2"),
        TypeError,
        "expected a model, got the name 'gpt2': load",
    ),
    "a path as a model": (lambda _: sinkscope.measure(Path("gpt2")), TypeError, "got the name 'gpt2': load it first"),
    "what load gives": (lambda t: sinkscope.measure(t.loaded), TypeError, "holds one: give its .model and .tokenizer"),
    "a module": (lambda t: sinkscope.measure(torch.nn.Linear(2, 2), input_ids=t.ids), TypeError, "got a Linear: load"),
    "no model": (lambda t: sinkscope.measure(None, input_ids=t.ids), TypeError, "got a NoneType: load it first"),
    "swapped": (lambda t: sinkscope.measure(t.tokenizer, t.model, t.text), TypeError, "the model comes first"),
    "a text as tokenizer": (
        lambda t: sinkscope.measure(t.model, t.text),
        TypeError,
        r"write measure\(model, tokenizer",
    ),
    "ids as tokenizer": (lambda t: sinkscope.measure(t.model, t.ids), TypeError, "give token ids as input_ids="),
    "a model as tokenizer": (
        lambda t: sinkscope.measure(t.model, t.model, t.text),
        TypeError,
        "expected a tokenizer of",
    ),
    "a processor": (lambda t: sinkscope.measure(t.model, t.loaded, t.text), TypeError, "give its .tokenizer"),
    "a path as text": (_text(Path("a.txt")), TypeError, r"got the path 'a.txt': give Path\(...\).read_text"),
    "bytes": (_text(b"abc"), TypeError, "expected a text, got bytes"),
    "a table": (_text(FRAME), TypeError, "got a DataFrame: give one column"),
    "a dictionary": (_text({"text": "a"}), TypeError, "expected a text or a list of texts, got a dict"),
    "a number": (_text(3), TypeError, "expected a text or a list of texts, got a int"),
    "a list of numbers": (_text(["a", 3]), TypeError, "expected a list of texts, got a int at place 1"),
    "a list of paths": (_text([Path("a.txt")]), TypeError, "got a PosixPath at place 0"),
    "an empty list": (_text([]), ValueError, "expected at least one text, got an empty list"),
    "an empty text": (_text(""), TextError, "has 0 tokens"),
    "ids of one word": (_given("abc"), TypeError, "expected input_ids to be a tensor"),
    "ragged ids": (_given([[1, 2, 3], [1, 2]]), ValueError, "windows of one length, got 2 and 3: pad"),
    "ids of text": (_given([["a", "b"]]), TypeError, "expected input_ids to hold whole numbers"),
    "floats as ids": (_given([[1.5, 2.5]]), ValueError, "expected integer ids"),
    "no ids": (_given([]), ValueError, "expected integer ids"),
    "ids of three axes": (_given(IDS[None]), ValueError, "expected integer ids"),
    "one id": (_given(torch.tensor(3)), ValueError, "expected integer ids"),
    "ids beyond int": (_given([[1, 2**70]]), TypeError, f"whole numbers up to {2**63 - 1}"),
    "ids beyond the vocabulary": (_given([[1, 2**40]]), TextError, "is not in the vocabulary"),
    "what a tokenizer gives": (lambda t: _given(t.tokenizer(t.text))(t), TypeError, r"give \*\*encoded instead"),
    "an additive mask": (
        _ids(attention_mask=torch.zeros(2, 24) - torch.inf),
        ValueError,
        "1 at tokens and 0 at padding",
    ),
    "a mask of counts": (_ids(attention_mask=[[2] * 24] * 2), ValueError, "1 at tokens and 0 at padding, got 2"),
    "a mask of another shape": (_ids(attention_mask=[[1] * 23] * 2), ValueError, "expected a bool keep"),
    "an unknown option": (_ids(epsilonn=0.3), TypeError, "no option named 'epsilonn': did you mean 'epsilon'?"),
    "another unknown option": (_text(TEXT, seqlen=8), TypeError, "no option named 'seqlen': did you mean 'seq_len'?"),
    "an option of compare": (_ids(normalizers="softmax1"), TypeError, "'normalizers' here: sinkscope.compare has it"),
    "a typo in compare": (_swap(layer=[1]), TypeError, "no option named 'layer': did you mean 'layers'?"),
    "epsilon too large": (_ids(epsilon=3), ValueError, "expected epsilon from 0 to 1, got 3"),
    "epsilon no number": (_ids(epsilon=float("nan")), ValueError, "expected epsilon from 0 to 1, got nan"),
    "epsilon text": (_ids(epsilon="0.3"), TypeError, "expected epsilon to be a number from 0 to 1, got '0.3'"),
    "no windows in a batch": (_ids(batch_size=0), ValueError, "expected batch_size >= 1, got 0"),
    "half a window": (_ids(batch_size=0.5), TypeError, "expected batch_size to be a whole number, got 0.5"),
    "automatic batches": (_ids(batch_size="auto"), TypeError, "expected batch_size to be a whole number, got 'auto'"),
    "no length": (_text(TEXT, seq_len=0), TextError, "a window of 0 tokens is too short"),
    "length as text": (_text(TEXT, seq_len="64"), TypeError, "expected seq_len to be a whole number, got '64'"),
    "length True": (_text(TEXT, seq_len=True), TypeError, "expected seq_len to be a whole number, got True"),
    "no windows": (_text(TEXT, seq_len=32, windows=0), TextError, "0 windows are nothing to measure"),
    "windows in words": (_text(TEXT, windows="two"), TypeError, "expected windows to be a number or 'all', got 'two'"),
    "half windows": (_text(TEXT, windows=2.5), TypeError, "expected windows to be a whole number, got 2.5"),
    "no queries": (_ids(queries=0), ValueError, "expected queries >= 1, got 0"),
    "no initial keys": (_ids(initial=0), ValueError, "expected initial >= 1, got 0"),
    "initial auto": (_ids(initial="auto"), TypeError, "expected initial to be a whole number, got 'auto'"),
    "a negative seed": (_ids(seed=-1), ValueError, "expected seed >= 0, got -1"),
    "few resamples": (_ids(bootstrap=5), ValueError, "expected at least 100 bootstrap samples, got 5"),
    "gradients yes": (_ids(gradients="yes"), TypeError, "expected gradients to be True or False, got 'yes'"),
    "chat yes": (_text(TEXT, chat="yes"), TypeError, "expected chat to be True or False, got 'yes'"),
    "bos True": (_text(TEXT, bos=True), ValueError, "expected bos to be auto, always or never, got True"),
    "synthetic True": (_text(None, synthetic=True), ValueError, "expected synthetic to be random or repeat, got True"),
    "an unknown path": (
        _ids(attention="eager"),
        ValueError,
        "expected attention to be auto, flash or dense, got 'eager'",
    ),
    "an unknown metric": (_ids(only="entropi"), UnknownNameError, "did you mean 'entropy'?"),
    "metrics by number": (_ids(only=[3]), TypeError, "expected only to hold names, got 3"),
    "only True": (_ids(only=True), TypeError, "expected only to be a list of names, got True"),
    "an unknown group": (_ids(also="dormancyy"), UnknownNameError, "did you mean 'dormancy'"),
    "an unknown class": (_ids(classes="punctuaton"), UnknownNameError, "did you mean 'punctuation'?"),
    "names as cards": (_ids(metrics=["entropy"]), TypeError, "expected metrics to be cards"),
    "a name as cards": (_ids(metrics="entropy"), TypeError, "expected metrics to be cards"),
    "an unknown protocol": (_text(TEXT, protocol="gu2024"), UnknownNameError, "did you mean 'gu2025'?"),
    "a protocol by number": (
        _text(TEXT, protocol=3),
        TypeError,
        "expected protocol to be a list of names or cards, got 3",
    ),
    "no protocol in a list": (_text(TEXT, protocol=[None]), TypeError, "a protocol's name or card, got None"),
    "progress True": (_ids(progress=True), TypeError, r"expected progress to be a function of \(stage, done, total\)"),
    "an unknown normalizer": (_swap("softmx1"), UnknownNameError, "did you mean 'softmax1'?"),
    "a normalizer by number": (
        _swap([3]),
        TypeError,
        "expected a normalizer's name, card or function of scores, got 3",
    ),
    "one number": (_swap(3), TypeError, "expected normalizers to be a list of names"),
    "no normalizer": (_swap([]), ValueError, "expected a normalizer or a modifier"),
    "a function of more": (
        _swap(torch.softmax),
        TypeError,
        r"expected a function of scores\[..., key\] alone, got softmax",
    ),
    "settings as modifier": (
        _swap(modifier={"window": 4}),
        TypeError,
        r"expected a modifier such as .*Modifier\(window=64\)",
    ),
    "layers as on the command line": (_swap(layers="0-2"), TypeError, r"such as range\(4, 12\), got '0-2'"),
    "layers as words": (_swap(layers=["1"]), TypeError, "expected a layer's number to be a whole number, got '1'"),
    "layers from the end": (_swap(layers=[-1]), ValueError, "expected a layer's number >= 0, got -1"),
    "no layers": (_swap(layers=[]), ValueError, "expected layers to choose from, got none"),
    "a layer too far": (_swap(layers=[9]), UnknownNameError, "layer 9 has no attention"),
    "heads as numbers": (_swap(heads=[3]), TypeError, r"expected heads as \(layer, head\) pairs such as .*, got 3"),
    "one pair": (_swap(heads=(1, 2)), TypeError, r"expected heads as \(layer, head\) pairs"),
    "heads as on the command line": (_swap(heads="1.2"), TypeError, r"\(layer, head\) pairs such as .*, got '1.2'"),
    "a head from the end": (_swap(heads=[(0, -1)]), ValueError, "expected a head's number >= 0, got -1"),
    "no heads": (_swap(heads=[]), ValueError, "expected heads to choose from, got none"),
    "sweep layers": (_swap(sweep="layers"), TypeError, "expected sweep to be True or False, got 'layers'"),
    "patched by name": (
        lambda _: _patch("softmax1")(types.SimpleNamespace(model="gpt2")),
        TypeError,
        "got the name 'gpt2'",
    ),
    "patched by a list": (_patch(["softmax1"]), TypeError, "expected a normalizer's name, card or function of scores"),
    "patched by nothing": (_patch(None), TypeError, "card or function of scores, got None"),
    "patched heads": (_patch("softmax1", heads=[1]), TypeError, "pairs such as"),
    "patched layers": (_patch("softmax1", layers="1"), TypeError, "expected layers as numbers"),
    "patched modifier": (_patch("softmax1", modifier="window"), TypeError, "expected a modifier such as"),
    "a dtype there is not": (
        lambda _: sinkscope.load("./x", dtype="float8"),
        UnknownNameError,
        "no dtype named 'float8'",
    ),
    "a torch dtype too many": (lambda _: sinkscope.load("./x", dtype=torch.int8), UnknownNameError, "named 'int8'"),
    "a device by number": (lambda _: sinkscope.load("./x", device=0), UnknownNameError, "no device named '0'"),
    "load with progress": (
        lambda _: sinkscope.load("./x", progress=True),
        TypeError,
        "expected progress to be a function",
    ),
    "load a model": (
        lambda t: sinkscope.load(t.model),
        TypeError,
        "expected a model's name or path, got a LlamaForCausalLM",
    ),
    "a report as a picture": (lambda _: report_of([[0.5]]).save("map.png"), OutputError, "save writes .json; use"),
    "a report as a table": (lambda _: report_of([[0.5]]).save("heads.CSV"), OutputError, "sinkscope.exporters.export"),
    "under another name": (lambda _: report_of([[0.5]]).under("softmx"), UnknownNameError, "did you mean 'softmax'?"),
    "under no name": (lambda _: report_of([[0.5]]).under(None), UnknownNameError, "no normalizer named None"),
    "by another name": (lambda _: report_of([[0.5]]).by("nope"), UnknownNameError, "the report has no protocol named"),
    "a report that is a table": (lambda _: sinkscope.Report.load(__file__), ReportError, "is not a JSON report"),
    "a normalizer by place": (lambda _: sinkscope.NORMALIZERS[3], UnknownNameError, "no normalizer named 3"),
    "a metric by typo": (lambda _: METRICS["entrop"], UnknownNameError, "did you mean 'entropy'?"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_mistake_is_one_sentence(case, things):
    call, error, match = CALLS[case]
    with pytest.raises(error, match=match) as caught:
        call(things)
    assert caught.type is error
    assert "\n" not in str(caught.value)


def test_every_option_that_changes_a_figure_is_checked():
    unchecked_ones = {"protocol", "origin"}
    assert set(CHECKS) == set(Options.__dataclass_fields__) - unchecked_ones


MEANT = {
    "one window alone": (_given(IDS[0]), _given(IDS[:1])),
    "lists as ids": (_given(IDS.tolist()), _given(IDS)),
    "one list as ids": (_given(IDS[0].tolist()), _given(IDS[:1])),
    "an array as ids": (_given(IDS.numpy()), _given(IDS)),
    "a mask of lists": (
        _ids(attention_mask=[[1] * 20 + [0] * 4] * 2),
        _ids(attention_mask=torch.arange(24)[None].expand(2, -1) < 20),
    ),
    "one name in only": (_ids(only="entropy"), _ids(only=["entropy"])),
    "masses in only": (_ids(only="masses"), _ids(only=())),
    "masses beside others": (_ids(only=["masses", "entropy"]), _ids(only=["entropy"])),
    "one group in also": (_ids(also="dormancy"), _ids(also=["dormancy"])),
    "one class": (_text(TEXT, seq_len=32, classes="punctuation"), _text(TEXT, seq_len=32, classes=["punctuation"])),
    "one card in metrics": (
        _ids(metrics=sinkscope.PROTOCOLS["gu2025"].metrics[0]),
        _ids(metrics=[sinkscope.PROTOCOLS["gu2025"].metrics[0]]),
    ),
    "no progress": (_ids(progress=None), _ids()),
    "numbers of numpy": (_ids(batch_size=np.int64(1), epsilon=np.float32(0.25)), _ids(batch_size=1, epsilon=0.25)),
    "texts one by one": (_text((each for each in [TEXT, TEXT]), seq_len=32), _text([TEXT, TEXT], seq_len=32)),
    "a column of texts": (_text(pd.Series([TEXT, TEXT]), seq_len=32), _text([TEXT, TEXT], seq_len=32)),
    "one normalizer": (_swap("softmax1"), _swap(["softmax1"])),
    "one card": (_swap(sinkscope.NORMALIZERS["softmax1"]), _swap(["softmax1"])),
    "one layer": (_swap(layers=2), _swap(layers=[2])),
    "layers of numpy": (_swap(layers=np.arange(2)), _swap(layers=[0, 1])),
    "layers in a tensor": (_swap(layers=torch.arange(2)), _swap(layers=[0, 1])),
    "heads as lists": (_swap(heads=[[1, 2], [3, None]]), _swap(heads=[(1, 2), (3, None)])),
    "a modifier alone": (_swap([], modifier=Modifier(window=4)), _swap((), modifier=Modifier(window=4))),
}


@pytest.mark.parametrize("case", MEANT)
def test_what_can_mean_one_thing_only_is_taken_as_that(case, things):
    given, meant = (call(things) for call in MEANT[case])
    for name, table in meant.tables().items():
        assert_frame_equal(given.tables()[name], table)


def test_mistakes_cost_no_forward(things, monkeypatch):
    monkeypatch.setattr(type(things.model), "forward", lambda *_, **__: pytest.fail("the model ran"))
    for case in ("epsilon too large", "an unknown metric", "layers from the end", "heads as numbers", "progress True"):
        call, error, _ = CALLS[case]
        with pytest.raises(error):
            call(things)


def test_a_wrapped_model_that_acts_like_one_is_no_mistake(things):
    class Wrapper(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    checked_model(Wrapper(things.model))


def test_a_torch_dtype_and_a_torch_device_are_what_they_say(tiny_llama):
    loaded = sinkscope.load(tiny_llama, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert loaded.model.dtype == torch.bfloat16


def test_the_export_that_save_speaks_of_takes_a_word_for_a_path(tmp_path):
    export(report_of([[0.5]]), str(tmp_path / "heads.csv"))
    assert (tmp_path / "heads.csv").read_text().startswith("normalizer,")
    report_of([[0.5]]).save(tmp_path / "run")
    assert sinkscope.Report.load(tmp_path / "run").heads["head"].tolist() == [0]
