import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sinkscope"
MODULES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FILE = 300
LONGEST_FUNCTION = 40
LONG_FUNCTIONS = {
    "cli/patch.py:patch": "a command's options are its arguments, and each takes a line or more",
    "cli/running.py:request": "likewise, for the options that commands share",
}
"""What may be longer, with the reason."""


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def drawn(file, heading):
    """Each line of the tree under a heading of a page, as its depth and its first word."""
    text = (ROOT / file).read_text("utf-8")
    block = re.search(rf"## {heading}\n\n```text\nsinkscope/\n(.*?)```", text, re.DOTALL)[1]
    return [((len(line) - len(line.lstrip())) // 2, line.split()[0]) for line in block.splitlines()]


def documented_files():
    """The paths in the tree of files: a folder's name ends in a slash, and what is in it is indented."""
    folders = []
    for depth, name in drawn("ARCHITECTURE.md", "The files"):
        folders = folders[: depth - 1]
        if name.endswith("/"):
            folders.append(name)
        else:
            yield "".join(folders) + name


def functions(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(function):
    """From its name to its end: decorators and docstring are not what makes a function long."""
    documented = ast.get_docstring(function) is not None
    doc = function.body[0].end_lineno - function.body[0].lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - doc


def placed_modules():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [name.strip() for layer in layers for name in layer.split("|")]


def test_the_files_that_are_drawn_are_the_files_on_disk():
    kept = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sorted(documented_files()) == sorted(map(relative, kept))


def test_the_rooms_in_the_readme_are_the_rooms_on_disk():
    folders = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(name for _, name in drawn("README.md", "The rooms")) == sorted(folders)


def test_there_are_few_modules_at_the_top_and_not_many_rooms():
    assert len([*PACKAGE.glob("*.py")]) <= 8
    assert len([*PACKAGE.glob("*/__init__.py")]) <= 20


def test_every_module_has_a_place_among_the_layers():
    top = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert sorted(placed_modules()) == sorted(top)


def test_the_layers_that_are_drawn_are_the_layers_that_are_enforced():
    lines = re.search(r"```text\n(__main__.*?)```", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.DOTALL)[1]
    assert re.split(r" · |\n", lines.strip()) == placed_modules()


def test_imports_keep_to_their_contracts():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_short_and_says_what_it_is_for(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None
    assert docstring[-1] == "." or "\n" in docstring


def test_no_function_is_long_without_a_reason():
    long = {
        f"{relative(path)}:{function.name}": lines_of(function)
        for path in MODULES
        for function in functions(path)
        if lines_of(function) > LONGEST_FUNCTION
    }
    assert long.keys() == LONG_FUNCTIONS.keys(), long


@pytest.mark.parametrize("module", ["sinkscope", "sinkscope.cli.app", "sinkscope.__main__"])
def test_what_help_imports_is_light(module):
    heavy = "{'torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'huggingface_hub', 'accelerate'}"
    code = f"import sys, {module}; print(*({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
