"""The oracle's own reader of tracking logs: plain Python, nothing of the product. docs/sla.md, section 1.

It shares no code with the job, so that a line that both read alike was read twice. Instants are whole microseconds since 1970.
"""

import csv
import hashlib
import io
import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ESCAPE = re.compile(r"\\u(?!d[89a-f])([0-9a-f]{4})")  # a lone surrogate has no UTF-8: it stays as it is written
COPIES = re.compile("[0-9]{1,9}/[0-9]{1,9}")
NUMBERS = ("total-bytes", "recipient-count")


@dataclass(frozen=True)
class Row:
    """One event. `at`, `silent_since`, `detected_at`: microseconds since 1970."""

    at: int
    server: str
    event: str
    source: str
    message: str
    internet_message_id: str
    client: str
    server_hostname: str
    context: str
    reference: str
    recipients: tuple[str, ...]
    related: tuple[str, ...]
    sender: str
    subject: str
    return_path: str
    custom: dict[str, str]
    format: str
    file: str
    line: int
    spelled: tuple[str, ...] = ()  # the recipients as they were written, if that differs
    client_ip: str = ""
    server_ip: str = ""

    @property
    def primary(self) -> str:
        """The primary server that a row about a copy names."""
        return self.client if self.event == "HARECEIVE" else self.reference

    @property
    def tells_delivery(self) -> bool:
        """HADISCARD `delivered`; Exchange does not say why, so any."""
        return self.event == "HADISCARD" and (self.context == "delivered" or self.format != "shadowrelay")

    def instant(self, key: str) -> int | None:
        """An instant in custom-data."""
        return microseconds(self.custom[key]) if key in self.custom else None

    def elapsed(self, key: str) -> int | None:
        """Seconds with decimals in custom-data, as microseconds."""
        if key not in self.custom:
            return None
        whole, _, part = self.custom[key].partition(".")
        return int(whole) * 1_000_000 + int((part + "000000")[:6])


@dataclass
class Logs:
    """What a directory of logs holds: rows once each, what could not be read, and where the servers stand."""

    rows: list[Row] = field(default_factory=list)
    quarantine: list[tuple[str, str, int, str]] = field(default_factory=list)  # server, file, line, reason
    places: dict[str, tuple[str, str]] = field(default_factory=dict)  # server -> site, boundary
    logged: set[str] = field(default_factory=set)  # directories with a log
    formats: dict[str, str] = field(default_factory=dict)  # of each
    domains: set[str] = field(default_factory=set)  # of Exchange's servers, as far as their names are told
    whole: dict[str, str] = field(default_factory=dict)  # names that Windows cut, in lower case, and what each stands for
    whole_files: list[tuple[str, int, int]] = field(default_factory=list)  # of no mailboxes, without a bad line: server, first and last row
    files: int = 0
    lines: int = 0
    repeats: list[Row] = field(default_factory=list)


class BadLine(Exception):
    """It goes to quarantine; the argument is the reason."""


def microseconds(text: str) -> int:
    """`2026-11-21T15:00:00.123456Z`, or with fewer decimals."""
    delta = datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def read_logs(directory: Path, sites: Path | None = None) -> Logs:
    """Every `<directory>/<server>/MSGTRK*.LOG`, and copies named by Explorer."""
    logs = Logs()
    seen: set[tuple[str, bytes]] = set()
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        manifest = folder / "manifest.json"
        if manifest.exists():
            told = json.loads(manifest.read_text(encoding="utf-8"))
            logs.places[folder.name] = (told.get("site", ""), told.get("boundary", ""))
        for path in sorted([*folder.glob("MSGTRK*.LOG"), *folder.glob("* MSGTRK*.LOG")]):
            logs.files += 1
            logs.logged.add(folder.name)
            _read_file(logs, seen, folder.name, path)
    if sites is not None:
        for name, place in tomllib.loads(sites.read_text(encoding="utf-8")).items():
            logs.places[name] = (place.get("site", ""), place.get("boundary", ""))
    _call_by_their_names(logs)
    return logs


