"""What is compared between two checkouts: the tables of these cases, by whatever sinkscope is imported."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import sinkscope
from sinkscope.normalizers import Modifier

# Always the same builders: those beside this file, whichever checkout is measured with.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from builders import ARCHITECTURES, byte_tokenizer, tiny

NORMALIZERS = ["softmax", "softmax1", "softpick", "entmax:alpha=1.5", "relu2", "poly2"]
PROTOCOLS = ["sinkscope", "gu2025", "softpick2025", "barbero2025", "streamingllm2024"]
TEXT = "She said, “wait”; he did.\nThen — nothing: no word, no sound at all. Nobody answered.\n\n" * 12
COMMANDS = {
    "measure": ["measure", "--seq-len", "64", "--windows", "2"],
    "measure a text": ["measure", "--text", "text.txt", "--seq-len", "48", "--windows", "all", "--bos", "always"],
    "measure all protocols": ["measure", "--protocol", "gu2025", "--protocol", "barbero2025", "--windows", "2"],
    "measure repeated tokens": ["measure", "--synthetic", "repeat", "--seq-len", "48", "--windows", "3"],
    "patch": ["patch", "-n", "softmax1", "-n", "softpick", "--seq-len", "64", "--windows", "2", "--layers", "3-9"],
    "patch a window": ["patch", "--window", "24", "--keep-sinks", "--seq-len", "64", "--windows", "2"],
    "patch a sweep": ["patch", "-n", "softmax1", "--sweep", "layers", "--seq-len", "32", "--windows", "1"],
}

Case = Callable[[], Mapping[str, Any]]
"""Gives tables by name, and what the report says about them."""


def main() -> None:
    """Run the cases and write their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what is written")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    asked = parser.parse_args()
    collect(asked.file, asked.only)


def collect(file: Path, only: str) -> None:
    """Run the cases on whatever sinkscope is imported, and write their tables."""
    where = Path(sinkscope.__file__).resolve().parent.parent
    if (wanted := Path(os.environ["PYTHONPATH"]).resolve()) != where:
        sys.exit(f"expected sinkscope of {wanted}, got that of {where}")
    torch.set_num_threads(1)
    found = {}
    for name, case in cases().items():
        if only in name:
            found[name] = case()
    file.write_text(json.dumps(found), encoding="utf-8")


def cases() -> dict[str, Case]:
    """Every case by name."""
    found: dict[str, Case] = {}
    ways = {
        "": {},
        ", padded on the left": {"attention_mask": "left"},
        ", padded on the right": {"attention_mask": "right"},
        ", dense": {"attention": "dense"},
        ", sampled": {"queries": 7, "seed": 3},
        ", dormancy": {"also": ["dormancy", "lse"], "bootstrap": 100},
        ", gradients": {"gradients": True},
    }
    for architecture in ARCHITECTURES:
        for way, options in ways.items():
            found[f"measure {architecture}{way}"] = partial(_measured, architecture, options)
        found[f"compare {architecture}"] = partial(_compared, architecture, {"normalizers": NORMALIZERS})
        found[f"compare {architecture}, a window"] = partial(
            _compared, architecture, {"normalizers": ["softmax"], "window": 9, "attention_mask": "left"}
        )
        found[f"compare {architecture}, a sweep"] = partial(
            _compared, architecture, {"normalizers": ["softmax1"], "sweep": True, "queries": 7}
        )
    for protocol in PROTOCOLS:
        found[f"protocol {protocol}"] = partial(_by_protocol, protocol)
    found["text"] = partial(_text, {"seq_len": 32, "windows": 5})
    found["texts of several lengths"] = partial(_text, {"text": [TEXT, "Short, and\nsweet.", TEXT[:90]], "seq_len": 64})
    found["embedded, six normalizers"] = partial(_embedded, {"normalizers": NORMALIZERS})
    found["embedded, everything"] = partial(_embedded, {"also": ["dormancy", "lse"], "gradients": True})
    found["embedded, sampled"] = partial(_embedded, {"queries": 9})
    for name, words in COMMANDS.items():
        found[f"$ {name}"] = partial(_typed, words)
    return found


@cache
def _model(architecture: str, **settings: Any) -> Any:
    return tiny(architecture, **settings)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with random ids, and with a mask in place of the name of its side."""
    ids = torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(1))
    found = dict(options) | {"input_ids": ids}
    if side := found.pop("attention_mask", None):
        lengths = torch.tensor([[24], [17], [11]])
        at = torch.arange(24)
        found["attention_mask"] = at >= 24 - lengths if side == "left" else at < lengths
    return found


def _measured(architecture: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    return _tables(sinkscope.measure(_model(architecture), **_given(options)))


def _compared(architecture: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _given(options)
    if window := found.pop("window", None):
        found["modifier"] = Modifier(window=window)
    return _tables(sinkscope.compare(_model(architecture), **found))


def _by_protocol(protocol: str) -> Mapping[str, Any]:
    model = _model("llama", max_position_embeddings=5000, num_hidden_layers=2)
    return _tables(sinkscope.measure(model, byte_tokenizer(), protocol=protocol, windows=2))


def _text(options: Mapping[str, Any]) -> Mapping[str, Any]:
    return _tables(sinkscope.measure(_model("llama"), byte_tokenizer(), **({"text": TEXT} | dict(options))))


def _embedded(options: Mapping[str, Any]) -> Mapping[str, Any]:
    model, tokenizer = _loaded()
    run = sinkscope.compare if "normalizers" in options else sinkscope.measure
    return _tables(run(model, tokenizer, seq_len=64, windows=2, **options))


@cache
def _loaded() -> tuple[Any, Any]:
    model, tokenizer = sinkscope.load(device="cpu")
    return model, tokenizer


def _tables(report: Any) -> Mapping[str, Any]:
    return {name: json.loads(json.dumps(table.to_dict("list"))) for name, table in report.tables().items()}


def _typed(words: list[str]) -> Mapping[str, Any]:
    """The tables of a command's JSON."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text(TEXT, encoding="utf-8")
        command = [sys.executable, "-m", "sinkscope", *words, "--json", "--quiet"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=folder)  # noqa: S603 - ourselves
    return {name: table["columns"] for name, table in json.loads(ended.stdout)["tables"].items()}


if __name__ == "__main__":
    main()
