"""Lists the logs: `<logs>/<server>/MSGTRK*.LOG`, in a directory or at a URL of any store that fsspec supports. docs/sla.md, section 1.

Spark does not list and does not open them, so logs in a store need no jar of Hadoop. Unreadable files are reported before the job begins.
"""

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, NamedTuple

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.sla.storage import answering, is_local, located

NAMES = "MSGTRK*.LOG"  # logs in a server's directory
MEDIUM_BYTES = 512 << 20  # of logs, about a million events: up to this size the JVM's second compiler takes longer than it saves
LITTLE_BYTES = 32 << 20  # of logs, about 60,000 events: up to this size, a JVM takes longer to start than this process to read them


class NoLogs(ShadowrelayError):
    """There is nothing to read; the text says where it was expected."""


class Source(NamedTuple):
    """A log file: `<logs>/<server>/<name>`, or a piece of it (`pieces`): the octets from `begin` to `end`, None for its end.
    `size`: as listed; None if it was not listed, or the store does not tell."""

    path: str
    server: str
    name: str
    size: int | None = None
    piece: int = 0
    begin: int = 0
    end: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is no piece."""
        return self.piece == 0 and self.end is None

    @property
    def key(self) -> str:
        """The name for files written from this source."""
        return blake2b(f"{self.server}/{self.name}".encode(), digest_size=8).hexdigest()


def source_of(path: str) -> Source:
    """The directory is named after the server."""
    directory, _, name = path.rstrip("/").rpartition("/")
    return Source(path, directory.rpartition("/")[2], name)


def list_logs(logs: str) -> list[Source]:
    """All logs whose names are text, in a stable order. Raises: StoreFailed."""
    return sorted(source for source in _found(logs) if _is_text(source.path))


def list_servers(logs: str) -> list[str]:
    """Names of the directories, as far as they are text. Raises: StoreFailed."""
    files, top = located(logs)
    with answering(logs):
        names = [path.rpartition("/")[2] for path in _directories(files, top)]
    return sorted(name for name in names if _is_text(name))


def require_logs(logs: str, *, may_be_empty: bool = False) -> list[Source]:
    """The same. Raises: NoLogs, also for names and directories that would be overlooked; StoreFailed."""
    files, top = located(logs)
    with answering(logs):
        is_there = files.isdir(top)
    if not is_there and not (may_be_empty and not is_local(files)):  # a store has no empty directories
        raise NoLogs(f"{logs}: no such directory")
    if is_local(files) and (closed := [path for path in files.ls(top, detail=False) if _is_closed(path) and _is_text(path)]):
        raise NoLogs(f"{closed[0]}: this directory cannot be read: give this user the right to (chmod o+rx), or move it away")
    if strange := unreadable_names(logs):
        raise NoLogs(f"{logs}: the names of servers' directories and of logs must be UTF-8; rename {strange[0]}")
    found = list_logs(logs)
    if not found and not may_be_empty:
        raise NoLogs(f"{logs}: no logs: they are looked for as <server>/{NAMES}")
    return found


def unreadable_names(logs: str) -> list[str]:
    """Names of servers' directories and logs that are left out because they are not UTF-8: quoted, for people."""
    files, top = located(logs)
    with answering(logs):
        servers = [path for path in _directories(files, top) if not _is_text(path)]
    of_others = [source.path for source in _found(logs) if not _is_text(source.path) and _is_text(source.server)]
    return [repr(path) for path in sorted([*servers, *of_others])]


def is_little(sources: Iterable[Source], bytes_max: int = LITTLE_BYTES) -> bool:
    """Whether there is so little input that a JVM is not worth its start, and compiling not worth its time (`spark_session`)."""
    return sum(source.size or 0 for source in sources) <= bytes_max


def _found(logs: str) -> Iterator[Source]:
    files, top = located(logs)
    # on a disk the workers need an absolute path; elsewhere only the URL as it was given has the host
    place = top if is_local(files) else logs.rstrip("/")
    with answering(logs):
        for directory in _directories(files, top):
            server = directory.rpartition("/")[2]
            for entry in _entries(files, directory):
                name = entry["name"].rpartition("/")[2]
                if fnmatchcase(name, NAMES) and _is(files, entry, "file"):
                    yield Source(f"{place.rstrip('/')}/{server}/{name}", server, name, entry["size"])


def _directories(files: Any, top: str) -> list[str]:
    names = [entry["name"].rstrip("/") for entry in _entries(files, top) if _is(files, entry, "directory")]
    return [name for name in names if name != top.rstrip("/")]  # some stores list the directory itself


def _entries(files: Any, directory: str) -> list[dict[str, Any]]:
    try:
        return list(files.ls(directory, detail=True))
    except FileNotFoundError:  # deleted meanwhile; in a store, not there yet
        return []


def _is(files: Any, entry: dict[str, Any], kind: str) -> bool:
    if entry.get("islink"):  # fsspec does not follow it in a listing
        return bool((files.isdir if kind == "directory" else files.isfile)(entry["name"]))
    return bool(entry["type"] == kind)


def _is_closed(path: str) -> bool:
    return os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
