"""The files beside `queue.db`: content of messages, the disk reserve, the marks for poison. docs/architecture.md "On disk", "Poison".

**Content** is written once, in the order of arrival, and never read just to be deleted. Content of up to 1 MiB goes into segments,
`content/<n>.segment`. A segment ends at 64 MB or after an hour, and is unlinked as a whole when no message needs anything in it. Larger
content arrives as a spooled file, which is linked to `content/large/<n>` and synced outside the writer's thread, so that 36 MB do not delay
other promises. The bytes that a failed transaction appended stay as an unused gap.

Only the writer appends, syncs and unlinks; any thread may read. The database has the places, so a file that no row names is an orphan
of a crash, and is deleted when the store is opened.

**The reserve** is a file of `RESERVE_BYTES`. To open the database SQLite needs a little space, for the index of its log and for the
commit that records the opening; on a full disk it could not even be read. The file is deleted when the database is opened without
space, and made again when there is enough. The freed space is used for outcomes; mail is refused meanwhile.

**The marks** record whose content is being handled at this moment, so that a message that kills the node can be identified
(docs/design.md 6.9). A message is marked only while its content is parsed or written out, never while it waits: the mark is set and
cleared before the event loop continues. So the mark that a dead process left names the message that it was handling.

The marks must survive the process but not a power loss, so they are in a small file that is written in place and never synced: the kernel
keeps the writes of a dead process. A commit for each attempt would cost as much as the attempt. Two kinds of death are not
counted; the first slot of the file, its header, distinguishes them:

* a death after the process was asked to stop: an operator killed it, whatever it was handling;
* a death of the machine, recognised by another boot id. After a power loss an unsynced file may be minutes old or half written, so it
  proves nothing. The price: a message that takes the whole machine down is not identified.
"""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, ContentPlace
from shadowrelay.model.replies import ContentCorrupt
from shadowrelay.model.values import dataclass
from shadowrelay.store import errors
from shadowrelay.store.rows import LARGE

