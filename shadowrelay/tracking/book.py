"""What this node knows of its shipped files, kept in `shipping.json` beside them. Survives SIGKILL at any instant.

A file counts as shipped when it is at the target *and* this book says so on disk; until then it is shipped again, which is
harmless. The book recognises a local file by its size and time of change, not by its name: after the directory was destroyed
the same names come again with other content. Called from several threads.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import structlog

from shadowrelay.tracking.files import FileKey, sync_directory, tracking_files
from shadowrelay.tracking.manifest import (
    DroppedFile,
    Manifest,
    Measured,
    Origin,
    ShippedFile,
    bounded,
    format_manifest,
    manifest_of,
    merged,
    shipped_name,
)

NAME = "shipping.json"
BYTES_MAX = 64 * 1024 * 1024  # two lists of 20,000 entries and as many local files are 10 MB

log = structlog.get_logger("shadowrelay.tracking")


class Fingerprint(NamedTuple):
    """By which a closed file is recognised. Units: bytes, nanoseconds."""

    size: int
    changed_at: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Fingerprint":
        """From its `stat`."""
        return cls(found.st_size, found.st_mtime_ns)


class Book:
    """Raises OSError only from `save`; a book that cannot be read begins empty and says so in the log."""

    def __init__(self, directory: Path, target: str, origin: Origin, *, max_age: timedelta, now: Callable[[], datetime]) -> None:
        self._path = directory / NAME
        # not the target itself: there may be a password in it
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
        """Files were added that do not count as shipped yet."""
        return bool(self._unsaved)

    def is_shipped(self, key: FileKey, fingerprint: Fingerprint) -> bool:
        """Whether this very file is at the target, and that is on disk."""
        return self._local.get(key.name) == fingerprint

    def is_unsaved(self, key: FileKey, fingerprint: Fingerprint) -> bool:
        """Whether it is at the target, and that is not on disk yet."""
        return self._unsaved.get(key.name) == fingerprint

    def add(self, key: FileKey, fingerprint: Fingerprint, measured: Measured) -> None:
        """It is at the target; counts from the next `save`."""
        name = shipped_name(key.name, measured.sha256)
        entry = ShippedFile(name, measured.size, measured.sha256, measured.rows, self._now())
        with self._lock:
            self._files.pop(name, None)
            self._files[name] = entry
            self._unsaved[key.name] = fingerprint

    def drop(self, key: FileKey, size: int, rows: int | None, reason: str) -> None:
        """It goes, or is gone, and was not shipped; on disk from the next `save`."""
        entry = DroppedFile(key.name, size, rows, reason, self._now())
        with self._lock:
            self._dropped.append(entry)

    def was_dropped(self, key: FileKey) -> bool:
        """Whether one of this name is recorded as lost."""
        with self._lock:
            return any(entry.name == key.name for entry in self._dropped)

    def merge(self, theirs: Manifest) -> None:
        """Take over what the manifest at the target says and this book does not."""
        with self._lock:
            self._keep(merged(Manifest(tuple(self._files.values()), tuple(self._dropped)), theirs))

    def text(self) -> str:
        """The manifest, bounded."""
        now = self._now()
        with self._lock:
            files = tuple(bounded(tuple(self._files.values()), now, self._max_age))
            dropped = tuple(bounded(tuple(self._dropped), now, self._max_age))
            manifest = Manifest(files, dropped)
            if len(files) < len(self._files) or len(dropped) < len(self._dropped):
                self._keep(manifest)
        return format_manifest(manifest, self._origin, now)

    def save(self) -> None:
        """Replace the file; what was added before counts as shipped after it. Raises: OSError, and nothing is changed."""
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

    def _keep(self, manifest: Manifest) -> None:
        self._files = {file.name: file for file in manifest.files}
        self._dropped = list(manifest.dropped)

    def _replace(self, octets: bytes) -> None:
        beside = self._path.with_name(f".{NAME}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
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
            log.warning("shipping.book_unreadable", path=str(self._path), error=str(exc))
            return
        # a file that was to be dropped when the power went, and is still there, was not dropped
        dropped = tuple(entry for entry in manifest.dropped if here.get(entry.name) != entry.size)
        if found.get("target") == self._target_hash:
            self._keep(Manifest(manifest.files, dropped))
            self._local = local
        else:  # another target has none of these files; what is lost is lost there too
            self._keep(Manifest((), dropped))
