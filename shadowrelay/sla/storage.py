"""Access to logs and warehouse on any file system, with atomic writes. docs/sla.md, section 1, "Limits".

Spark uses Hadoop's form of paths, fsspec another: `located` accepts both. On a disk, a file is written under a hidden name and then
renamed; an object store needs no such step, because uploads are atomic there.
"""

import errno
import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import fsspec  # type: ignore[import-untyped]

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")
_ONE_SLASH = re.compile(r"file:/+")
HADOOP_ONLY = {"s3a": "s3", "s3n": "s3"}  # schemes that only Hadoop knows -> fsspec's scheme


def located(path: str) -> tuple[Any, str]:
    """The file system of `path`, and the path on it. Shapes: a plain path, `file:/…` as Spark writes it, or a URL.

    Raises: ValueError, ImportError for a scheme that fsspec does not support, or only with another package.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme in HADOOP_ONLY:
        path = f"{HADOOP_ONLY[scheme]}://{rest}"
    files, found = fsspec.url_to_fs(_ONE_SLASH.sub("/", path, count=1) if path.startswith("file:") else path)
    return files, found


def is_local(files: Any) -> bool:
    """Whether the file system has an atomic rename. `files` comes from `located`."""
    protocol = files.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


@contextmanager
def written_whole(path: str) -> Iterator[IO[bytes]]:
    """A file for writing; it gets its name, and replaces the old file, when it is complete. Until then its name begins with a dot.

    Raises: OSError, naming the file.
    """
    files, target = located(path)
    directory, _, name = target.rpartition("/")
    if not is_local(files):
        with files.open(target, "wb") as file:
            yield file
        return
    if files.isdir(target):  # else the file would be moved into it
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    files.makedirs(directory, exist_ok=True)
    hidden = f"{directory}/.{name}.{uuid.uuid4().hex}"
    try:
        with files.open(hidden, "wb") as file:
            yield file
        files.mv(hidden, target)
    except BaseException as exc:
        if files.exists(hidden):
            files.rm(hidden)
        if isinstance(exc, OSError) and exc.errno is not None and exc.filename is None:  # a failed write does not name the file
            raise OSError(exc.errno, exc.strerror, target) from exc
        raise


@contextmanager
def alone(path: str, *, is_waiting: bool = True) -> Iterator[None]:
    """Lock a directory against other processes. Only a local one can be locked.

    Raises: BlockingIOError if it is locked and `is_waiting` is false.
    """
    files, top = located(path)
    if not is_local(files):
        yield
        return
    files.makedirs(top, exist_ok=True)
    directory = os.open(top, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
        yield
    finally:
        os.close(directory)


def sweep(path: str) -> None:
    """Delete temporary files of killed writers. No other process may be writing there."""
    files, top = located(path)
    if is_local(files) and files.exists(top):
        for found in files.find(top):
            name = found.rpartition("/")[2]
            if _UNFINISHED.fullmatch(name):
                files.rm(found)
        if files.exists(f"{top}/_temporary"):  # Spark's temporary directory
            files.rm(f"{top}/_temporary", recursive=True)
