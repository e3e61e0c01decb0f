"""A source of recipients that is a file: read in a thread, read again when it changes. docs/reference.md "Known recipients".

A file that cannot be read, or is broken or empty, changes nothing: the list that was read last stays, and `problem` says so. A file is read
when it has not changed between two looks, so that one which is being written is left alone; a rename takes its place at once and whole.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from shadowrelay.bounded import Attempt, Threads
from shadowrelay.model.receive_settings import RecipientSource
from shadowrelay.model.settings import Settings
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.recipient_list import BUCKETS_COUNT, Addresses, BrokenList, ListReader

LOOK_SECONDS = 5.0  # how often it is looked at
STAT_SECONDS = 10.0  # for a file system that hangs
READ_SECONDS = 600.0
LINE_CHARACTERS_MAX = 64 * 1024  # also of a comment: a file that is something else may have no line end at all
LINES_AT_ONCE = 500  # about a millisecond; then other threads run
PAUSE_SECONDS = 0.0005

Signature = tuple[int, int, int, int]  # inode, modification of the content and of the rights, size

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """What was read, and which state of the file it is."""

    addresses: Addresses
    signature: Signature


def signature_of(path: Path) -> Signature:
    """Raises: OSError."""
    return _signature(path.stat())


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def read(path: Path, *, is_case_sensitive: bool, pause: Callable[[], None] = lambda: None) -> Found:
    """Read the whole file. In a thread: it takes seconds for a million addresses. `pause` is called again and again, for others to run.

    Raises: BrokenList with the reason, also for a file that cannot be read or changes meanwhile.
    """
    reader = ListReader(is_case_sensitive=is_case_sensitive)
    try:
        with path.open(encoding="utf-8-sig", errors="strict") as file:
            before = _signature(os.fstat(file.fileno()))
            for number, line in enumerate(iter(lambda: file.readline(LINE_CHARACTERS_MAX), ""), start=1):
                if len(line) == LINE_CHARACTERS_MAX and not line.endswith("\n"):
                    raise BrokenList(f"line {number} is longer than {LINE_CHARACTERS_MAX} characters")
                reader.take(line)
                if number % LINES_AT_ONCE == 0:
                    pause()
        for index in range(BUCKETS_COUNT):
            reader.sort(index)
            pause()
        if before != signature_of(path):
            raise BrokenList("it changed while it was read")
        return Found(reader.addresses(), before)
    except UnicodeDecodeError:
        raise BrokenList("it is not UTF-8 text") from None
    except OSError as error:
        raise BrokenList(f"it cannot be read ({error.strerror})") from error


class RecipientFile:
    """One file. `known` is None until it was read for the first time; `problem` is empty while the list is that of the file."""

    def __init__(self, name: str, path: Path, *, is_case_sensitive: bool) -> None:
        self.path: Final = path
        self.is_case_sensitive: Final = is_case_sensitive
        self.known: Addresses | None = None
        self.problem = ""
        self._name = name
        self._tried: Signature | None = None  # the state of the file that was read, or found broken, last
        self._seen: Signature | None = None  # that at the last look
        self._is_looked_at = False
        self._threads = Threads("recipients", lambda: None)

    async def look(self, *, is_asked: bool = False) -> None:
        """Read the file if it has changed and settled, or at once if `is_asked`. Never raises."""
        if self._is_looked_at:
            return
        self._is_looked_at = True
        try:
            signature = await self._threads.run(lambda attempt: signature_of(self.path), STAT_SECONDS)
            has_settled, self._seen = signature == self._seen, signature
            if is_asked or (has_settled and signature != self._tried):
                await self._read()
        except BrokenList as broken:
            self._keep(str(broken))
        except OSError as error:
            self._tried = self._seen = None
            self._keep(f"it cannot be read ({error.strerror or error})")
        finally:
            self._is_looked_at = False

    async def _read(self) -> None:
        began = time.monotonic()
        self._tried = self._seen
        found = await self._threads.run(self._read_in_thread, READ_SECONDS)
        self.known, self._tried, self.problem = found.addresses, found.signature, ""
        _log.info("recipients.read", source=self._name, addresses=self.known.count, seconds=round(time.monotonic() - began, 3))

    def _read_in_thread(self, attempt: Attempt) -> Found:
        def pause() -> None:
            attempt.check()
            time.sleep(PAUSE_SECONDS)

        return read(self.path, is_case_sensitive=self.is_case_sensitive, pause=pause)

    def _keep(self, reason: str) -> None:
        kept = "every recipient is undecided" if self.known is None else f"the list of {self.known.count} addresses from before holds"
        problem = f"{self.path}: {reason}; {kept}"
        if problem != self.problem:
            self.problem = problem
            _log.error("recipients.kept", source=self._name, reason=problem)


def tried(settings: Settings) -> Iterator[tuple[int, RecipientSource, int, str]]:
    """The number and settings of each source that has a file, how many addresses are in it, and why it cannot be used. For `check` and
    `doctor`: a node starts without it."""
    for number, source in enumerate(settings.recipient_sources):
        if source.file is None:
            continue
        try:
            yield number, source, read(source.file, is_case_sensitive=source.case_sensitive).addresses.count, ""
        except BrokenList as broken:
            yield number, source, 0, f"{source.file}: {broken}"


def doubts(settings: Settings) -> list[str]:
    """Files that cannot be used, for `check`."""
    without = "while no list was read before, every recipient is undecided"
    return [f"recipient_sources[{number}].file: {reason}: {without}" for number, _, _, reason in tried(settings) if reason]
