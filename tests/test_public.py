import ast
import inspect
from pathlib import Path

import pytest

import sinkscope
from sinkscope import errors


def declared_for_type_checkers():
    """The names under `if TYPE_CHECKING:` of the package."""
    tree = ast.parse(Path(sinkscope.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return [name.asname or name.name for statement in block.body for name in statement.names]


def test_public_names_are_sorted_constants_then_classes_then_functions():
    names = sinkscope.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name.islower(), name))


def test_public_names_are_those_that_type_checkers_see():
    assert sorted(sinkscope.__all__) == sorted(declared_for_type_checkers())


@pytest.mark.parametrize("name", sinkscope.__all__)
def test_a_public_name_is_there_and_documented(name):
    found = getattr(sinkscope, name)
    assert name in dir(sinkscope)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__name__ == name
        assert inspect.getdoc(found)


def test_every_error_is_public():
    raised = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert raised <= set(sinkscope.__all__)


def test_every_error_is_drawn_in_the_tree_of_its_module():
    raised = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert [name for name in raised if name not in errors.__doc__] == []


def test_every_error_is_a_refusal_of_sinkscope():
    raised = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert all(issubclass(kind, errors.SinkscopeError) for kind in raised)


def test_a_name_that_is_not_public_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'sink'"):
        sinkscope.sink  # noqa: B018 - the look-up is the test
