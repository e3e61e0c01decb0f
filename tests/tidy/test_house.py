"""The files that a stranger looks for are there, and say what is true."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from packaging.requirements import Requirement

from shadowrelay import __version__
from shadowrelay.cli.main import app
from tests.kit.pages import OPERATORS
from tests.tidy.house import ROOT, SOURCES, files_below, imports_of, relative, tree_of

TESTS = files_below("tests", suffixes={".py"})


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    headings = re.findall(r"(?m)^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))

    assert "Unreleased" == headings[0]


def test_the_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert ("Apache License", True) == (text.strip().splitlines()[0].strip(), "Version 2.0, January 2004" in text)


def test_the_lock_holds_a_version_that_satisfies_each_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {"base.txt": project["dependencies"], "dev.txt": [*project["dependencies"], *project["optional-dependencies"]["dev"]]}
    unsatisfied = []
    for name, requirements in wanted.items():
        lock = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        versions = dict(re.findall(r"(?m)^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)", lock))
        parsed = [Requirement(text) for text in requirements]
        unsatisfied += [f"{name}: {each}" for each in parsed if not each.specifier.contains(versions.get(each.name, "0"))]

    assert [] == unsatisfied


def test_every_requirement_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]

    assert [] == [text for text in requirements if "<" not in text]


def test_every_target_that_the_documents_name_is_in_the_makefile() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    pages = files_below("README.md", "CONTRIBUTING.md", "docs", ".ci", suffixes={".md", ""})
    mentioned = re.compile(r"(?m)(?:`|\$ |exec |^|\s{4})make ([a-z-]+)(?=`|\s|$)")
    named = {name for path in pages for name in mentioned.findall(path.read_text(encoding="utf-8"))}

    assert {"test", "demo"} <= named
    assert set() == named - targets


def test_every_command_is_documented_for_operators() -> None:
    page = OPERATORS
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    commands += [f"{group.name} {command.name}" for group in app.registered_groups for command in group.typer_instance.registered_commands]

    assert [] == [command for command in commands if f"shadowrelay {command}" not in page]


WRITERS = {("typer", "echo"), ("typer", "secho"), ("click", "echo"), ("stdout", "write"), ("stderr", "write")}


def test_commands_print_by_one_writer_which_cleans_what_others_said() -> None:
    found = []
    for path in SOURCES:
        if "cli" not in path.parts or path.name == "output.py":
            continue
        for node in ast.walk(tree_of(path)):
            called = node.func if isinstance(node, ast.Call) else None
            owner = getattr(called, "value", None)
            words = (getattr(owner, "id", getattr(owner, "attr", "")), getattr(called, "attr", getattr(called, "id", "")))
            if words in WRITERS or words == ("", "print"):
                found.append(f"{path.name}:{node.lineno}")

    assert [] == found


def test_names_of_tests_are_sentences() -> None:
    functions = [node.name for path in TESTS for node in tree_of(path).body if getattr(node, "name", "").startswith("test_")]

    assert [] == [name for name in functions if name.count("_") < 2]


def test_the_version_is_one_that_packagers_accept() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def levels_of(name: str, bases: dict[str, list[str]]) -> list[str]:
    """The class, and the longest line of classes of ours above it."""
    above = [levels_of(base, bases) for base in bases[name] if base in bases and base != name]
    return [name, *max(above, key=len, default=[])]


def test_a_class_stands_at_most_two_levels_below_a_library() -> None:
    # Errors are a hierarchy, so that callers can catch a kind. The settings are pydantic's, and one more class merges their sources.
    classes = [node for path in SOURCES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in classes}
    deep = [levels for name in bases if len(levels := levels_of(name, bases)) > 2]

    assert ["Receiver", "Connection"] == levels_of("Receiver", bases)
    assert [] == [levels for levels in deep if "ShadowrelayError" not in levels and levels[0] != "LayeredSettings"]


def test_no_two_modules_or_classes_share_a_name() -> None:
    # Three modules are the values, the text or the table of the same thing.
    modules = Counter(path.stem for path in SOURCES if path.stem != "__init__")

    assert {name for name, count in modules.items() if count > 1} <= {"rows", "tracking", "values"}
    assert [] == shared_classes(SOURCES)


def test_no_two_classes_of_the_tests_share_a_name() -> None:
    assert [] == shared_classes(TESTS)


def test_no_test_file_takes_from_another_one() -> None:
    taken = [(path, name) for path in TESTS for name in imports_of(path) if re.match(r"tests\.([a-z_]+\.)*test_", name)]

    assert [] == [f"{relative(path)}: {name}" for path, name in taken]


def shared_classes(files: list[Path]) -> list[str]:
    """Names of classes that stand for more than one thing."""
    classes = Counter(node.name for path in files for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef))
    return [name for name, count in classes.items() if count > 1]
