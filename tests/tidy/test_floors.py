"""The house has floors: model, wire, core, ports, then the siblings, then node, lab and cli. Imports go down only."""

import sys
import tomllib
from pathlib import Path

from tests.tidy.house import PACKAGE, ROOT, SOURCES, imports_of, relative

FLOORS = {
    "model": 0, "signals": 0, "wire": 1, "core": 2, "ports": 3, "memory": 3,
    "store": 4, "smtp": 4, "tracking": 4, "service": 4, "admin": 4, "config": 4,
    "node": 5, "lab": 6, "cli": 7, "__main__": 8,
}  # fmt: skip
REPORT = "sla"  # the Spark job stands apart: it imports model, wire and signals, and nothing imports it but its command
PURE = ("model", "wire", "core")
WORLDLY = {"asyncio", "os", "sqlite3", "sqlalchemy", "aiosmtpd", "aiosmtplib", "structlog", "random", "time", "socket"}

# third-party import -> (its distribution, where it may stand)
PLACES: dict[str, tuple[str, set[str]]] = {
    "pydantic": ("pydantic", {"model", "config", "admin"}),
    "pydantic_core": ("pydantic", {"config"}),
    "sqlalchemy": ("sqlalchemy", {"store"}),
    "aiosqlite": ("aiosqlite", {"store"}),
    "aiosmtpd": ("aiosmtpd", {"smtp"}),
    "aiosmtplib": ("aiosmtplib", {"smtp"}),
    "idna": ("idna", {"wire"}),
    "dns": ("dnspython", {"smtp"}),
    "cryptography": ("cryptography", {"config", "smtp", "lab"}),
    "structlog": ("structlog", {"store", "smtp", "tracking", "service", "admin", "node", "lab"}),
    "fastapi": ("fastapi", {"admin"}),
    "starlette": ("fastapi", {"admin"}),
    "uvicorn": ("uvicorn", {"admin"}),
    "prometheus_client": ("prometheus-client", {"admin"}),
    "httpx": ("httpx", {"admin", "lab"}),
    "uvloop": ("uvloop", {"node", "lab"}),
    "typer": ("typer", {"cli"}),
    "rich": ("rich", {"cli", "lab"}),
    "fsspec": ("fsspec", {"tracking", REPORT}),
    "pyspark": ("pyspark", {REPORT}),
    "py4j": ("pyspark", {REPORT}),
    "pyarrow": ("pyarrow", {REPORT}),
}


def package_of(name: str) -> str:
    """ "shadowrelay.wire.xshadow" -> "wire"; the modules config_* belong to config; the package itself is ""."""
    parts = name.split(".")
    return "config" if len(parts) > 1 and parts[1].startswith("config") else (parts[1] if len(parts) > 1 else "")


def own_package(path: Path) -> str:
    return package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))


def inner_imports(path: Path) -> set[str]:
    names = {name for name in imports_of(path) if name.split(".")[0] == PACKAGE}
    return {package_of(name) for name in names} & (set(FLOORS) | {REPORT})


def outer_imports(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names - {PACKAGE}


def test_every_package_has_its_floor() -> None:
    assert set() == {own_package(path) for path in SOURCES} - set(FLOORS) - {REPORT, "", "__init__", "__main__"}


def too_high(path: Path) -> set[str]:
    own = own_package(path)
    lower = {name for name, floor in FLOORS.items() if floor < FLOORS.get(own, 0)} | {own}
    allowed = {"model", "wire", "signals", REPORT} if own == REPORT else lower
    return inner_imports(path) - allowed - ({REPORT} if own == "cli" else set())


def test_a_module_imports_its_own_package_or_a_lower_floor() -> None:
    assert {} == {relative(path): high for path in SOURCES if (high := too_high(path))}


def test_what_decides_does_not_touch_the_world() -> None:
    touched = {
        relative(path): found
        for path in SOURCES
        if own_package(path) in PURE and (found := {name.split(".")[0] for name in imports_of(path)} & WORLDLY)
    }

    assert {} == touched


def test_a_library_is_used_only_where_it_belongs() -> None:
    misplaced = {
        relative(path): found
        for path in SOURCES
        if (found := {name for name in outer_imports(path) if own_package(path) not in PLACES.get(name, ("", set()))[1]})
    }

    assert {} == misplaced


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        requirement.split("[")[0].split(">")[0] for requirement in [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    }
    imported = {PLACES[name][0] for path in SOURCES for name in outer_imports(path) if name in PLACES}

    assert set() == imported - declared


def test_the_check_sees_an_import_that_goes_up(tmp_path: Path) -> None:
    module = tmp_path / "upward.py"
    module.write_text("from shadowrelay.node import run\nfrom . import x\nimport_module('shadowrelay.sla.job')\n", encoding="utf-8")

    assert ["relative import in line 2", "shadowrelay.node.run", "shadowrelay.sla.job"] == sorted(imports_of(module))
