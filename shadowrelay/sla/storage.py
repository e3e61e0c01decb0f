"""Access to logs and warehouse on any file system, with atomic writes. docs/sla.md, section 1, "Limits".

Spark uses Hadoop's form of paths, fsspec another: `located` accepts both. On a disk, a file is written under a hidden name and then
renamed. For an object store it is written on the disk, in the directory for temporary files, and uploaded as a whole, which is atomic.
"""

import errno
import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import fsspec  # type: ignore[import-untyped]

from shadowrelay.model.replies import ConfigurationError, ShadowrelayError

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")
_ONE_SLASH = re.compile(r"file:/+")
HADOOP_ONLY = {"s3a": "s3", "s3n": "s3"}  # schemes that only Hadoop knows -> fsspec's scheme


class StoreFailed(ShadowrelayError):
    """A store could not be reached, or refused; the text names it, and has the reason."""


def located(path: str) -> tuple[Any, str]:
    """The file system of `path`, and the path on it. Shapes: a plain path, `file:/…` as Spark writes it, or a URL.

    Raises: ValueError, ImportError for a scheme that fsspec does not support, or only with another package.
    """
    if path.startswith("file:"):
        path = _ONE_SLASH.sub("/", path, count=1)
    scheme, separator, rest = path.partition("://")
    if not separator or path.startswith("/"):  # not by way of `url_to_fs`, to which two colons chain stores
        files = fsspec.filesystem("file")
        return files, files._strip_protocol(path)
    files, found = fsspec.url_to_fs(f"{HADOOP_ONLY[scheme]}://{rest}" if scheme in HADOOP_ONLY else path)
    files.invalidate_cache()  # of listings: other processes write there too
    return files, found


def is_local(files: Any) -> bool:
    """Whether the file system has an atomic rename. `files` comes from `located`."""
    protocol = files.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


@contextmanager
def answering(place: str) -> Iterator[None]:
    """While a store is asked about `place`: each library has errors of its own, and few of them name what they are about.

    Raises: StoreFailed; on a disk, what the system raises.
    """
    try:
        yield
    except ShadowrelayError:
        raise
    except Exception as exc:
        if is_local(located(place)[0]):
            raise
        raise StoreFailed(f"{place}: {type(exc).__name__}: {exc}") from exc


# Spark reads and writes a warehouse and a report itself, by Hadoop. Scheme -> its connector, which pyspark does not bring.
CONNECTORS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
_NAMED = re.compile(r"--(?:packages|jars|driver-class-path)\b|spark\.jars|extraClassPath")


def require_hadoop(option: str, place: str) -> None:
    """Raises: ConfigurationError if Spark cannot read and write there; the text says what it needs."""
    scheme, separator, rest = place.partition("://")
    if not separator or scheme == "file":
        return
    if scheme in ("s3", "s3n"):
        raise ConfigurationError(f"{option} {place}: Spark calls this store s3a: write s3a://{rest}")
    package = CONNECTORS.get(scheme)
    if package is not None and not _has_connector(package):
        version = _hadoop_version() if package.startswith("org.apache.hadoop") else "VERSION"
        raise ConfigurationError(
            f"{option} {place}: Spark reads and writes there itself, and needs a connector for it. With access to Maven Central: "
            f"PYSPARK_SUBMIT_ARGS='--packages {package}:{version} pyspark-shell'; else put it and what it needs into {_spark_home()}/jars. "
            "`sla ingest` and `sla report` read logs in any store without it, if warehouse and output are directories"
        )
    try:
        located(place)
    except ImportError as exc:
        raise ConfigurationError(f"{option} {place}: {exc}") from exc


def _spark_home() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    return Path(found.origin).parent if found and found.origin else Path("pyspark")


def _has_connector(package: str) -> bool:
    """Its jar is there, or the user names jars where Spark looks for them: which ones, is for Spark to say."""
    home = _spark_home()
    if any((home / "jars").glob(f"{package.partition(':')[2]}*.jar")):
        return True
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    named = defaults.read_text(encoding="utf-8") if defaults.is_file() else ""
    return _NAMED.search(named + os.environ.get("PYSPARK_SUBMIT_ARGS", "")) is not None


def _hadoop_version() -> str:
    """Of this Spark: its connectors must have the same."""
    prefix = "hadoop-client-api-"
    return next((jar.stem.removeprefix(prefix) for jar in (_spark_home() / "jars").glob(f"{prefix}*.jar")), "VERSION")


@contextmanager
def written_whole(path: str) -> Iterator[IO[bytes]]:
    """A file for writing; it gets its name, and replaces the old file, when it is complete. Until then, on a disk, its name begins
    with a dot.

    Raises: OSError, naming the file.
    """
    files, target = located(path)
    directory, _, name = target.rpartition("/")
    if not is_local(files):
        with NamedTemporaryFile() as file:  # closing a file of fsspec uploads it, also after an error
            yield file
            file.flush()
            files.put_file(file.name, target)
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