SEGMENT_BYTES_MAX = 64_000_000
SEGMENT_AGE_MAX = timedelta(hours=1)
READ_BLOCK_BYTES = 256 * 1024
PROOF_BYTES = 4096  # read back as a proof that the disk can be read
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
            if self._size > self._bytes_max:
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
        self._checked_large: set[int] = set()  # files whose content is checked, see `Content`; as many as this process has stored
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
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(OSError):  # made by an older version, whose large journal reports others could read
                directory.chmod(0o700)
        for directory in (self.directory.parent, self.directory):  # or a power cut takes all contents together with a directory's name
            sync_directory(directory)
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
        is_old = self._opened_at is None or now - self._opened_at >= SEGMENT_AGE_MAX
        if self._segment is None or self._end >= SEGMENT_BYTES_MAX or is_old:
            self._last_segment += 1
            self._segment, self._end, self._opened_at = self._last_segment, 0, now
            self.segments.add(self._segment)
        place = ContentPlace(self._segment, self._end, len(data), content.sha256)
        self._waiting.append((self._segment, data))
        self._end += len(data)
        return place

    def sync(self) -> None:
        """Write and sync what waits. Raises: OSError; the segment is then not used any more."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            for segment, many in groupby(waiting, key=itemgetter(0)):
                if segment != self._written_segment:
                    self._open_segment(segment)
                for joined in _joined([data for _, data in many]):
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
            with open(content.path, "rb") as source, open(target, "xb", opener=private) as copy:
                shutil.copyfileobj(source, copy, READ_BLOCK_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
        sync_directory(self.large_directory)
        if content.is_checked:
            self._checked_large.add(number)
        return ContentPlace(LARGE, number, content.size, content.sha256)

    def read(self, place: ContentPlace) -> Content:
        """The content, checked.

        Raises: ContentCorrupt when the file is missing, too short, or has another SHA-256; LedgerUnavailable when it cannot be
        read now, which says nothing about the content: no descriptors or memory left, or (ContentUnreadable) an I/O error, no rights.
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
            raise errors.unreadable(exc) from exc
        if not is_right:
            raise ContentCorrupt(f"{path.name} at {place.offset}: SHA-256 differs")
        if data is not None:
            return Content(place.size, place.sha256, data)
        return Content(place.size, place.sha256, path=path, is_checked=place.offset in self._checked_large)

    def prove_read(self) -> None:
        """Read what was written last from the disk, not from memory, and read a directory. Raises: OSError."""
        if (segment := self._written_segment) is None:
            os.scandir(self.directory).close()
            return
        with open(self._path(segment), "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if size and not os.pread(file.fileno(), PROOF_BYTES, max(size - PROOF_BYTES, 0)):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path(segment)))

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
        self._checked_large.discard(number)
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


def wrapped(content: Content, before: bytes, after: bytes, path: Path) -> Content:
    """The same with octets around it; in a new file if it is large, which is the caller's. Raises: OSError."""
    size = len(before) + content.size + len(after)
    if content.data is not None and size <= CONTENT_IN_MEMORY_BYTES_MAX:
        data = before + content.data + after
        return Content(size, hashlib.sha256(data).digest(), data, portion=content.portion)
    digest = hashlib.sha256(before)
    try:
        with open(path, "xb", opener=private) as file:
            file.write(before)
            with io.BytesIO(content.data or b"") if content.path is None else content.path.open("rb") as source:
                while block := source.read(READ_BLOCK_BYTES):
                    digest.update(block)
                    file.write(block)
            digest.update(after)
            file.write(after)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Content(size, digest.digest(), path=path)


def private(path: str, flags: int) -> int:
    """An opener: only this user may read the file, whatever the umask."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


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


Answer = TypeVar("Answer")
FILE_THREADS_COUNT = 2
NO_PLACES: Mapping[Path, ContentPlace] = MappingProxyType({})


class Handing(Enum):
    """What becomes of a file that comes with a promise, once that is over."""

    GIVEN = auto()  # it goes if it was stored, and else is still the caller's
    TAKEN = auto()  # it goes in any case
    LENT = auto()  # it has an owner already, and gets a second name


class LargeContents:
    """Shapes: numbers of files are unique because no two openings have the same incarnation."""

    def __init__(self, contents: ContentStore, incarnation: int, *, is_inline: bool) -> None:
        self._contents = contents
        self._is_inline = is_inline
        self._files = ThreadPoolExecutor(FILE_THREADS_COUNT, "ledger files")
        self._number = incarnation << 32
        self._tasks: set[asyncio.Task[Any]] = set()

    async def stored_before(
        self,
        files: Sequence[tuple[Content, Handing]],
        promised: Callable[[Mapping[Path, ContentPlace]], Awaitable[Answer]],
        is_kept: Callable[[Answer], bool] | None,
    ) -> Answer:
        """First the files, then what is promised, with their places. In a task: cancelling the waiter stops nothing.

        Raises: LedgerUnavailable; what `promised` raises. Nothing was stored then.
        """
        if self._is_inline:
            return await self._store(files, promised, is_kept)
        task = asyncio.create_task(self._store(files, promised, is_kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _store(
        self,
        files: Sequence[tuple[Content, Handing]],
        promised: Callable[[Mapping[Path, ContentPlace]], Awaitable[Answer]],
        is_kept: Callable[[Answer], bool] | None,
    ) -> Answer:
        places: dict[Path, ContentPlace] = {}
        was_kept = was_cancelled = False
        try:
            for content, _ in files:
                assert content.path is not None
                self._number += 1
                places[content.path] = await self.on_file_thread(partial(self._contents.keep_large, content, self._number))
            result = await promised(places)
            was_kept = is_kept is None or is_kept(result)
        except OSError as error:
            raise errors.unavailable(error) from error
        except asyncio.CancelledError:
            was_cancelled = True
            raise
        finally:
            for content, handing in files:
                assert content.path is not None
                with contextlib.suppress(OSError):  # else an orphan, for the next opening
                    if not was_kept and content.path in places:
                        self._contents.unlink_large(places[content.path].offset)
                    if (was_kept and handing is Handing.GIVEN) or (handing is Handing.TAKEN and not was_cancelled):
                        content.path.unlink(missing_ok=True)
        return result

    async def on_file_thread(self, call: Callable[[], Answer]) -> Answer:
        """Blocking work on files."""
        if self._is_inline:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._files, call)

    async def wait(self) -> None:
        """Until what was promised is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        self._files.shutdown(wait=True)


RESERVE_NAME = "reserve"
RESERVE_BYTES = 16_000_000
OPENING_BYTES = 4_000_000  # with less than this an opening takes the reserve


def free_bytes(directory: Path) -> int:
    """What this user may still write there. Raises: OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def give_up_reserve(directory: Path, needed_bytes: int = OPENING_BYTES) -> bool:
    """Free the reserve if less than `needed_bytes` are free; whether that was so, and there was one. Raises: OSError."""
    path = directory / RESERVE_NAME
    if not path.exists() or free_bytes(directory) >= needed_bytes:
        return False
    path.unlink()
    return True


def make_reserve(directory: Path, spare_bytes: int) -> bool:
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


SLOT_BYTES = 40  # a UUID has 36
SLOTS_COUNT_MAX = 64  # one is used at a time; more at once are not watched
FILE_BYTES_MAX = SLOT_BYTES * 16_385  # as large as older versions made it
EMPTY = bytes(SLOT_BYTES)
STOPPING = b"S"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNKNOWN_BOOT = "unknown"  # not Linux: every death counts as one of the process
SURVIVED_COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Deaths:
    """What the last process was handling when it died. `excuse`: why that is no reason to suspect it; empty if it is."""

    message_ids: tuple[MessageId, ...]
    excuse: str = ""


def read_boot_id() -> str:
    """Of the running kernel; the same in all containers of a machine."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()[: SLOT_BYTES - len(STOPPING)]
    except (OSError, ValueError):
        return UNKNOWN_BOOT


class WorkingFile:
    """Raises: OSError from `open` only. Not being able to mark is no reason not to deliver."""

    def __init__(self, path: Path, boot_id: Callable[[], str] = read_boot_id) -> None:
        self._path = path
        self._boot_id = boot_id
        self._boot = b""
        self._descriptor = -1
        self.handling: Callable[[MessageId], Handling] = partial(Handling, self)
        self.slots: dict[MessageId, int] = {}
        self.free = list(range(SLOTS_COUNT_MAX, 0, -1))
        self.survived: set[MessageId] = set()  # handled, and not forgotten by `promises.attempt` yet

    def open(self) -> Deaths:
        """The marks that the last process left. They stay until `begin`."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = self._boot_id().encode("ascii", "replace")
        data = os.pread(self._descriptor, FILE_BYTES_MAX, 0)
        slots = (data[start : start + SLOT_BYTES].rstrip(b"\0") for start in range(SLOT_BYTES, len(data), SLOT_BYTES))
        message_ids = tuple(dict.fromkeys(MessageId(slot.decode("ascii", "replace")) for slot in slots if slot))
        header = data[:SLOT_BYTES]
        if header[: -len(STOPPING)].rstrip(b"\0") != self._boot:
            return Deaths(message_ids, "the machine was started since, or the file is an older version's")
        return Deaths(message_ids, "it had been asked to stop" if header.endswith(STOPPING) else "")

    def begin(self) -> None:
        """Nothing is being handled. All slots are written, so that a mark needs no room on a full disk. Raises nothing, as `write`."""
        self.write(0, self._header(b"\0") + EMPTY * SLOTS_COUNT_MAX)
        with suppress(OSError):
            os.ftruncate(self._descriptor, SLOT_BYTES * (1 + SLOTS_COUNT_MAX))

    def stopping(self) -> None:
        """From now on a death is nobody's fault."""
        if self._descriptor >= 0:
            self.write(0, self._header(STOPPING))

    def _header(self, state: bytes) -> bytes:
        return self._boot.ljust(SLOT_BYTES - len(state), b"\0") + state

    def write(self, slot: int, data: bytes) -> None:
        """Raises nothing: the mark is a help, not a promise."""
        try:  # noqa: SIM105 - it runs four times a message
            os.pwrite(self._descriptor, data, slot * SLOT_BYTES)
        except OSError:
            pass

    def close(self, *, is_clean: bool) -> None:
        if self._descriptor >= 0:
            if is_clean:
                self.begin()
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class Handling:
    """Marks a message as long as the `with` lasts: a step that handles its content and waits for nothing. The mark goes also
    when the step ends with an exception: the process lives."""

    __slots__ = ("_file", "_message_id")

    def __init__(self, file: WorkingFile, message_id: MessageId) -> None:
        self._file, self._message_id = file, message_id

    def __enter__(self) -> None:
        file, text = self._file, self._message_id.encode("ascii", "replace")
        if self._message_id not in file.slots and len(text) <= SLOT_BYTES and file.free:
            slot = file.slots[self._message_id] = file.free.pop()
            file.write(slot, text.ljust(SLOT_BYTES, b"\0"))

    def __exit__(self, *_: object) -> None:
        file = self._file
        slot = file.slots.pop(self._message_id, None)
        if slot is not None:
            file.free.append(slot)
            file.write(slot, EMPTY)
        if len(file.survived) >= SURVIVED_COUNT_MAX:
            file.survived.clear()
        file.survived.add(self._message_id)
