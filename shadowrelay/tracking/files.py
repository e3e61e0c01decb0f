"""Files of the message tracking log: names, order, and how lines are laid out in pages.

The kernel shows an append to readers page by page (measured on ext4 and tmpfs, Linux 6.18: 60 to 76 % of the looks at a file that
is being appended to in blocks of 20 KB saw half a line, although each block was one write). So no line crosses a page: where the
next one would not fit, the line before it is filled up with blanks after its last field, and what a reader can see then always ends
with a whole line. Lines longer than a page are the exception; there is nothing to be done about them but to read up to the last newline.
"""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096  # the smallest page of Linux; larger ones are multiples of it
ROOM_BYTES_MIN = 1024  # left at the end of a write, so that the next line (about 500 octets) finds room. Costs about 10 % of the space
LINE_END = b"\r\n"

_NAME = re.compile(r"MSGTRK(\d{10})-(\d+)\.LOG")


class FileKey(NamedTuple):
    """Which file: UTC hour as yyyymmddhh and instance. Sorts by age."""

    hour: str
    instance: int

    @property
    def name(self) -> str:
        """docs/sources.md "logdoc": real files carry the hour."""
        return f"MSGTRK{self.hour}-{self.instance}.LOG"

    @property
    def ends_at(self) -> datetime:
        """When the hour is over."""
        return datetime.strptime(self.hour, "%Y%m%d%H").replace(tzinfo=UTC) + timedelta(hours=1)


def hour_of(at: datetime) -> str:
    """The hour's part of a file's name."""
    return at.astimezone(UTC).strftime("%Y%m%d%H")


def parse_name(name: str) -> FileKey | None:
    """`None` for what is not a tracking log; MSGTRKMD and other prefixes are not."""
    match = _NAME.fullmatch(name)
    return FileKey(match[1], int(match[2])) if match else None


def tracking_files(directory: Path) -> list[FileKey]:
    """Oldest first. Raises: OSError."""
    return sorted(key for key in map(parse_name, os.listdir(directory)) if key is not None)


def create_file(directory: Path, hour: str) -> tuple[int, FileKey]:
    """A new file of this hour, the next instance; open for appending. Raises: OSError."""
    instance = max((key.instance for key in tracking_files(directory) if key.hour == hour), default=0) + 1
    while True:
        key = FileKey(hour, instance)
        try:
            return os.open(directory / key.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), key
        except FileExistsError:  # somebody made it since we looked
            instance += 1


def sync_directory(directory: Path) -> None:
    """A file is only on disk when its name is. Raises: OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lay_out(lines: Sequence[bytes], offset: int, limit: int) -> list[bytes]:
    """Fill lines up so that none crosses a page when they are written one after the other at `offset`.

    Shapes: one piece a line; together at most `limit` where filling up would pass it.
    """
    pieces: list[bytes] = []
    room = PAGE_BYTES - offset % PAGE_BYTES
    for line in lines:
        length = len(line)
        if room < length <= PAGE_BYTES:
            if pieces:
                pieces[-1] = _filled(pieces[-1], room)
            else:
                line = _filler(room) + line
            room = PAGE_BYTES
        pieces.append(line)
        room = PAGE_BYTES - (PAGE_BYTES - room + length) % PAGE_BYTES
    if pieces and room < ROOM_BYTES_MIN and offset + sum(map(len, pieces)) + room <= limit:
        pieces[-1] = _filled(pieces[-1], room)
    return pieces


def _filled(line: bytes, count: int) -> bytes:
    return line[: -len(LINE_END)] + b" " * count + LINE_END  # the last field (schema-version) is never quoted


def _filler(count: int) -> bytes:
    """A comment, or an empty line, for the rare line that is longer than the room that the write before it left."""
    return b"\n" if count == 1 else b"#" * min(1, count - 2) + b" " * (count - 3) + LINE_END
