"""Site and boundary of each server, and files that are missing or were dropped. docs/sla.md, section 1.

They come from `manifest.json` in a server's directory; `--sites FILE` takes precedence. A value that neither has is empty, never an error.
The warehouse keeps both in `servers.json` and `shipping.json`.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shadowrelay.model.replies import ConfigurationError, ShadowrelayError
from shadowrelay.sla.logs import list_servers
from shadowrelay.sla.storage import answering, located, written_whole

MANIFEST = "manifest.json"
SERVERS = "servers.json"
SHIPPING = "shipping.json"


class DamagedFile(ShadowrelayError):
    """A file of the warehouse has invalid content; the text names it, and says what to do."""


class ServerSite(NamedTuple):
    """Site and boundary of a server; empty if unknown."""

    site: str = ""
    boundary: str = ""


class Dropped(NamedTuple):
    """A log file that a node deleted before it was shipped. `at` from the manifest."""

    server: str
    name: str
    reason: str
    at: str


class Manifest(NamedTuple):
    """The manifest in a server's directory. `names`: the files that were shipped."""

    site: ServerSite
    names: tuple[str, ...]
    dropped: tuple[Dropped, ...]


class ExpectedLogs(NamedTuple):
    """Files that should be in the input. `missing`: (server, name) of files that a manifest lists and that have not been read."""

    missing: tuple[tuple[str, str], ...] = ()
    dropped: tuple[Dropped, ...] = ()


def read_manifests(logs: str) -> dict[str, Manifest | None]:
    """Every server (directory of logs) with its manifest; None if there is none, or it is invalid."""
    files, top = located(logs)
    with answering(logs):
        return {name: _read_manifest(files, name, f"{top}/{name}/{MANIFEST}") for name in list_servers(logs) if name[0] not in "._"}


def _read_manifest(files: Any, server: str, path: str) -> Manifest | None:
    try:
        return parse_manifest(server, json.loads(files.cat_file(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parse_manifest(server: str, given: Mapping[str, Any]) -> Manifest:
    """Raises: KeyError, TypeError, AttributeError if invalid. The server's name is that of the directory, not that in the manifest."""
    dropped = [Dropped(server, str(each["name"]), str(each["reason"]), str(each["at"])) for each in given.get("dropped", [])]
    site = ServerSite(str(given.get("site") or ""), str(given.get("boundary") or ""))
    return Manifest(site, tuple(str(each["name"]) for each in given["files"]), tuple(dropped))


def read_sites_file(path: Path) -> dict[str, ServerSite]:
    """`["mx1.east.example"]` with `site` and `boundary`. Raises: ConfigurationError naming file and server."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from None
    except ValueError as exc:
        raise ConfigurationError(f"{path}: {exc}") from None
    for server, values in given.items():
        is_right = isinstance(values, dict) and all(isinstance(value, str) for value in values.values())
        if not is_right or not set(values) <= set(ServerSite._fields):
            raise ConfigurationError(f'{path}: ["{server}"] may hold `site` and `boundary`, each a text')
    return {server: ServerSite(**values) for server, values in given.items()}


def merged(
    known: Mapping[str, ServerSite], manifests: Mapping[str, Manifest | None], named: Mapping[str, ServerSite]
) -> dict[str, ServerSite]:
    """All servers: `named` (from --sites) takes precedence over manifests, and these over `known` from before."""
    shipped = {server: manifest.site for server, manifest in manifests.items() if manifest is not None}
    everyone = sorted({*known, *manifests, *named})
    return {server: named.get(server) or shipped.get(server) or known.get(server) or ServerSite() for server in everyone}


def read_servers(warehouse: str) -> dict[str, ServerSite]:
    """`servers.json`; empty if there is none yet. Raises: DamagedFile."""
    with _whole(warehouse, SERVERS):
        return {name: ServerSite(**values) for name, values in (_read_json(warehouse, SERVERS) or {}).items()}


def write_servers(warehouse: str, servers: Mapping[str, ServerSite]) -> None:
    """Write `servers.json` atomically."""
    _write_json(warehouse, SERVERS, {name: site._asdict() for name, site in sorted(servers.items())})


def read_shipping(warehouse: str) -> ExpectedLogs:
    """`shipping.json`: missing files, and files that nodes dropped; empty if nothing was shipped. Raises: DamagedFile."""
    with _whole(warehouse, SHIPPING):
        given = _read_json(warehouse, SHIPPING) or {}
        missing = tuple((each["server"], each["name"]) for each in given.get("missing", ()))
        return ExpectedLogs(missing, tuple(Dropped(**each) for each in given.get("dropped", ())))


def write_shipping(warehouse: str, shipping: ExpectedLogs) -> None:
    """Write `shipping.json` atomically."""
    missing = [{"server": server, "name": name} for server, name in shipping.missing]
    _write_json(warehouse, SHIPPING, {"missing": missing, "dropped": [each._asdict() for each in shipping.dropped]})


@contextmanager
def _whole(warehouse: str, name: str) -> Iterator[None]:
    # do not treat a damaged file as absent: data that only it has (dropped files, earlier --sites) would be lost silently
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DamagedFile(f"{warehouse}/{name} is damaged ({exc}): delete it; the next `shadowrelay sla ingest` makes it anew") from exc


def _read_json(warehouse: str, name: str) -> Any:
    files, top = located(warehouse)
    try:
        return json.loads(files.cat_file(f"{top}/{name}"))
    except FileNotFoundError:
        return None


def _write_json(warehouse: str, name: str, value: object) -> None:
    with written_whole(f"{warehouse}/{name}") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False).encode())
