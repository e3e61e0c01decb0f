"""The house has floors: model, protocol, the rules, store and ports, then the siblings, then node, lab and cli. Imports go down only."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from tests.tidy.house import PACKAGE, ROOT, SOURCES, imports_of, relative, tree_of

FLOORS = {
    "model": 0, "signals": 0, "bounded": 0, "trust": 1, "credentials": 1, "protocol": 1,
    "ownership": 2, "rules": 2, "ports": 3, "memory": 3, "machine": 4,
    "store": 3, "smtp": 4, "tracking": 4, "pipeline": 4, "settings": 4,
    "admin": 5, "cluster": 6, "console": 7,
    "node": 8, "checkup": 8, "lab": 9, "cli": 10, "__main__": 11,
}  # fmt: skip
REPORT = "sla"  # the Spark job stands apart: it imports model, protocol and signals, and nothing imports it but its command
PURE = ("model", "protocol", "ownership", "rules")
WORLDLY = {"asyncio", "os", "sqlite3", "sqlalchemy", "aiosmtpd", "aiosmtplib", "structlog", "random", "time", "socket"}

# third-party import -> (its distribution, where it may stand)
PLACES: dict[str, tuple[str, set[str]]] = {
    "pydantic": ("pydantic", {"model", "settings", "admin"}),
    "pydantic_core": ("pydantic", {"settings"}),
    "pydantic_settings": ("pydantic-settings", {"settings"}),
    "sqlalchemy": ("sqlalchemy", {"store"}),
    "aiosqlite": ("aiosqlite", {"store"}),
    "alembic": ("alembic", {"store"}),
    "aiosmtpd": ("aiosmtpd", {"smtp"}),
    "aiosmtplib": ("aiosmtplib", {"smtp"}),
    "idna": ("idna", {"protocol"}),
    "dns": ("dnspython", {"smtp"}),
    "cryptography": ("cryptography", {"settings", "smtp", "lab", "trust"}),
    "structlog": ("structlog", {"store", "smtp", "tracking", "pipeline", "admin", "console", "node", "lab"}),
    "fastapi": ("fastapi", {"admin", "console"}),
    "starlette": ("fastapi", {"admin", "console"}),
    "uvicorn": ("uvicorn", {"admin"}),
    "prometheus_client": ("prometheus-client", {"admin"}),
    "scramp": ("scramp", {"smtp"}),
    "anyio": ("anyio", {"smtp"}),
    "httpcore": ("httpx", {"smtp"}),
    "httpx": ("httpx", {"admin", "console", "lab", "smtp"}),
    "uvloop": ("uvloop", {"node", "lab"}),
    "typer": ("typer", {"cli"}),
    "rich": ("rich", {"cli", "lab"}),
    "fsspec": ("fsspec", {"tracking", REPORT}),
    "jinja2": ("jinja2", {REPORT, "console"}),
    "markupsafe": ("jinja2", {"console"}),
    "argon2": ("argon2-cffi", {"admin"}),
    "msgspec": ("msgspec", {"model", "protocol", "store"}),
    "pyspark": ("pyspark", {REPORT}),
    "py4j": ("pyspark", {REPORT}),
    "pyarrow": ("pyarrow", {REPORT}),
}


def package_of(name: str) -> str:
    """ "shadowrelay.protocol.xshadow" -> "protocol"."""
    return "".join(name.split(".")[1:2])


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
    allowed = {"model", "protocol", "signals", REPORT} if own == REPORT else lower
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


STORE_DOORS = {
    "ledger",
    "promises",
    "peer_promises",
    "reading",
    "queues",
    "resubmit_requests",
    "lone_messages",
    "shedding",
    "steps",
    "errors",
}
SQL = re.compile(r"\b(SELECT\b.+\bFROM|INSERT\s+INTO|DELETE\s+FROM|UPDATE\b.+\bSET|PRAGMA\s+\w)\b", re.DOTALL)


def beyond_the_doors(path: Path) -> set[str]:
    """What a module has of the store besides promises and questions, and its own SQL."""
    inner = {name for name in imports_of(path) if name.startswith(f"{PACKAGE}.store.")}
    sql = {
        node.value
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value) is not None
    }
    return {name for name in inner if name.split(".")[2] not in STORE_DOORS | {"Ledger"}} | sql


def test_sql_stays_in_the_store_and_others_use_its_promises_and_questions() -> None:
    outside = [path for path in SOURCES if own_package(path) not in ("store", REPORT)]

    assert {} == {relative(path): found for path in outside if (found := beyond_the_doors(path))}


def test_the_check_sees_sql_elsewhere(tmp_path: Path) -> None:
    module = tmp_path / "loop.py"
    module.write_text("from shadowrelay.store import rows, promises\nTEXT = 'SELECT 1\\nFROM message'\n", encoding="utf-8")

    assert {"shadowrelay.store.rows", "SELECT 1\nFROM message"} == beyond_the_doors(module)


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
