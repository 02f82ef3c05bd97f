import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RECIPES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text("utf-8"), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def small_model(monkeypatch, tiny_llama):
    """The model that is meant where none is named."""
    monkeypatch.setenv("SINKSCOPE_MODEL", str(tiny_llama))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_prints_a_table(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[0] in {"layer", "normalizer"}
    assert len(rows) >= 4
    assert len(rows[0].split()) == len(header.split())


def test_an_example_measures_the_model_it_is_given(tiny_llama, monkeypatch, capsys):
    monkeypatch.setenv("SINKSCOPE_MODEL", "there/is-none")
    path = ROOT / "examples" / "measure_a_model.py"
    monkeypatch.setattr(sys, "argv", [str(path), str(tiny_llama)])
    runpy.run_path(str(path), run_name="__main__")
    assert "all heads" in capsys.readouterr().out


def test_the_recipes_run_from_top_to_bottom():
    names = {}
    for recipe in RECIPES:
        exec(compile(recipe, "docs/extending.md", "exec"), names)  # noqa: S102 - our own page
    assert {"RESTING", "REPEATED", "RELU3", "MARKDOWN"} <= names.keys()
