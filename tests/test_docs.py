import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from sinkscope import METRICS, NORMALIZERS, TOKEN_CLASSES
from sinkscope.cli.app import app
from sinkscope.exporters import EXPORTERS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CATALOGS = {"metrics": METRICS, "tokens": TOKEN_CLASSES, "normalizers": NORMALIZERS, "cli": EXPORTERS}


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def prose(name):
    """A page without what cog wrote into it."""
    return re.sub(r"<!-- \[\[\[cog.*?\[\[\[end\]\]\] -->", "", page(name), flags=re.DOTALL)


def commands(command, words=()):
    """Every command with its words, groups included."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


def test_the_generated_parts_are_fresh():
    cog = Path(sys.executable).with_name("cog")
    pages = sorted((ROOT / "docs").glob("*.md"))
    done = subprocess.run(
        [cog, "-I", "docs", "--check", *pages],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, f"{done.stdout}\nrun: make docs-write"


@pytest.mark.parametrize("name", CATALOGS)
def test_every_card_of_a_catalog_is_on_its_page(name):
    listed = re.findall(r"^\| `(?:\{class\}_)?([^`]+)` \|", page(name), flags=re.MULTILINE)
    assert [card for card in CATALOGS[name] if card not in listed] == []


@pytest.mark.parametrize(("words", "command"), [*commands(get_command(app))], ids=str)
def test_every_command_and_each_of_its_options_is_documented(words, command):
    heading = f"## `{' '.join(['sinkscope', *words])}`\n"
    assert heading in page("cli")
    section = page("cli").partition(heading)[2].partition("\n## ")[0]
    options = [option for each in command.params if not getattr(each, "hidden", False) for option in each.opts]
    assert [option for option in options if option.startswith("--") and option not in section] == []


def test_the_readme_names_every_command():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in get_command(app).commands if f"`sinkscope {name}`" not in readme] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_link_within_the_repository_leads_somewhere(path):
    without_code = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", without_code)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("name", ["metrics", "tokens", "normalizers", "cli"])
def test_a_page_of_a_catalog_is_more_than_its_table(name):
    assert len(prose(name).split()) > 50


def test_the_readme_begins_with_the_two_commands():
    first = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    assert first.splitlines() == ["make demo", "make test"]


def test_every_target_that_contributors_are_told_of_is_in_the_makefile():
    told = re.findall(r"`make ([a-z-]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    assert told
    assert set(told) <= set(targets)
