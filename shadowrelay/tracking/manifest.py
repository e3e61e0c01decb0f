"""The manifest of a target: what a node shipped, and what it had to drop. docs/operations.md "Shipping the tracking log".

A shipped file is named after what is in it, so that a repeat overwrites itself with the same octets and nothing else ever does.
Pure but for `measure`, which reads a closed log. One entry a line: a person can read it, and it is made piecemeal, so that
twenty thousand entries do not hold up other threads.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shadowrelay.model.values import dataclass
from shadowrelay.wire.instants import format_instant

SCHEMA_VERSION = 1
ENTRIES_MAX = 20_000  # of either kind: 20,000 x 200 B = 4 MB, and at one file in five minutes 69 days
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True)
class ShippedFile:
    """A file at the target. Units: `size` bytes; `rows` whole rows."""

    name: str
    size: int
    sha256: str
    rows: int
    at: datetime

    @cached_property
    def line(self) -> str:
        """Its entry."""
        return _line(name=self.name, bytes=self.size, sha256=self.sha256, rows=self.rows, shipped_at=format_instant(self.at))


@dataclass(frozen=True)
class DroppedFile:
    """A file that went before it could be shipped, under its local name. `rows` is `None` where nobody counted them."""

    name: str
    size: int
    rows: int | None
    reason: str
    at: datetime

    @cached_property
    def line(self) -> str:
        """Its entry."""
        return _line(name=self.name, bytes=self.size, rows=self.rows, reason=self.reason, at=format_instant(self.at))


Entry = TypeVar("Entry", ShippedFile, DroppedFile)


class Manifest(NamedTuple):
    """Entries, oldest first."""

    files: tuple[ShippedFile, ...] = ()
    dropped: tuple[DroppedFile, ...] = ()


class Origin(NamedTuple):
    """Whose files they are."""

    server: str
    site: str
    boundary: str


class Measured(NamedTuple):
    """What is in a closed log."""

    size: int
    sha256: str
    rows: int


def shipped_name(local_name: str, sha256: str) -> str:
    """ "MSGTRK2026112115-1.LOG" becomes "MSGTRK2026112115-1.8f434346.LOG"."""
    return f"{local_name.removesuffix('.LOG')}.{sha256[:8]}.LOG"


def measure(path: Path) -> Measured:
    """Shapes: comments, empty lines and a torn last line are no rows. Raises: OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
        file.seek(0)
        rows = 0
        is_row = False
        begins_line = True
        # in pieces: what a lost power supply left may be one line of any length
        for piece in iter(lambda: file.readline(_PIECE_BYTES), b""):
            is_row = (not begins_line and is_row) or (begins_line and not piece.startswith(b"#") and not piece.isspace())
            begins_line = piece.endswith(b"\n")
            rows += is_row and begins_line
    return Measured(size, digest.hexdigest(), rows)


def format_manifest(manifest: Manifest, origin: Origin, updated_at: datetime) -> str:
    """The text of `manifest.json`; `parse_manifest` reads the entries back."""
    head = json.dumps({"schema_version": SCHEMA_VERSION, **origin._asdict(), "updated_at": format_instant(updated_at)}, ensure_ascii=False)
    return f'{head[:-1]},\n"files": {_lines(manifest.files)},\n"dropped": {_lines(manifest.dropped)}}}\n'


def parse_manifest(text: bytes | str) -> Manifest:
    """Raises: ValueError for what is no manifest of a version that this program knows."""
    try:
        return manifest_of(json.loads(text))
    except RecursionError as exc:
        raise ValueError("is nested too deeply") from exc


def manifest_of(found: object) -> Manifest:
    """From what JSON makes of the text. Raises: as `parse_manifest`."""
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"is no manifest of version {SCHEMA_VERSION}")
    try:
        return Manifest(tuple(map(_shipped, found["files"])), tuple(map(_dropped, found["dropped"])))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"has an entry that cannot be read ({exc!r})") from exc


def merged(ours: Manifest, theirs: Manifest) -> Manifest:
    """The entries of both, each once; where both have one of a name, ours."""
    files = {file.name: file for file in (*theirs.files, *ours.files)}
    dropped = {(file.name, file.at): file for file in (*theirs.dropped, *ours.dropped)}
    return Manifest(
        tuple(sorted(files.values(), key=lambda file: (file.at, file.name))),
        tuple(sorted(dropped.values(), key=lambda file: (file.at, file.name))),
    )


def bounded(entries: Sequence[Entry], now: datetime, age_max: timedelta) -> Sequence[Entry]:
    """The youngest `ENTRIES_MAX` that are not older than `age_max` (zero: no limit). Shapes: oldest first."""
    first = max(len(entries) - ENTRIES_MAX, 0)
    while age_max > timedelta(0) and first < len(entries) and entries[first].at < now - age_max:
        first += 1
    return entries[first:]


def _line(**fields: str | int | None) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _lines(entries: Iterable[ShippedFile | DroppedFile]) -> str:
    lines = ",\n".join([entry.line for entry in entries])
    return f"[\n{lines}\n]" if lines else "[]"


def _shipped(entry: Any) -> ShippedFile:
    return ShippedFile(
        _typed(entry["name"], str),
        _typed(entry["bytes"], int),
        _typed(entry["sha256"], str),
        _typed(entry["rows"], int),
        _instant(entry["shipped_at"]),
    )


def _dropped(entry: Any) -> DroppedFile:
    rows = entry["rows"]
    return DroppedFile(
        _typed(entry["name"], str),
        _typed(entry["bytes"], int),
        rows if rows is None else _typed(rows, int),
        _typed(entry["reason"], str),
        _instant(entry["at"]),
    )


Value = TypeVar("Value", str, int)


def _typed(value: Any, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _instant(text: Any) -> datetime:
    at = datetime.fromisoformat(_typed(text, str))
    if at.tzinfo is None:
        raise TypeError(f"{text} has no zone")
    return at.astimezone(UTC)
