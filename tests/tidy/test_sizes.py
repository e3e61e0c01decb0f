"""Modules and functions stay small enough to be read at one go."""

import ast

from tests.tidy.house import SOURCES, relative, tree_of

MODULE_LINES_MAX = 300
FUNCTION_LINES_MAX = 60
REASON = "300 lines"  # as in: "over 300 lines, because …"


def test_a_module_is_short_or_says_why_it_is_not() -> None:
    too_long = {}
    for path in SOURCES:
        lines_count = len(path.read_text(encoding="utf-8").splitlines())
        excuse = " ".join((ast.get_docstring(tree_of(path)) or "").split())
        if lines_count > MODULE_LINES_MAX and REASON not in excuse:
            too_long[relative(path)] = lines_count

    assert {} == too_long


def test_functions_are_short() -> None:
    lengths = {
        f"{relative(path)}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {} == {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX}


def test_every_module_tells_its_theory() -> None:
    assert [] == [relative(path) for path in SOURCES if not ast.get_docstring(tree_of(path))]