def _read_file(logs: Logs, seen: set[tuple[str, bytes]], server: str, path: Path) -> None:
    octets = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    is_ours = b"#Software: shadowrelay" in octets
    logs.lines += octets.count(b"\n") + (not octets.endswith(b"\n") and octets != b"")
    fields: list[str] = []
    for number, raw, is_whole in _physical(octets) if is_ours else _logical(octets):
        if raw.startswith(b"#"):
            if raw.startswith(b"#Fields:"):
                fields = [name.strip() for name in raw[8:].decode().split(",")]
            continue
        if not raw:
            continue
        try:
            if not is_whole:
                raise BadLine("torn")
            row = _row(raw, fields, server, path.name, number, is_ours)
        except BadLine as bad:
            logs.quarantine.append((server, path.name, number, str(bad)))
            continue
        logs.formats[server] = row.format
        mark = (server if is_ours else "", raw)  # a row of Exchange is the same in whatever directory
        if mark in seen:
            logs.repeats.append(row)
            continue
        seen.add(mark)
        logs.rows.append(row)


def _physical(octets: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """A line is a row. Blanks after its last field are filling."""
    lines = octets.split(b"\n")
    rest = lines.pop()
    for number, line in enumerate(lines, start=1):
        yield number, line.removesuffix(b"\r").rstrip(b" "), True
    if rest:
        yield len(lines) + 1, rest, rest.startswith(b"#")


def _logical(octets: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Exchange: a quoted field may contain line ends, and the row has the number of its first line."""
    pending, first = b"", 0
    lines = octets.split(b"\n")
    rest = lines.pop()
    for number, line in enumerate(lines, start=1):
        first = first or number
        pending += line
        if pending.startswith(b"#") or pending.count(b'"') % 2 == 0:
            yield first, pending.removesuffix(b"\r"), True
            pending, first = b"", 0
        else:
            pending += b"\n"
    if pending or rest:
        yield first or len(lines) + 1, pending + rest, False


def _row(raw: bytes, fields: list[str], server: str, file: str, number: int, is_ours: bool) -> Row:
    if not fields:
        raise BadLine("no header")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadLine("encoding") from None
    try:
        (cells,) = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (csv.Error, ValueError):
        raise BadLine("csv") from None
    if len(cells) != len(fields):
        raise BadLine("fields")
    cell = dict(zip(fields, cells, strict=True))
    if is_ours and not _is_proved(raw, cells):
        raise BadLine("torn")
    try:
        at = microseconds(cell["date-time"])
    except ValueError:
        raise BadLine("date-time") from None
    for name in NUMBERS:
        if cell[name] and not cell[name].isdecimal():
            raise BadLine("number")

    def plain(value: str) -> str:
        return ESCAPE.sub(lambda found: chr(int(found[1], 16)), value) if is_ours else value

    recipients = tuple(plain(value) for value in cell["recipient-address"].split(";")) if cell["recipient-address"] else ()
    related = tuple(value for value in cell["related-recipient-address"].split(";") if value)
    spelled = recipients
    if not is_ours:
        recipients, related = (tuple(each.lower().removeprefix("smtp:") for each in those) for those in (recipients, related))
    custom = {}
    for item in cell.get("custom-data", "").split(";") if cell.get("custom-data") else ():
        key, equals, value = item.removeprefix("S:").partition("=")
        if is_ours and (not equals or not item.startswith("S:")):
            raise BadLine("custom-data")
        if is_ours and key == "Copies" and not COPIES.fullmatch(value):
            raise BadLine("custom-data")
        custom[plain(key)] = plain(value)
    return Row(
        at, server, cell["event-id"], cell["source"],
        plain(_network_id(cell, is_ours) or cell["message-id"]), plain(cell["message-id"]),
        plain(cell["client-hostname"]), plain(cell["server-hostname"]), plain(cell["source-context"]), plain(cell["reference"]),
        recipients, related, plain(cell["sender-address"]), plain(cell["message-subject"]), plain(cell.get("return-path", "")), custom,
        _format(fields, is_ours), file, number, spelled, cell["client-ip"].lower(), cell["server-ip"].lower(),
    )  # fmt: skip


def _network_id(cell: dict[str, str], is_ours: bool) -> str:
    told = cell.get("network-message-id", "")
    return told if is_ours or told.strip("0-") else ""


def _is_proved(raw: bytes, cells: list[str]) -> bool:
    tail = f"{cells[-2]},{cells[-1]}".encode()
    digest = hashlib.blake2b(raw.removesuffix(tail), digest_size=16).hexdigest()
    return raw.endswith(tail) and cells[-2].replace("-", "") == digest


def _format(fields: list[str], is_ours: bool) -> str:
    if is_ours:
        return "shadowrelay"
    if "network-message-id" not in fields:
        return "exchange2010"
    return "exchange2016" if "log-id" in fields else "exchange2013"


# Who is who in Exchange's logs. docs/sla.md, section 2.


def first_label(name: str) -> str:
    """Of whatever it is."""
    return name.split(".")[0].lower()


def meant(name: str, logged: Collection[str], domains: Collection[str] = ()) -> str:
    """The logged server that Exchange means by a name; the name itself where none, or where it might be several."""
    if name == "" or name in logged:
        return name
    alike = [server for server in logged if server.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    if "." in name and domains and name.lower().split(".", 1)[1] not in domains:
        return name
    namesakes = [server for server in logged if server.lower().split(".")[0] == name.lower().split(".")[0]]
    if len(namesakes) == 1 and not ("." in name and "." in namesakes[0]):
        return namesakes[0]
    return name


def _shadow_server(row: Row, logged: Collection[str], domains: Collection[str]) -> str:
    """`EX2.corp.example = 250 2.6.0 …` tells who has the copy; server-hostname is then the row's own server."""
    told, _, reply = row.context.partition("=")
    is_told = reply.split()[:1] == ["250"] and len(told.split()) == 1
    name = told.strip() if is_told else row.server_hostname
    return "" if meant(name, logged, domains) == row.server else name


def with_logged_names(row: Row, logged: Collection[str], domains: Collection[str]) -> Row:
    """A row of Exchange as if it named servers as the directories do; ours says what it means."""
    if row.format == "shadowrelay":
        return row
    if row.event == "HAREDIRECT":
        row = replace(row, server_hostname=_shadow_server(row, logged, domains))
    client, server_hostname = (meant(name, logged, domains) for name in (row.client, row.server_hostname))
    named = replace(row, client=client, server_hostname=server_hostname)
    if (row.event, row.source) == ("RESUBMIT", "REDUNDANCY"):
        named = replace(named, reference=meant(row.reference, logged, domains))
    return named


# Whose log it is. docs/sla.md, section 2, "one server".


def _label(name: str) -> str:
    lowered = name.lower()
    return lowered if lowered.replace(".", "").isdecimal() or ":" in lowered else lowered.split(".")[0]


def _writers(row: Row) -> list[str]:
    """Who wrote it, by what it says itself."""
    found = []
    if (row.event, row.source) == ("RECEIVE", "SMTP") or row.event in ("HARECEIVE", "HADISCARD", "HAREDIRECTFAIL"):
        found.append(row.server_hostname)
    if row.event in ("SEND", "SENDEXTERNAL"):
        found.append(row.client)
    return [name for name in found if name]


def _peers(row: Row) -> list[str]:
    """Other servers of its kind that it names, or itself by its full name."""
    if row.event in ("HARECEIVE", "HADISCARD"):
        return [row.client]
    if (row.event, row.source) == ("RESUBMIT", "REDUNDANCY"):
        return [row.reference]
    return [row.custom.get("FirstForestHop", "")] if (row.event, row.source) == ("RECEIVE", "SMTP") else []


def _most(names: Counter[str]) -> str:
    labels: Counter[str] = Counter()
    for name, count in names.items():
        labels[_label(name)] += count
    best = max(labels, key=lambda one: (labels[one], one))
    return max((name for name in names if _label(name) == best), key=lambda name: ("." in name, names[name], name))


def _spell_out(logs: Logs) -> dict[str, set[str]]:
    """Rows of Exchange have names that Windows cut at 15 characters as they are in full, where only one server is called so. Returns the
    servers of each cut name, in lower case."""
    of_exchange = [row for row in (*logs.rows, *logs.repeats) if row.format != "shadowrelay"]
    names = {name for row in of_exchange for name in (*_writers(row), *_peers(row))}
    names |= {server for server, each in logs.formats.items() if each != "shadowrelay"}
    domains = {name.lower().split(".", 1)[1] for name in names if "." in _spelled(name)}
    for row in of_exchange:
        others = [row.client, row.custom.get("Replication", "")] if (row.event, row.source) == ("RECEIVE", "SMTP") else []
        told, sign, _ = row.context.partition("=")
        if row.event == "HAREDIRECT" and sign and len(told.split()) == 1:
            others.append(told.strip())
        if row.event == "SEND" and row.format != "exchange2010" and first_label(row.client) != first_label(row.server_hostname):
            others.append(row.server_hostname)
        names |= {name for name in others if not domains or ("." in name and name.lower().split(".", 1)[1] in domains)}
    cut = {name.lower() for name in names if len(name) == 15 and "." not in name}
    servers = {name: {_label(other) for other in names if _label(other)[:15] == name and other.lower() != name} for name in cut}
    servers = {name: those for name, those in servers.items() if those != {name}}
    whole = {}
    for name, those in servers.items():
        if len(those) == 1:
            full = {each.lower(): each for each in sorted(names) if _label(each) in those and "." in each}
            whole[name] = next(iter(full.values())) if len(full) == 1 else next(iter(those))
    logs.whole = whole
    if whole:
        logs.rows, logs.repeats = ([_whole(row, whole) for row in rows] for rows in (logs.rows, logs.repeats))
    return {name: those for name, those in servers.items() if len(those) > 1}


def _whole(row: Row, whole: Mapping[str, str]) -> Row:
    if row.format == "shadowrelay":
        return row

    def full(name: str) -> str:
        return whole.get(name.lower(), name)

    told, sign, reply = row.context.partition("=")
    context = f"{full(told.strip())}{sign}{reply}" if row.event == "HAREDIRECT" else row.context
    custom = row.custom | {"Replication": full(row.custom["Replication"])} if "Replication" in row.custom else row.custom
    reference = full(row.reference) if (row.event, row.source) == ("RESUBMIT", "REDUNDANCY") else row.reference
    named = replace(row, client=full(row.client), server_hostname=full(row.server_hostname))
    return replace(named, context=context, custom=custom, reference=reference)


def _call_by_their_names(logs: Logs) -> None:
    """Directories of Exchange with one server's log become one, with the full name; one that is named after nobody gets its server's, and
    a file that only other servers wrote gets theirs."""
    unclear = _spell_out(logs)
    of_exchange = [row for row in (*logs.rows, *logs.repeats) if row.format != "shadowrelay"]
    own: dict[str, set[str]] = {}
    for row in of_exchange:
        own.setdefault(row.server, {_label(row.server)}).update(map(_label, _writers(row)))
    votes: dict[str, Counter[str]] = {}
    of_file: dict[tuple[str, str], Counter[str]] = {}
    for row in of_exchange:
        for said in _writers(row):
            those = unclear.get(said.lower(), set()) & own[row.server]
            name = next(iter(those)) if len(those) == 1 else said
            votes.setdefault(row.server, Counter())[name] += 1
            of_file.setdefault((row.server, row.file), Counter())[name] += 1
    called = {server: logs.whole.get(server.lower(), server) for server, each in logs.formats.items() if each != "shadowrelay"}
    for directory, names in votes.items():
        if _label(called[directory]) not in {_label(name) for name in names}:
            called[directory] = _most(names)
    files = {
        (directory, file): _most(names)
        for (directory, file), names in of_file.items()
        if _label(called[directory]) not in {_label(name) for name in names}
    }
    everyone = {*called.values(), *files.values()}

    def full(name: str) -> str:
        alike = {each for each in everyone if _label(each) == _label(name)}
        if len({each.lower() for each in alike if "." in each}) <= 1:
            return max(alike, key=lambda each: ("." in each, each))
        return name

    renamed = {directory: full(name) for directory, name in called.items()}
    moved = {place: full(name) for place, name in files.items()}
    damaged = {(directory, file) for directory, file, *_ in logs.quarantine}
    instants: dict[tuple[str, str], list[int]] = {}
    for row in (*logs.rows, *logs.repeats):
        instants.setdefault((row.server, row.file), []).append(row.at)
    for (directory, file), those in instants.items():
        if (directory, file) not in damaged and "msgtrkm" not in file.lower():
            server = moved.get((directory, file)) or renamed.get(directory, directory)
            logs.whole_files.append((server, min(those), max(those)))
    formats = {renamed.get(server, server): each for server, each in logs.formats.items()}
    logs.rows = [
        replace(row, server=moved.get((row.server, row.file)) or renamed.get(row.server, row.server))
        if row.format != "shadowrelay"
        else replace(row, server=renamed.get(row.server, row.server))
        for row in logs.rows
    ]
    newest = sorted(logs.rows, key=lambda row: row.at)  # the format of a server is that of its newest log
    logs.formats = formats | {row.server: row.format for row in newest}
    logs.logged = {renamed.get(server, server) for server in logs.logged} | {*moved.values()}
    known = {server: place for server, place in logs.places.items() if server not in renamed and any(place)}
    logs.places = {renamed.get(server, server): place for server, place in logs.places.items()} | known
    names = {name for row in of_exchange for name in (*_writers(row), *_peers(row))}
    names |= {server for server, each in logs.formats.items() if each != "shadowrelay"}
    logs.domains = {name.lower().split(".", 1)[1] for name in names if "." in _spelled(name)}


def _spelled(name: str) -> str:
    """Nothing for an address."""
    return "" if _label(name) == name.lower() else name
