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


def documented_tree():
    """The paths in the README's tree: a folder's name ends in a slash, and what is in it is indented."""
    block = re.search(
        r"## The tree\n\n```text\nsinkscope/\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )[1]
    folder, paths = "", []
    for line in block.splitlines():
        depth, name = len(line) - len(line.lstrip()), line.split()[0]
        folder = folder if depth > 2 else ""
        if name.endswith("/"):
            folder = name
        else:
            paths.append(folder + name)
    return paths


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


def test_the_tree_in_the_readme_is_the_tree_on_disk():
    kept = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sorted(documented_tree()) == sorted(map(relative, kept))


def test_every_module_has_a_place_among_the_layers():
    top = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert sorted(placed_modules()) == sorted(top)


def test_the_layers_that_are_drawn_are_the_layers_that_are_enforced():
    drawn = re.search(r"```text\n(__main__.*?)```", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.DOTALL)[1]
    assert re.split(r" · |\n", drawn.strip()) == placed_modules()


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
