"""Finds the class-data archive: a file with Spark's classes, which a JVM maps instead of loading them. docs/sla.md "Make a report".

`sla prepare` makes it (`preparation`), for one JVM and one installation of Spark, and every later session of that user maps it if it is
there. The JVM compares it with its own version and with each jar, and ignores it if anything differs.
"""

import os
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from time import time

UNUSED_MAX = timedelta(days=30)  # then the next `sla prepare` deletes it: that JVM or Spark is probably gone
QUIET = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # otherwise a JVM prints on standard output why it does not use the archive
)


def cache_directory() -> str | None:
    """Ours, of this user; None: there is no home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "shadowrelay") if os.path.isabs(cache) else None


def archive_of(java: str, spark: str) -> Path | None:
    """Where the archive for this program `java` and this directory of Spark belongs, whether or not it is there. None: there is no home.

    An update of either gives another name.
    """
    cache = cache_directory()
    if cache is None or set(cache) & set('"\\'):  # the launcher of Spark would read them as quotes
        return None
    program, jars = os.path.realpath(java), os.path.join(spark, "jars")
    identity = repr([(path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in (program, jars)])
    return Path(cache) / f"spark-{blake2b(identity.encode(), digest_size=8).hexdigest()}.jsa"


def usable_archive(java: str, spark: str) -> Path | None:
    """The archive, if it is there and nobody but this user can have written it: the JVM trusts its content."""
    try:
        path = archive_of(java, spark)
        if path is None or not (_is_ours(path) and _is_ours(path.parent)):
            return None
        with suppress(OSError):
            os.utime(path)  # it is in use
    except OSError:
        return None
    return path


def _is_ours(path: Path) -> bool:
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def delete_unused(directory: Path) -> None:
    """Delete archives that no session used for long."""
    for path in directory.glob("spark-*.jsa"):
        with suppress(OSError):
            if time() - path.stat().st_mtime > UNUSED_MAX.total_seconds():
                path.unlink()
