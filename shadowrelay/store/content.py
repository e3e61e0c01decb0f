"""The bytes of messages: written once, in the order of arrival, and never read back only to be deleted.

Contents up to 1 MiB go into segments, `content/<n>.segment`. A segment is a generation: it ends at 64 MB or after an
hour, and is unlinked as a whole when no message needs anything in it. Larger contents come as a spooled file, which
is linked to `content/large/<n>`. What was appended by a transaction that failed stays as a gap that nobody refers to.

Only the writer appends, syncs and unlinks; anybody may read. The places are in the database, so a file that no row
names is an orphan (a crash came between the two) and goes when the store is opened.
"""

import hashlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock

from shadowrelay.model.errors import ContentCorrupt
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, ContentPlace
from shadowrelay.store import errors
from shadowrelay.store.rows import LARGE

SEGMENT_BYTES_MAX = 64_000_000
SEGMENT_AGE_MAX = timedelta(hours=1)
READ_BLOCK_BYTES = 256 * 1024
JOINED_BYTES_MAX = 4 * CONTENT_IN_MEMORY_BYTES_MAX  # one call to write
SUFFIX = ".segment"
RECENT_BYTES_MAX = 64_000_000


class RecentContents:
    """Contents that were just written, up to a number of bytes: a delivery right after the acceptance does not read the disk.

    May be used from any thread."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._contents: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()

    def put(self, place: ContentPlace, data: bytes) -> None:
        with self._lock:
            self._contents[place.segment, place.offset] = data
            self._size += len(data)
            self._shrink()

    def get(self, place: ContentPlace) -> bytes | None:
        return self._contents.get((place.segment, place.offset))

    def drop(self, place: ContentPlace) -> None:
        """It will not be asked for again."""
        with self._lock:
            dropped = self._contents.pop((place.segment, place.offset), None)
            if dropped is not None:
                self._size -= len(dropped)

    def limit(self, bytes_max: int) -> None:
        """Hold no more than this from now on, or `RECENT_BYTES_MAX`: a cache gives way where memory is short."""
        with self._lock:
            self._bytes_max = min(bytes_max, RECENT_BYTES_MAX)
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._bytes_max:
            _, dropped = self._contents.popitem(last=False)
            self._size -= len(dropped)

    @property
    def size(self) -> int:
        return self._size


class ContentStore:
    """Shapes: `directory` is the node's data directory; `recent` has what was just written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "content"
        self.large_directory = self.directory / "large"
        self.spool_directory = directory / "spool"  # for the receiver; emptied at each start
        self.recent = RecentContents()
        self.segments: set[int] = set()
        self._segment: int | None = None
        self._last_segment = 0
        self._descriptor = -1
        self._end = 0
        self._opened_at: datetime | None = None
        self._waiting: list[tuple[int, bytes]] = []  # segment, data
        self._written_segment: int | None = None  # which `_descriptor` is

    @property
    def current_segment(self) -> int | None:
        """The one that is being written; it must not be unlinked."""
        return self._segment

    def open(self, known_segments: Collection[int], known_large: Collection[int]) -> int:
        """Make the directories, remove orphans; how many there were. Raises: OSError."""
        for directory in (self.directory, self.large_directory, self.spool_directory):
            directory.mkdir(parents=True, exist_ok=True)
        orphans_count = 0
        for path in list(self.directory.iterdir()):  # `glob` passes over what it has no rights to
            if path.suffix != SUFFIX:
                continue
            number = int(path.stem) if path.stem.isdigit() else -1
            self._last_segment = max(self._last_segment, number)
            if number in known_segments:
                self.segments.add(number)
            else:
                path.unlink()
                orphans_count += 1
        for path in self.large_directory.iterdir():
            if not path.name.isdigit() or int(path.name) not in known_large:
                path.unlink()
                orphans_count += 1
        for path in self.spool_directory.iterdir():
            with suppress(IsADirectoryError, PermissionError):
                path.unlink()
        self._last_segment = max(self._last_segment, *known_segments, 0)
        return orphans_count

    def append(self, content: Content, now: datetime) -> ContentPlace:
        """Give a small content its place; it is on disk after the next `sync`. Touches no file."""
        data = content.data
        assert data is not None
        if self._segment is None or self._end >= SEGMENT_BYTES_MAX or self._is_old(now):
            self._last_segment += 1
            self._segment, self._end, self._opened_at = self._last_segment, 0, now
            self.segments.add(self._segment)
        place = ContentPlace(self._segment, self._end, len(data), content.sha256)
        self._waiting.append((self._segment, data))
        self._end += len(data)
        return place

    def _is_old(self, now: datetime) -> bool:
        return self._opened_at is None or now - self._opened_at >= SEGMENT_AGE_MAX

    def sync(self) -> None:
        """Write and sync what waits. Raises: OSError; the segment is then not used any more."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            for segment, many in groupby(waiting, key=itemgetter(0)):
                if segment != self._written_segment:
                    self._open_segment(segment)
                for joined in _joined(data for _, data in many):
                    write_all(self._descriptor, joined)
        except OSError:
            self.end_segment()
            raise

    def _open_segment(self, number: int) -> None:
        self._close_segment()
        # O_DSYNC: a write returns when it is on disk. A call of its own for that would be one more fight for the interpreter.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC
        self._descriptor = os.open(self._path(number), flags, 0o600)
        self._written_segment = number
        sync_directory(self.directory)

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._written_segment = -1, None

    def forget_waiting(self) -> None:
        """The transaction was rolled back before the sync: nobody refers to the offsets, they are given again."""
        if self._segment != self._written_segment:
            self.end_segment()
            return
        self._end -= sum([len(data) for _, data in self._waiting])
        self._waiting = []

    def end_segment(self) -> None:
        """The next content begins a new one."""
        if self._segment is not None and self._segment != self._written_segment:
            self.segments.discard(self._segment)  # it never came to be
        self._close_segment()
        self._segment, self._end, self._opened_at = None, 0, None
        self._waiting = []

    def keep_large(self, content: Content, number: int) -> ContentPlace:
        """Make a spooled file the store's own, synced; may take long, so not on the writer's thread. Raises: OSError."""
        assert content.path is not None
        target = self.large_directory / str(number)
        with open(content.path, "rb") as spooled:
            os.fsync(spooled.fileno())
        try:
            os.link(content.path, target)
        except OSError:
            # Another file system, or one without links: the bytes are copied once more.
            with open(content.path, "rb") as source, open(target, "xb") as copy:
                shutil.copyfileobj(source, copy, READ_BLOCK_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
        sync_directory(self.large_directory)
        return ContentPlace(LARGE, number, content.size, content.sha256)

    def read(self, place: ContentPlace) -> Content:
        """The content, checked.

        Raises: ContentCorrupt when the file is missing, too short, or has another SHA-256; LedgerUnavailable when it cannot be
        read now (no descriptors or memory left, an I/O error, no rights), which says nothing about the content.
        """
        data = self.recent.get(place)
        if data is not None:
            return Content(place.size, place.sha256, data)
        path = self.large_directory / str(place.offset) if place.segment == LARGE else self._path(place.segment)
        try:
            with open(path, "rb", buffering=0) as file:
                if place.segment == LARGE and place.size > CONTENT_IN_MEMORY_BYTES_MAX:
                    digest = hashlib.sha256()
                    while block := file.read(READ_BLOCK_BYTES):
                        digest.update(block)
                    is_right = digest.digest() == place.sha256
                else:
                    data = os.pread(file.fileno(), place.size, 0 if place.segment == LARGE else place.offset)
                    is_right = len(data) == place.size and hashlib.sha256(data).digest() == place.sha256
        except FileNotFoundError as exc:
            if not self._is_there():
                raise errors.unavailable(exc) from exc
            raise ContentCorrupt(f"{path.name}: {exc}") from exc
        except (OSError, MemoryError) as exc:
            raise errors.unavailable(exc) from exc
        if not is_right:
            raise ContentCorrupt(f"{path.name} at {place.offset}: SHA-256 differs")
        return Content(place.size, place.sha256, data) if data is not None else Content(place.size, place.sha256, path=path)

    def _is_there(self) -> bool:
        """Whether a file that is missing is missing alone, and not with the volume that it is on."""
        try:
            self.directory.stat()
        except OSError:
            return False
        return True

    def unlink_segment(self, number: int) -> None:
        """No row needs it, and that is committed."""
        self.segments.discard(number)
        self._path(number).unlink(missing_ok=True)

    def unlink_large(self, number: int) -> None:
        """No row needs it, and that is committed."""
        (self.large_directory / str(number)).unlink(missing_ok=True)

    def has(self, place: ContentPlace | None) -> bool:
        """Whether that content should still be there."""
        return place is not None and (place.segment == LARGE or place.segment in self.segments)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number}{SUFFIX}"


def _joined(many: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in as few pieces as may be in memory twice."""
    part: list[bytes] = []
    size = 0
    for data in many:
        if part and size + len(data) > JOINED_BYTES_MAX:
            yield b"".join(part)
            part, size = [], 0
        part.append(data)
        size += len(data)
    if part:
        yield b"".join(part)


def write_all(descriptor: int, data: bytes) -> None:
    """A full disk may take a part first."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(directory: Path) -> None:
    """So that a new name survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
