"""Records of shipped and dropped tracking logs: `shipping.json` here, and the manifest at the target.
docs/operations.md "Shipping the tracking log".

A shipped file is named after its content, so that a repeat overwrites it with the same octets and no other file ever does.
The manifest lists what a node shipped and what it dropped. It has one entry per line, so that a person can read it, and is formatted
in pieces, so that twenty thousand entries do not block other threads.

The book is `shipping.json`, and survives SIGKILL at any instant. A file counts as shipped when it is at the target *and* the book on disk
records that; until then it is shipped again, which is harmless. The book identifies a local file by size and modification time, not by
name: after the directory was destroyed, the same names return with other content. Called from several threads.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from shadowrelay.model.values import dataclass
from shadowrelay.protocol.fields import format_instant
from shadowrelay.tracking.writer import FileKey, sync_directory, tracking_files

SCHEMA_VERSION = 1
ENTRIES_MAX = 20_000  # of either kind: 20,000 x 200 B = 4 MB; 69 days at one file in five minutes
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
        """Its line in the manifest."""
        return _line(name=self.name, bytes=self.size, sha256=self.sha256, rows=self.rows, shipped_at=format_instant(self.at))


@dataclass(frozen=True)
class DroppedFile:
    """A file that was deleted or lost before it was shipped, by its local name. `rows` is `None` if they were not counted."""

    name: str
    size: int
    rows: int | None
    reason: str
    at: datetime

    @cached_property
    def line(self) -> str:
        """Its line in the manifest."""
        return _line(name=self.name, bytes=self.size, rows=self.rows, reason=self.reason, at=format_instant(self.at))


Entry = TypeVar("Entry", ShippedFile, DroppedFile)


class ShippingManifest(NamedTuple):
    """Entries, oldest first."""

    files: tuple[ShippedFile, ...] = ()
    dropped: tuple[DroppedFile, ...] = ()


class ShippingNode(NamedTuple):
    """The node whose files they are."""

    server: str
    site: str
    boundary: str


class Measured(NamedTuple):
    """Size, rows and hash of a closed log."""

    size: int
    sha256: str
    rows: int


def shipped_name(local_name: str, sha256: str) -> str:
    """ "MSGTRK2026112115-1.LOG" becomes "MSGTRK2026112115-1.8f434346.LOG"."""
    return f"{local_name.removesuffix('.LOG')}.{sha256[:8]}.LOG"


def measure(path: Path) -> Measured:
    """Shapes: comments, empty lines and a torn last line do not count as rows. Raises: OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
        file.seek(0)
        rows = 0
        is_row = False
        begins_line = True
        # in pieces: after a power loss the file may contain one line of any length
        for piece in iter(lambda: file.readline(_PIECE_BYTES), b""):
            is_row = (not begins_line and is_row) or (begins_line and not piece.startswith(b"#") and not piece.isspace())
            begins_line = piece.endswith(b"\n")
            rows += is_row and begins_line
    return Measured(size, digest.hexdigest(), rows)


def format_manifest(manifest: ShippingManifest, origin: ShippingNode, updated_at: datetime) -> str:
    """The text of `manifest.json`. `parse_manifest` is the inverse for the entries."""
    head = json.dumps({"schema_version": SCHEMA_VERSION, **origin._asdict(), "updated_at": format_instant(updated_at)}, ensure_ascii=False)
    return f'{head[:-1]},\n"files": {_lines(manifest.files)},\n"dropped": {_lines(manifest.dropped)}}}\n'


def parse_manifest(text: bytes | str) -> ShippingManifest:
    """Raises: ValueError if it is not a manifest of a known version."""
    try:
        return manifest_of(json.loads(text))
    except RecursionError as exc:
        raise ValueError("is nested too deeply") from exc


def manifest_of(found: object) -> ShippingManifest:
    """From the parsed JSON. Raises as `parse_manifest`."""
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"is no manifest of version {SCHEMA_VERSION}")
    try:
        return ShippingManifest(tuple(map(_shipped, found["files"])), tuple(map(_dropped, found["dropped"])))
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"has an entry that cannot be read ({exc!r})") from exc


