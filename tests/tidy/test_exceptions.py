"""No exception object is raised twice: each raise lengthens its traceback, which keeps the frames of all who ever met it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.house import SOURCES, relative, tree_of

ONCE_ONLY = {
    "shadowrelay/store/opening.py:call.error",  # a call made, kept and dropped in the same function
    "shadowrelay/store/commit.py:call.error",  # each call has an error of its own, and one waiter
}


def stored_exceptions(path: Path) -> Iterator[str]:
    """What is raised, or given to a future, straight out of an attribute or a container."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            given = node.exc
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_exception":
            given = node.args[0]
        else:
            continue
        yield from (f"{relative(path)}:{ast.unparse(leaf)}" for leaf in leaves(given) if is_stored(leaf))


def leaves(given: ast.expr) -> list[ast.expr]:
    if isinstance(given, ast.BoolOp):
        return [leaf for value in given.values for leaf in leaves(value)]
    if isinstance(given, ast.IfExp):
        return [*leaves(given.body), *leaves(given.orelse)]
    return [given]


def is_stored(given: ast.expr) -> bool:
    is_class = isinstance(given, ast.Attribute) and given.attr[0].isupper()
    return isinstance(given, ast.Attribute | ast.Subscript) and not is_class


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_an_exception_is_made_where_it_is_raised(path):
    assert set() == set(stored_exceptions(path)) - ONCE_ONLY
