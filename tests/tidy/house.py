"""What the tidy tests read: the files of the house, and the imports in them."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "shadowrelay"
SKIPPED = {".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".demo", "__pycache__", "build", "dist", "tmp"}
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".sh",
    ".dlg",
    ".sql",
    ".cfg",
    ".ini",
    ".yml",
    ".yaml",
    ".json",
    ".html",
    ".jinja",
    ".js",
    ".css",
    ".svg",
    "",
}


def relative(path: Path) -> str:
    """For ids and messages of tests."""
    return str(path.relative_to(ROOT))


def files_below(*tops: str, suffixes: set[str] = TEXT_SUFFIXES) -> list[Path]:
    """Text files of the project, in a stable order; caches and environments are none of it."""
    found = []
    for top in tops:
        start = ROOT / top
        found += [path for path in ([start] if start.is_file() else _below(start)) if path.suffix in suffixes and path.is_file()]
    return sorted(found)


def _below(start: Path) -> Iterator[Path]:
    """Each worker of a run looks here several times: it does not enter what is skipped, which has most of the files."""
    for directory, names, files in os.walk(start):
        names[:] = [name for name in names if name not in SKIPPED and not name.endswith(".egg-info")]
        yield from (Path(directory, file) for file in files if file not in SKIPPED)


SOURCES = files_below(PACKAGE, suffixes={".py"})


@cache
def tree_of(path: Path) -> ast.Module:
    """Its syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> Iterator[str]:
    """Full names of imported modules; those that are named as text for a late import, too."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                yield f"relative import in line {node.lineno}"
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name


LISTED = re.compile(r"(?m)^\| `([a-z0-9-]+)` \|")


def listed_ids() -> set[str]:
    """Of the sources in docs/sources.md."""
    return set(LISTED.findall((ROOT / "docs" / "sources.md").read_text(encoding="utf-8")))


NAMED_TEST = re.compile(r"`(tests/[a-z_0-9/]+\.py)::(test_\w+)(?:\[[^\]`]*\])?`")


def is_there(path: Path, name: str) -> bool:
    """Whether this file has this test."""
    return path.exists() and any(getattr(node, "name", "") == name for node in tree_of(path).body)
