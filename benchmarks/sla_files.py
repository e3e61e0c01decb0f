"""Logs of a world as files: rotated, padded, commented, torn, spoilt, shipped twice, late, or never.

What goes to quarantine is planted here and entered into the truth; nothing that is planted is a row of a message that lives.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from uuid import UUID

from benchmarks.sla_world import NOW, Node, World
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.tracking import LOG_ID_OCTETS, format_header, format_line

CRLF, VERSION = b"\r\n", "0.4.0"


@dataclass
class Shipment:
    """What was written. `late`: files that belong to the logs and came later."""

    files: int = 0
    missing: int = 0
    rows: int = 0
    repeated: int = 0
    late: list[str] = field(default_factory=list)


def write_world(world: World, logs: Path, shipment: Shipment, *, spoilt: float, late: Path | None, rows_per_file: int = 0) -> None:
    """One directory a server; `spoilt` is the share of files with each kind of fault; late files go to `late` if it is given."""
    for node in world.nodes:
        node.lines.sort(key=lambda line: line[0])
        if not node.is_burnt:
            _write_node(world, node, logs / node.name, shipment, spoilt, late, rows_per_file)
        elif world.random.random() < 0.5:
            (logs / node.name).mkdir(parents=True)  # there, and empty


def _write_node(world: World, node: Node, folder: Path, shipment: Shipment, spoilt: float, late: Path | None, rows_per_file: int) -> None:
    random = world.random
    folder.mkdir(parents=True)
    lost = [row for _, row, is_lost in node.lines if is_lost]
    size = rows_per_file or max((len(node.lines) - len(lost)) // random.randint(1, 3), 1)
    names: Counter[str] = Counter()
    shipped: list[tuple[str, bytes]] = []

    def named(at: datetime) -> str:
        names[f"{at:%Y%m%d%H}"] += 1
        return f"MSGTRK{at:%Y%m%d%H}-{names[f'{at:%Y%m%d%H}']}.LOG"

    for part in _parts(node, size):
        octets, bad = _file(world, part, spoilt)
        name = named(part[0].at)
        is_late = late is not None and random.random() < 0.1
        place = late / node.name if late is not None and is_late else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(octets)
        shipment.late += [f"{node.name}/{name}"] if is_late else []
        shipped.append((name, octets))
        shipment.files += 1
        shipment.rows += len(part)
        world.truth.quarantine.update(bad)
        if random.random() < spoilt and not is_late:  # again, under another name; or what there was of it a while ago
            again, torn = (octets, Counter[str]()) if bad or random.random() < 0.5 else _prefix(world, octets)
            (folder / named(part[0].at)).write_bytes(again)
            shipment.files += 1
            shipment.repeated += len(_starts(again)) - 1 if torn else len(part)
            world.truth.quarantine.update(bad + torn)
    if lost:
        shipment.missing += 1
        shipped.append((named(lost[0].at), b"".join(map(format_line, lost))))
    if random.random() < 0.3:
        (folder / "manifest.json").write_text(_manifest(world, node, shipped))
    (folder / "RECV2026030100-1.LOG").write_text("#Fields: not,ours\n1,2\n")
    (folder / "MSGTRK2026030100-1.LOG.tmp").write_bytes(b"half of")


def _parts(node: Node, size: int) -> list[list[TrackingEvent]]:
    """The rows of each file. What is lost was in a file of its own: none that is left goes over its time."""
    parts: list[list[TrackingEvent]] = [[]]
    for _, row, is_lost in node.lines:
        if is_lost or len(parts[-1]) >= size:
            parts.append([])
        if not is_lost:
            parts[-1].append(row)
    return [part for part in parts if part]


def _manifest(world: World, node: Node, shipped: Sequence[tuple[str, bytes]]) -> str:
    files = [
        {"name": name, "bytes": len(octets), "sha256": hashlib.sha256(octets).hexdigest(), "rows": len(_starts(octets)),
         "shipped_at": f"{NOW:%Y-%m-%dT%H:%M:%S.000000Z}"}
        for name, octets in shipped
    ]  # fmt: skip
    told = {"schema_version": 1, "server": node.name, "site": node.site, "boundary": world.boundary, "files": files, "dropped": []}
    return json.dumps(told)


def _file(world: World, part: Sequence[TrackingEvent], spoilt: float) -> tuple[bytes, Counter[str]]:
    """The octets, and how many lines of them go to quarantine, by reason."""
    random, bad = world.random, Counter[str]()
    header = format_header(VERSION, part[0].at)
    pieces = [b"\xef\xbb\xbf" if random.random() < 0.2 else b""]
    if random.random() < spoilt:
        pieces.append(b"stray," + _phantom(world))
        bad["no header"] += 1
    pieces.append(header)
    for row in part:
        line = format_line(row)
        chance = random.random()
        if chance < 0.05:
            line = line[:-2] + b" " * random.randint(1, 300) + CRLF
        elif chance < 0.06:
            line += random.choice((b"\n", CRLF, b"#      " + CRLF, b'# of no meaning, "really' + CRLF, header))
        elif chance < 0.06 + 0.1 * spoilt:
            reason, spoil = random.choice(SPOILERS)
            line += spoil(world)
            bad[reason] += 1
        pieces.append(line)
    if random.random() < spoilt:
        line = _phantom(world)
        pieces.append(line[: random.randint(1, len(line) - 60)])  # before its log-id
        bad["torn"] += 1
    return b"".join(pieces), bad


def _prefix(world: World, octets: bytes) -> tuple[bytes, Counter[str]]:
    """A file as it was when half of it had been written: it ends within a row."""
    cut = world.random.choice(_starts(octets)) + world.random.randint(2, 100)
    return octets[:cut], Counter(torn=1)


def _starts(octets: bytes) -> list[int]:
    """Where rows begin."""
    return [found.start() for found in re.finditer(rb"(?m)^20", octets)]


def _phantom(world: World) -> bytes:
    """A good line about a message that nobody ever sent: it must not count where it is spoilt."""
    name = world.uuid()
    return format_line(
        TrackingEvent(NOW - timedelta(days=7), EventId.RECEIVE, EventSource.SMTP, 1, name, f"<{name}>", recipients=("ghost@dest.example",),
                      sender="nobody@src.example", subject="phantom", custom_data=(("Replication", "Success"),))
    )  # fmt: skip


def _proved(line: bytes, old: bytes, new: bytes) -> bytes:
    """`new` for `old`, with the log-id that then belongs to it."""
    body = line.rsplit(b",", 2)[0].replace(old, new, 1) + b","
    log_id = UUID(blake2b(body, digest_size=LOG_ID_OCTETS).hexdigest())
    return body + f"{log_id},1.0\r\n".encode()


SPOILERS: tuple[tuple[str, Callable[[World], bytes]], ...] = (
    ("torn", lambda world: _phantom(world).replace(b"phantom", b"Phantom")),
    ("fields", lambda world: _phantom(world)[:150] + CRLF),
    ("fields", lambda world: b"what is this, then?" + CRLF),
    ("fields", lambda world: _phantom(world)[:-2] + b",one more" + CRLF),
    ("encoding", lambda world: _phantom(world).replace(b"phantom", b"\xff\xfe")),
    ("csv", lambda world: _phantom(world).replace(b"phantom", b'"phantom')),
    ("date-time", lambda world: _proved(_phantom(world), b"2026-", b"2026-13-")),
    ("number", lambda world: _proved(_phantom(world), b",0,1,", b",many,1,")),
    ("custom-data", lambda world: _proved(_phantom(world), b"S:Replication=Success", b"Replication")),
)
