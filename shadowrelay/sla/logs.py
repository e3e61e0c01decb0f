"""Lists the logs: `<logs>/<server>/MSGTRK*.LOG`, also `.log` and packed as `.LOG.gz`. docs/sla.md, section 1.

They are in a directory, or at a URL of any store that fsspec supports. Spark does not list and does not open them, so logs in a store need
no jar of Hadoop. Unreadable files are reported before the job begins.
"""

import os
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.sla.storage import answering, is_local, located

NAMES = "MSGTRK*.LOG"  # logs in a server's directory, as people know them
GLOB = "{,[!._]* }[Mm][Ss][Gg][Tt][Rr][Kk]*.[Ll][Oo][Gg]{,.[Gg][Zz]}"  # the same as `is_log`, for Hadoop
PACKED_SHARE = 8  # of a log's size, once it is packed; and less
LEFT_OUT_NAMED = 3
_TO_NOWHERE = "(a link to nowhere)"
_IS_LOG = re.compile(r"([^._].* )?msgtrk.*\.log(\.gz)?", re.IGNORECASE | re.DOTALL)  # "Copy of MSGTRK….LOG": Explorer's, in any language
_LIKE_A_LOG = re.compile(r"(?![._]).*msgtrk", re.IGNORECASE | re.DOTALL)
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
    def weight(self) -> int:
        """Its size, about that of the plain text if it is packed; 0 if unknown."""
        return (self.size or 0) * (PACKED_SHARE if self.name.lower().endswith(".gz") else 1)

    @property
    def key(self) -> str:
        """The name for files written from this source."""
        return blake2b(f"{self.server}/{self.name}".encode(), digest_size=8).hexdigest()


def is_log(name: str) -> bool:
    """Whether a file of this name is read. Microsoft's own documents write `.log`, and what is kept for long is packed."""
    return _IS_LOG.fullmatch(name) is not None


def is_of_mailboxes(name: str) -> bool:
    """Whether Exchange logs in it what goes to and from mailboxes (`MSGTRKMD`, `MSGTRKMS`), and not what other servers and clients send."""
    return "msgtrkm" in name.lower()


def plain_name(name: str) -> str:
    """The name that the log had before it was packed."""
    return name[: -len(".gz")] if name.lower().endswith(".gz") else name


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
        others = left_out(logs)
        raise NoLogs(f"{logs}: no logs: " + (told_left_out(others) if others else f"they are looked for as <server>/{NAMES}"))
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
    return sum(source.weight for source in sources) <= bytes_max


def left_out(logs: str) -> list[str]:
    """Files that look like logs and are not read, below `logs`: another extension, or not in the directory of a server itself. Links are
    followed; one that leads nowhere is left out like a file, also in the place of a server's directory.

    Raises: StoreFailed.
    """
    files, top = located(logs)
    found = []
    with answering(logs):
        for path, entry in _leaves(files, top):
            where = path.removeprefix(top.rstrip("/")).strip("/").split("/")
            is_like_one, is_there = _LIKE_A_LOG.match(where[-1]) is not None, is_kind(files, entry, "file")
            if is_there and is_like_one and not (len(where) == 2 and is_log(where[-1])):
                found.append("/".join(where))
            elif not is_there:
                is_nowhere = bool(entry.get("islink")) and not files.exists(entry["name"])
                is_server = is_nowhere and len(where) == 1 and not where[0].startswith((".", "_"))
                if is_like_one or is_server:
                    found.append(f"{'/'.join(where)} {_TO_NOWHERE if is_nowhere else '(no file)'}")
    return sorted(name for name in found if _is_text(name))


def told_left_out(names: list[str]) -> str:
    """A line about them. Shapes: not empty."""
    named = ", ".join(names[:LEFT_OUT_NAMED]) + (" …" if len(names) > LEFT_OUT_NAMED else "")
    what = "1 file is left out" if len(names) == 1 else f"{len(names)} files are left out"
    links = "; mend links or delete them" if any(name.endswith(_TO_NOWHERE) for name in names) else ""
    return f"{what}: {named}; logs are read as <server>/{NAMES}, also .log and .LOG.gz: rename, unpack or move them{links}"


def _found(logs: str) -> Iterator[Source]:
    files, top = located(logs)
    # on a disk the workers need an absolute path; elsewhere only the URL as it was given has the host
    place = top if is_local(files) else logs.rstrip("/")
    with answering(logs):
        for directory in _directories(files, top):
            server = directory.rpartition("/")[2]
            for entry in _entries(files, directory):
                name = entry["name"].rpartition("/")[2]
                if is_log(name) and is_kind(files, entry, "file"):
                    yield Source(f"{place.rstrip('/')}/{server}/{name}", server, name, entry["size"])


def _directories(files: Any, top: str) -> list[str]:
    names = [entry["name"].rstrip("/") for entry in _entries(files, top) if is_kind(files, entry, "directory")]
    return [name for name in names if name != top.rstrip("/")]  # some stores list the directory itself


def _entries(files: Any, directory: str) -> list[dict[str, Any]]:
    try:
        return list(files.ls(directory, detail=True))
    except FileNotFoundError:  # deleted meanwhile; in a store, not there yet
        return []


def files_below(files: Any, top: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every file below `top` with its details. Links are followed; not one that leads to a directory above itself."""
    for path, entry in _leaves(files, top):
        if is_kind(files, entry, "file"):
            yield path, files.info(os.path.realpath(path)) if entry.get("islink") else entry


def _leaves(files: Any, top: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same, as listed, with what is neither file nor directory, such as a link to nowhere."""
    waiting: list[tuple[str, frozenset[str]]] = [(top.rstrip("/"), frozenset())]
    while waiting:
        directory, above = waiting.pop()
        real = os.path.realpath(directory) if is_local(files) else directory
        if real in above:
            continue
        for entry in _entries(files, directory):
            path = entry["name"].rstrip("/")
            if not is_kind(files, entry, "directory"):
                yield path, entry
            elif path != directory:
                waiting.append((path, above | {real}))


def is_kind(files: Any, entry: dict[str, Any], kind: str) -> bool:
    """Whether an entry of a listing is a "file" or a "directory", links followed."""
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