def merged(ours: ShippingManifest, theirs: ShippingManifest) -> ShippingManifest:
    """The entries of both, one per name; ours take precedence."""
    files = {file.name: file for file in (*theirs.files, *ours.files)}
    dropped = {(file.name, file.at): file for file in (*theirs.dropped, *ours.dropped)}
    return ShippingManifest(
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


NAME = "shipping.json"
BYTES_MAX = 64 * 1024 * 1024  # two lists of 20,000 entries and as many local files are 10 MB

_log = structlog.get_logger()


class Fingerprint(NamedTuple):
    """Identifies a closed file. Units: bytes, nanoseconds."""

    size: int
    changed_at: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Fingerprint":
        """From the result of `stat`."""
        return cls(found.st_size, found.st_mtime_ns)


class Book:
    """Only `save` raises OSError. If the book cannot be read, it starts empty, and the operator log says so."""

    def __init__(self, directory: Path, target: str, origin: ShippingNode, *, max_age: timedelta, now: Callable[[], datetime]) -> None:
        self._path = directory / NAME
        # a hash: the target's URL may contain a password
        self._target_hash = sha256(f"{origin.server}\n{target}".encode()).hexdigest()
        self._origin = origin
        self._max_age = max_age
        self._now = now
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._files: dict[str, ShippedFile] = {}  # oldest first
        self._dropped: list[DroppedFile] = []
        self._local: dict[str, Fingerprint] = {}
        self._unsaved: dict[str, Fingerprint] = {}
        with contextlib.suppress(FileNotFoundError):
            self._load()

    @property
    def has_unsaved(self) -> bool:
        """Whether files were added that do not count as shipped yet."""
        return bool(self._unsaved)

    def is_shipped(self, key: FileKey, fingerprint: Fingerprint) -> bool:
        """Whether exactly this file is at the target, and the book on disk records it."""
        return self._local.get(key.name) == fingerprint

    def is_unsaved(self, key: FileKey, fingerprint: Fingerprint) -> bool:
        """Whether it is at the target, but the book on disk does not record it yet."""
        return self._unsaved.get(key.name) == fingerprint

    def add(self, key: FileKey, fingerprint: Fingerprint, measured: Measured) -> None:
        """The file is at the target; it counts as shipped from the next `save`."""
        name = shipped_name(key.name, measured.sha256)
        entry = ShippedFile(name, measured.size, measured.sha256, measured.rows, self._now())
        with self._lock:
            self._files.pop(name, None)
            self._files[name] = entry
            self._unsaved[key.name] = fingerprint

    def drop(self, key: FileKey, size: int, rows: int | None, reason: str) -> None:
        """The file is lost, or about to be deleted, without being shipped; on disk from the next `save`."""
        entry = DroppedFile(key.name, size, rows, reason, self._now())
        with self._lock:
            self._dropped.append(entry)

    def was_dropped(self, key: FileKey) -> bool:
        """Whether a file of this name is recorded as dropped."""
        with self._lock:
            return any(entry.name == key.name for entry in self._dropped)

    def merge(self, theirs: ShippingManifest) -> None:
        """Add entries of the target's manifest that this book does not have."""
        with self._lock:
            self._keep(merged(ShippingManifest(tuple(self._files.values()), tuple(self._dropped)), theirs))

    def text(self) -> str:
        """The manifest, bounded by `ENTRIES_MAX` and age."""
        now = self._now()
        with self._lock:
            files = tuple(bounded(tuple(self._files.values()), now, self._max_age))
            dropped = tuple(bounded(tuple(self._dropped), now, self._max_age))
            manifest = ShippingManifest(files, dropped)
            if len(files) < len(self._files) or len(dropped) < len(self._dropped):
                self._keep(manifest)
        return format_manifest(manifest, self._origin, now)

    def save(self) -> None:
        """Replace the file; entries added before count as shipped afterwards. Raises: OSError, and nothing has changed."""
        with self._saving:
            with self._lock:
                unsaved = dict(self._unsaved)
            here = {key.name for key in tracking_files(self._path.parent)}
            local = {name: fingerprint for name, fingerprint in (self._local | unsaved).items() if name in here}
            head = json.dumps({"target": self._target_hash, "local": local})
            self._replace(f'{head[:-1]},\n"manifest": {self.text()}}}\n'.encode())
            with self._lock:
                self._local = local
                self._unsaved = {name: each for name, each in self._unsaved.items() if unsaved.get(name) != each}

    def _keep(self, manifest: ShippingManifest) -> None:
        self._files = {file.name: file for file in manifest.files}
        self._dropped = list(manifest.dropped)

    def _replace(self, octets: bytes) -> None:
        beside = self._path.with_name(f".{NAME}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        with open(descriptor, "wb") as file:
            file.write(octets)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._path)
        sync_directory(self._path.parent)

    def _load(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(BYTES_MAX))
            manifest = manifest_of(found["manifest"])
            local = {str(name): Fingerprint(int(size), int(at)) for name, (size, at) in found["local"].items()}
            here = {key.name: (self._path.parent / key.name).stat().st_size for key in tracking_files(self._path.parent)}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            _log.warning("shipping.book_unreadable", path=str(self._path), error=str(exc))
            return
        # a file recorded as dropped that still exists was not deleted before the power loss
        dropped = tuple(entry for entry in manifest.dropped if here.get(entry.name) != entry.size)
        if found.get("target") == self._target_hash:
            self._keep(ShippingManifest(manifest.files, dropped))
            self._local = local
        else:  # another target has none of these files; dropped files stay dropped
            self._keep(ShippingManifest((), dropped))
