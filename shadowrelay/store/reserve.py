"""Room that is kept for a start on a full disk.

To open `queue.db` SQLite needs a little room: for the index of its log, and for the commit that says that it was opened. On a
full disk it could not even be read. So a file of `RESERVE_BYTES` lies beside it, which is given up when the database is opened
without room, and made again when there is enough. What it frees is used for outcomes; mail is refused meanwhile.
"""

import os
from contextlib import suppress
from pathlib import Path

RESERVE_NAME = "reserve"
RESERVE_BYTES = 16_000_000
OPENING_BYTES = 4_000_000  # with less than this an opening takes the reserve


def free_bytes(directory: Path) -> int:
    """What this user may still write there. Raises: OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def give_up(directory: Path, needed_bytes: int = OPENING_BYTES) -> bool:
    """Free the reserve if less than `needed_bytes` are free; whether that was so, and there was one. Raises: OSError."""
    path = directory / RESERVE_NAME
    if not path.exists() or free_bytes(directory) >= needed_bytes:
        return False
    path.unlink()
    return True


def make(directory: Path, spare_bytes: int) -> bool:
    """Have a reserve, if `spare_bytes` are left beside it; whether there is one now. Raises: nothing."""
    path = directory / RESERVE_NAME
    try:
        if path.exists() and path.stat().st_size == RESERVE_BYTES:
            return True
        if free_bytes(directory) < RESERVE_BYTES + spare_bytes:
            return False
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)
        return True
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # a part of it is no help
        return False
