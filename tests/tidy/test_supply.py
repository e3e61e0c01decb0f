"""What is installed was looked at: every file has a hash."""

import importlib.util
import re
import tomllib
from types import ModuleType

from packaging.requirements import Requirement

from tests.kit.pages import OPERATORS
from tests.tidy.house import ROOT

LOCKED = re.compile(r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)")


def locked(file: str) -> dict[str, tuple[str, str]]:
    """Name -> version, and what follows."""
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    return {match[1].lower().replace("_", "-"): (match[2], match[3]) for match in LOCKED.finditer(text)}


def test_all_that_the_documented_installation_fetches_has_a_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [Requirement(text) for text in project["build-system"]["requires"]]
    build = locked("build.txt")

    assert [] == [str(one) for one in wanted if one.name not in build or not one.specifier.contains(build[one.name][0])]
    assert [] == [name for file in ("base.txt", "build.txt") for name, (_, rest) in locked(file).items() if "--hash=sha256:" not in rest]
    page = OPERATORS
    installs = re.findall(r"(?m)^\S*pip install .*$", page)
    assert len(installs) >= 4
    assert [] == [line for line in installs if "--require-hashes" not in line and "--no-build-isolation --no-deps" not in line]


def test_what_both_locks_name_has_one_version() -> None:
    base, build = locked("base.txt"), locked("build.txt")

    assert {} == {name: version for name, (version, _) in build.items() if name in base and base[name][0] != version}


def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "packaging" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sbom_has_every_locked_dependency() -> None:
    text = (ROOT / "requirements" / "base.txt").read_text(encoding="utf-8")
    found = sbom().document(text, "1.2.3")

    assert {name: version for name, (version, _) in locked("base.txt").items()} == {
        one["name"]: one["version"] for one in found["components"]
    }
    assert all(one["properties"] for one in found["components"])
    assert ("CycloneDX", "1.5", "1.2.3") == (found["bomFormat"], found["specVersion"], found["metadata"]["component"]["version"])
