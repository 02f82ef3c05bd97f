"""An option of one value is given once, whichever command it belongs to."""

import pytest
import typer
from typer.main import get_command

from sinkscope.cli.app import app
from sinkscope.cli.repetition import refuse_repeated


def _options(command, context, path=()):
    """Every option of a command and of those within it, with the words that lead to it."""
    for parameter in command.get_params(context):
        if parameter.param_type_name == "option":
            yield path, parameter
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        yield from _options(inner, inner.make_context(name, [], parent=context, resilient_parsing=True), (*path, name))


COMMAND = get_command(app)
OPTIONS = list(_options(COMMAND, COMMAND.make_context("sinkscope", [], resilient_parsing=True)))


def _twice(parameter):
    value = [] if parameter.is_flag else ["1"]
    return [word for name in (parameter.opts[0], parameter.opts[-1]) for word in (name, *value)]


def _id(case):
    path, parameter = case
    # The names of --help are kept in a set, whose order changes from process to process.
    return " ".join([*path, max(parameter.opts, key=len)])


@pytest.mark.parametrize("case", OPTIONS, ids=map(_id, OPTIONS))
def test_an_option_is_repeatable_or_its_repetition_is_refused(case):
    path, parameter = case
    words = [*path, *_twice(parameter)]
    if parameter.multiple or parameter.is_eager:
        refuse_repeated(COMMAND, words, "sinkscope")
        return
    with pytest.raises(typer.BadParameter, match=rf"{parameter.opts[0]}.* is given twice: give it once"):
        refuse_repeated(COMMAND, words, "sinkscope")


def test_the_rule_has_options_to_hold_for():
    names = {name for _, parameter in OPTIONS for name in parameter.opts}
    assert {"--window", "--seq-len", "-m", "--profile", "--json", "--version", "--text"} <= names


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("patch", "./none", "--window", "64", "--window", "128"), "--window is given twice"),
        (("measure", "./none", "-b", "1", "--batch-size=1"), "--batch-size/-b is given twice"),
        (("measure", "./none", "-qq"), "--quiet/-q is given twice"),
        (("measure", "./none", "--dtype", "float16", "--torch-dtype", "bfloat16"), "--dtype and --torch-dtype are one"),
    ],
)
def test_a_repetition_is_one_line_and_status_2(words, reason, run):
    ended = run(*words)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert reason in ended.err
    assert f"see `sinkscope {words[0]} --help`" in ended.err


def test_help_wins_over_a_repetition(run):
    assert run("measure", "--seq-len", "3", "--seq-len", "4", "--help").status == 0


def test_a_setting_of_a_normalizer_is_given_once(run, tiny_llama):
    ended = run("patch", tiny_llama, "-n", "entmax:alpha=1.5,alpha=2")
    assert ended.err == "sinkscope: entmax:alpha=1.5,alpha=2: a setting is given twice; give each once\n"
