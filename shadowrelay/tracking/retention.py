"""Which files of the message tracking log must go: the oldest first, and what was not shipped only when nothing else helps.

`files_to_delete` decides, `enforce_limits` does it. Without shipping every file counts as shipped: nobody waits for it.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from shadowrelay.tracking.files import FileKey, tracking_files


class Custody(Protocol):
    """Who knows what was shipped. Called from threads."""

    def is_shipped(self, key: FileKey, found: os.stat_result) -> bool:
        """Whether these very octets are at the target, and it is recorded that they are."""

    def is_busy(self, key: FileKey) -> bool:
        """Whether it is being shipped now."""

    def drop(self, found: Mapping[FileKey, os.stat_result]) -> Collection[FileKey]:
        """Record that these go although they were not shipped. Returns those that may be deleted."""


class Kept(NamedTuple):
    """A file that is there. Units: `size` bytes."""

    key: FileKey
    size: int
    is_shipped: bool = True
    is_busy: bool = False


class Deletions(NamedTuple):
    """In the order in which they go."""

    shipped: tuple[FileKey, ...]
    dropped: tuple[FileKey, ...]


def files_to_delete(files: Sequence[Kept], newest: FileKey | None, now: datetime, size_max: int, age_max: timedelta) -> Deletions:
    """Shipped files past `age_max` (zero: no limit); then shipped ones, then others, until all together have at most `size_max`.

    Shapes: `files` oldest first. `newest` and what was begun since is counted and never deleted; nor is a busy file.
    """
    total = sum(file.size for file in files)
    closed = [file for file in files if newest is None or file.key < newest]
    shipped = []
    for file in closed:
        is_old = age_max > timedelta(0) and _ends_at(file.key, now) < now - age_max
        if file.is_shipped and (is_old or total > size_max):
            shipped.append(file.key)
            total -= file.size
    dropped = []
    for file in closed:
        if not file.is_shipped and not file.is_busy and total > size_max:
            dropped.append(file.key)
            total -= file.size
    return Deletions(tuple(shipped), tuple(dropped))


def enforce_limits(
    directory: Path, newest: FileKey | None, now: datetime, size_max: int, age_max: timedelta, custody: Custody | None = None
) -> tuple[Path, ...]:
    """Delete what `files_to_delete` names. Returns what was deleted. Raises: OSError."""
    found = {key: (directory / key.name).stat() for key in tracking_files(directory)}
    files = [
        Kept(key, each.st_size, custody is None or custody.is_shipped(key, each), custody is not None and custody.is_busy(key))
        for key, each in found.items()
    ]
    deletions = files_to_delete(files, newest, now, size_max, age_max)
    dropped: Collection[FileKey] = ()
    if custody is not None and deletions.dropped:
        dropped = custody.drop({key: found[key] for key in deletions.dropped})
    paths = tuple(directory / key.name for key in (*deletions.shipped, *dropped))
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def _ends_at(key: FileKey, now: datetime) -> datetime:
    try:
        return key.ends_at
    except ValueError:  # a name with an impossible hour: leave it to the size limit
        return now
