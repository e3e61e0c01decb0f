"""Reads and writes message content: DATA in blocks, checks, dot-stuffing, hashing, spooling. RFC 5321 4.1.1.4, 4.5.2.

The rules here:

- DATA ends at CRLF `.` CRLF and nowhere else (RFC 5321 4.1.1.4). Content with a bare CR or LF is read to that end and
  refused, so that no other server can see a different end in it (SMTP smuggling).
- Content is stored exactly as received, after our trace header. NUL and 8-bit octets are kept: changing them would break
  signatures, and refusing them would bounce mail that every other server accepts.
- A session never holds more than `CONTENT_IN_MEMORY_BYTES_MAX` of content, and all sessions together no more than the node's
  `ContentBudget` allows; content that exceeds either is spooled to a file. No loop iterates over lines.
- Content sent to a next hop is dot-stuffed (RFC 5321 4.5.2), and otherwise byte for byte as received.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from shadowrelay.memory import Portion
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, Recipient
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, PermanentDeliveryError, Reply
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.line_ends import LineEnds, has_long_line
from shadowrelay.protocol.traces import goes_in_circles, own_traces
from shadowrelay.smtp.limits import (
    BARE_CR_OR_LF,
    BARE_IN_CHUNKS,
    CONTENT_AHEAD_OCTETS,
    DATE_CHARACTERS_MAX,
    HEADER_OCTETS_MAX,
    LINE_OCTETS_MAX,
    LINE_TOO_LONG,
    MESSAGE_ID_CHARACTERS_MAX,
    MESSAGE_TOO_BIG,
    READ_AHEAD_OCTETS,
    SUBJECT_CHARACTERS_MAX,
    UNCOUNTED_OCTETS,
    Descriptors,
)

END_OF_DATA = b"\r\n.\r\n"
FINGERPRINT_OCTETS = 16
# A field name (RFC 5322 2.2), an empty header, or the line of a mailbox file in front of one
BEGINS_HEADER = re.compile(rb"[!-9;-~]{1,998}[ \t]*:|\r\n|>?From ")
EMPTY_MESSAGE = END_OF_DATA[2:]  # the first CRLF is that of the command line

HasRoom = Callable[[], Awaitable[bool]]
"""Waits while the node has no memory for content; returns False if the wait was too long."""


class CommandReader(asyncio.StreamReader):
    """A stream reader that exposes its buffer and limits it. asyncio's own hides the buffer; aiosmtpd also uses its private members.
    The transport reads into `read_buffer`, which all sessions share, and reports it to `buffer_updated`.

    Between contents it holds at most `UNCOUNTED_OCTETS`. Within content it may hold up to `CONTENT_AHEAD_OCTETS`, if there is room
    in the memory budget, which counts them.
    """

    _buffer: bytearray
    _eof: bool
    _exception: Exception | None
    _limit: int
    _loop: asyncio.AbstractEventLoop
    _paused: bool
    _transport: asyncio.ReadTransport | None
    _waiter: "asyncio.Future[None] | None"

    def __init__(self, portion: Portion, limit: int, loop: asyncio.AbstractEventLoop, read_buffer: memoryview) -> None:
        super().__init__(limit=limit, loop=loop)
        self._portion = portion
        self._read_buffer = read_buffer
        self.is_in_content = False
        self.buffered = self._buffer  # the received octets, read-only for callers
        self.block_octets = limit  # of content that is taken at once, at least
        self.progress_at = loop.time()  # of the last octet
        self.received_octets = 0

    def _room(self) -> int:
        """How many octets may be read now."""
        held = len(self._buffer)
        if not self.is_in_content:
            return UNCOUNTED_OCTETS - held
        portion = self._portion
        return min(CONTENT_AHEAD_OCTETS, UNCOUNTED_OCTETS + portion.size + portion.room) - held

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`: no larger than there is room for, never empty."""
        return self._read_buffer[: max(1, self._room() if self.is_in_content else UNCOUNTED_OCTETS - len(self._buffer))]

    def buffer_updated(self, count: int) -> None:
        """`count` octets were read. Reading pauses at this class's limits, not at asyncio's, which is twice the stream limit."""
        self.progress_at = self._loop.time()
        self.received_octets += count
        buffer = self._buffer
        buffer.extend(self._read_buffer[:count])
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        if len(buffer) >= UNCOUNTED_OCTETS:
            if len(buffer) > UNCOUNTED_OCTETS:
                self._portion.count(len(buffer) - UNCOUNTED_OCTETS)
            if self._room() <= 0:
                self.pause()

    @property
    def is_counted(self) -> bool:
        """Whether it holds more than a session may hold uncounted."""
        return self._portion.size > 0

    def _maybe_resume_transport(self) -> None:
        """asyncio calls it whenever something was consumed."""
        super()._maybe_resume_transport()  # type: ignore[misc]
        if self._portion.size:
            self._portion.count(max(0, len(self._buffer) - UNCOUNTED_OCTETS))

    def resume(self) -> None:
        """Resume reading, if there is room."""
        if self._transport is not None:
            self._maybe_resume_transport()

    def take_line(self) -> bytes | None:
        """The next line, if it is complete and not too long."""
        if not self._buffer or self._exception is not None:
            return None
        end = self._buffer.find(b"\n", 0, READ_AHEAD_OCTETS) + 1
        if not end:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        if self._paused or self._portion.size:
            self._maybe_resume_transport()
        return line

    def take(self, count: int, dropped: int = 0) -> bytes:
        """The next `count` octets, which must be there, as must those behind them that are dropped. Raises: ConnectionError."""
        if self._exception is not None:
            raise ConnectionResetError("the connection is lost") from self._exception
        octets = bytes(memoryview(self._buffer)[:count])
        del self._buffer[: count + dropped]
        if self._paused or self._portion.size:
            self._maybe_resume_transport()
        return octets

    def more(self) -> Awaitable[object]:
        """Wait for more of a line or content that is not complete: done when more data, or EOF, has arrived. Like `_wait_for_data`,
        without a coroutine each time. Raises, when awaited: IncompleteReadError, ConnectionError if the client is gone; LimitOverrunError
        if a line is too long."""
        if self._eof or self._exception is not None:
            return self.readexactly(len(self._buffer) + 1)
        if len(self._buffer) >= self._limit:
            return self.readuntil(b"\n")
        if self._paused:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()
        self._waiter = self._loop.create_future()
        return self._waiter

    def has_octets(self, count: int = 1) -> bool:
        """Whether so many octets are already buffered."""
        return len(self._buffer) >= count

    def pause(self) -> None:
        """Stop reading until something was consumed, or `resume`."""
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    def discard(self) -> None:
        """Drop the buffered octets."""
        self._buffer.clear()

    def let_go(self) -> None:
        """The connection is closed, and nothing reads any more."""
        self._buffer.clear()
        self._portion.release()
        self._transport = self._exception = None

    def move_to(self, transport: asyncio.Transport) -> None:
        """Read from this transport from now on."""
        self._transport = transport


class ContentSink:
    """Collects content. Creates its file only when the content exceeds `CONTENT_IN_MEMORY_BYTES_MAX`, or the memory
    available.

    Shapes: `path` may be a string, because few messages need a `Path`; `portion` is empty.
    """

    def __init__(self, path: Path | str, portion: Portion, descriptors: Descriptors) -> None:
        self._path = path
        self._descriptors = descriptors
        self._portion: Portion | None = portion
        self._blocks: list[bytes] = []
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, block: bytes) -> None:
        """Append a block. Raises OSError."""
        self.size += len(block)
        self._hash.update(block)
        portion = self._portion
        if portion is not None and self.size <= CONTENT_IN_MEMORY_BYTES_MAX and portion.keep(len(block)):
            self._blocks.append(block)
            return
        if self._file is None:
            self._file = open(self._path, "xb", opener=self._private)  # noqa: SIM115 - closed by content() or discard()
            self._file.writelines(self._blocks)
            self._forget_blocks()
        # Written by the event loop itself: 64 KiB into the page cache take 20 microseconds, two thread switches take more.
        self._file.write(block)

    def content(self, *, is_checked: bool = False) -> Content:
        """The whole content; the sink is finished. Not synced: the ledger does that. `is_checked`: see `Content`. Raises OSError."""
        if self._file is None:
            content = Content(self.size, self._hash.digest(), b"".join(self._blocks), portion=self._portion, is_checked=is_checked)
            self._portion = None  # the content owns it now
            self._blocks.clear()
            return content
        self._file.close()
        return Content(self.size, self._hash.digest(), path=Path(self._path), is_checked=is_checked)

    def discard(self) -> None:
        """Drop everything, including the file unless it was moved. May be called at any time, and twice."""
        self._forget_blocks()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a flush that fails does not matter here
                self._file.close()
            Path(self._path).unlink(missing_ok=True)

    def _private(self, path: str, flags: int) -> int:
        number = os.open(path, flags, 0o600)
        if self._descriptors.refuses_file(number):
            os.close(number)
            os.unlink(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return number

    def _forget_blocks(self) -> None:
        self._blocks.clear()
        if self._portion is not None:
            self._portion.release()
            self._portion = None


class RelayedSink(ContentSink):
    """Collects what a peer relays, behind our `trace` header. `received_size` and `received_sha256` are of what the peer sent."""

    def __init__(self, path: Path | str, portion: Portion, descriptors: Descriptors, trace: bytes) -> None:
        super().__init__(path, portion, descriptors)
        self._trace = trace
        self._received = hashlib.sha256()
        self.received_size = 0

    def write(self, block: bytes) -> None:
        """See `ContentSink.write`."""
        self._received.update(block)
        self.received_size += len(block)
        super().write(self._trace + block)
        self._trace = b""

    def content(self, *, is_checked: bool = False) -> Content:
        """See `ContentSink.content`."""
        if self._trace:
            self.write(b"")  # nothing came
        return super().content(is_checked=is_checked)

    @property
    def received_sha256(self) -> bytes:
        return self._received.digest()


_TRACE_FIELDS = re.compile(rb"(?:(?:Received|Return-Path|Delivered-To|X-Original-To):[^\n]*\n(?:[ \t][^\n]*\n)*)*", re.IGNORECASE)


@dataclass(slots=True)
class ContentFingerprint:
    """A hash of what follows the trace fields at the beginning of a content: the same for a message that is sent again, by whatever way."""

    _hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)  # of 4 KiB in half the time of blake2b, where the processor knows it
    _head: bytes | None = b""  # up to the first line that is known to follow them

    def update(self, block: bytes) -> None:
        """The next block, split anywhere."""
        if self._head is None:
            self._hash.update(block)
            return
        self._head += block
        found = _TRACE_FIELDS.match(self._head)
        assert found is not None
        following = self._head.find(b"\n", found.end())
        if following >= 0 or len(self._head) > HEADER_OCTETS_MAX:
            self._hash.update(self._head[found.end() :])
            self._head = None

    def digest(self) -> str:
        """In hexadecimal digits."""
        if self._head:
            self._hash.update(self._head)
            self._head = None
        return self._hash.hexdigest()[: 2 * FINGERPRINT_OCTETS]


class DataFilter:
    """Checks the octets of DATA and writes them, without stuffing, to the sink, after our `trace` header. Takes blocks split anywhere.
    What comes by BDAT is not stuffed (`is_stuffed`), and ends with `end`; binary content (`is_binary`) is no text in lines.

    Content that does not begin with a header field is a body: an empty line separates it from our trace header, or it would vanish in it.
    """

    def __init__(
        self,
        sink: ContentSink,
        size_max: int,
        trace: bytes = b"",
        *,
        takes_long_lines: bool = False,
        is_stuffed: bool = True,
        is_binary: bool = False,
    ) -> None:
        self._is_stuffed, self._is_binary = is_stuffed, is_binary
        self._sink = sink
        self._unwritten = trace
        self._size_max = size_max
        self._size = 0
        self._takes_long_lines = takes_long_lines
        self._begun_line = b""  # octets after the last CRLF
        self._is_inside_line = False  # the line in `_begun_line` began before it
        self._line_ends = LineEnds()
        self._refusal: Reply | None = None
        self.is_ascii = True
        self.fingerprint = ContentFingerprint()

    def take(self, block: bytes) -> None:
        """The next block, still dot-stuffed if it comes by DATA. Never raises."""
        if self._is_binary:
            self._take_binary(block)
            return
        self._line_ends.take(block)
        if self._refusal is not None:
            return
        text = self._begun_line + block if self._begun_line else block
        lines_end = text.rfind(b"\r\n") + 2
        if lines_end == 1:  # no CRLF at all
            lines_end = 0
        if lines_end == len(text):
            self._begun_line = b""
        else:
            self._begun_line, text = text[lines_end:], text[:lines_end]
        if self._takes_long_lines:
            if len(self._begun_line) > LINE_OCTETS_MAX:
                end = len(self._begun_line) - self._begun_line.endswith(b"\r")
                text, self._begun_line = text + self._begun_line[:end], self._begun_line[end:]
        elif len(self._begun_line) > LINE_OCTETS_MAX or has_long_line(text, LINE_OCTETS_MAX):
            self.refuse(LINE_TOO_LONG)
            return
        if not text and block:
            return
        if self._is_stuffed:
            if text.startswith(b".") and not self._is_inside_line:  # the dots of dot-stuffing. RFC 5321 4.5.2
                text = text[1:]
            self._is_inside_line = bool(text) and not text.endswith(b"\r\n")
            if b"\r\n." in text:
                text = text.replace(b"\r\n.", b"\r\n")
        self._keep(text)

    def _take_binary(self, block: bytes) -> None:
        if self._refusal is not None:
            return
        text = self._begun_line + block
        if self._unwritten and b"\n" not in text and len(text) <= LINE_OCTETS_MAX:  # whether it is a field shows in the first line
            self._begun_line = text
            return
        self._begun_line = b""
        self._keep(text)

    def end(self) -> None:
        """Nothing more comes by BDAT: write what is held, a last line without an end."""
        text, self._begun_line = self._begun_line, b""
        if self._refusal is None:
            self._keep(text)

    def _keep(self, text: bytes) -> None:
        self._size += len(text)
        if self._size > self._size_max:
            self.refuse(MESSAGE_TOO_BIG)
            return
        self.is_ascii = self.is_ascii and text.isascii()
        self.fingerprint.update(text)
        if self._unwritten and text and BEGINS_HEADER.match(text) is None:
            self._unwritten += b"\r\n"
        try:
            self._sink.write(self._unwritten + text)
            self._unwritten = b""
        except OSError:
            self.refuse(INSUFFICIENT_RESOURCES)

    def refuse(self, reply: Reply) -> None:
        """Keep nothing; the rest of the content is only checked."""
        self._refusal = reply
        self._sink.discard()

    @property
    def refusal(self) -> Reply | None:
        """Why the content is refused, once its end was read."""
        ends = self._line_ends  # `are_right`, without the call: for every message
        if not (ends.has_bare or ends.ends_with_cr):
            return self._refusal
        return BARE_CR_OR_LF if self._is_stuffed else BARE_IN_CHUNKS

    @property
    def refusal_so_far(self) -> Reply | None:
        """Why a chunk is refused, whatever comes behind it."""
        return BARE_IN_CHUNKS if self._line_ends.has_bare else self._refusal


async def _always() -> bool:
    return True


async def receive_data(reader: CommandReader, data: DataFilter, has_room: HasRoom = _always) -> None:
    """Read DATA to its real end. Content for which there is no room is refused, but read to its end.

    Raises: IncompleteReadError, ConnectionError.
    """
    buffer = reader.buffered
    reader.is_in_content = True
    try:
        while len(buffer) < len(EMPTY_MESSAGE) and EMPTY_MESSAGE.startswith(buffer):
            await reader.more()
        if buffer.startswith(EMPTY_MESSAGE):
            data.take(reader.take(0, len(EMPTY_MESSAGE)))
            return
        searched = 0
        while (end := buffer.find(END_OF_DATA, searched)) < 0:
            searched = max(0, len(buffer) - len(END_OF_DATA) + 1)  # the end may have begun
            if len(buffer) < reader.block_octets:
                await reader.more()
                continue
            data.take(reader.take(searched))
            searched = 0
            if data.refusal is None and not await has_room():
                data.refuse(INSUFFICIENT_RESOURCES)
        data.take(reader.take(end + 2, len(END_OF_DATA) - 2))
    finally:
        reader.is_in_content = False


async def receive_octets(reader: CommandReader, count: int, sink: ContentSink | None, has_room: HasRoom = _always) -> bool:
    """Read `count` octets; False if there was no room for them. Raises: IncompleteReadError, ConnectionError."""
    is_kept = True
    buffer = reader.buffered
    reader.is_in_content = True
    try:
        while count:
            while len(buffer) < min(count, reader.block_octets):
                await reader.more()
            block = reader.take(min(count, len(buffer)))
            count -= len(block)
            if sink is None or not is_kept:
                continue
            try:
                sink.write(block)
            except OSError:
                is_kept = False
            if count and not (is_kept and await has_room()):
                is_kept = False
            if not is_kept:
                sink.discard()
        return is_kept
    finally:
        reader.is_in_content = False


async def receive_chunk(reader: CommandReader, count: int, data: DataFilter | None, has_room: HasRoom = _always) -> None:
    """Read `count` octets; without `data`, and after a refusal, only to drop them. Raises: IncompleteReadError, ConnectionError."""
    buffer = reader.buffered
    reader.is_in_content = True
    try:
        while count:
            while len(buffer) < min(count, reader.block_octets):
                await reader.more()
            block = reader.take(min(count, len(buffer)))
            count -= len(block)
            if data is None or data.refusal_so_far is not None:
                continue
            data.take(block)
            if count and data.refusal_so_far is None and not await has_room():
                data.refuse(INSUFFICIENT_RESOURCES)
    finally:
        reader.is_in_content = False


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """Header fields needed later: raw texts, unfolded and bounded. `has_own_trace`: the message has passed this node before;
    `is_in_circles`: too often in the same way."""

    internet_message_id: str
    subject: str
    date: str
    hop_count: int
    has_own_trace: bool = False
    is_in_circles: bool = False


def beginning_of(content: Content, start: int) -> bytes:
    """HEADER_OCTETS_MAX of the content from `start`, or less if it is shorter. Read again instead of kept by the session, because
    memory is short when content is in a file. Raises: OSError.
    """
    if content.data is not None:
        return content.data[start : start + HEADER_OCTETS_MAX]
    assert content.path is not None
    with content.path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), HEADER_OCTETS_MAX, start)


def header_facts(beginning: bytes, own_name: str = "", trace: bytes = b"") -> HeaderFacts:
    """`beginning` must reach at least to the end of the header, or have HEADER_OCTETS_MAX; `own_name` is that in our trace headers, and
    `trace` the one of this arrival."""
    end = 0 if beginning.startswith(b"\r\n") else beginning.find(b"\r\n\r\n", 0, HEADER_OCTETS_MAX)
    header = b"\r\n" + (beginning[:end] if end >= 0 else beginning[:HEADER_OCTETS_MAX])
    lower = header.lower()
    has_own_trace = bool(own_name) and bool(own_traces(lower, own_name))
    return HeaderFacts(
        _field(header, lower, b"\r\nmessage-id:", MESSAGE_ID_CHARACTERS_MAX),
        _field(header, lower, b"\r\nsubject:", SUBJECT_CHARACTERS_MAX),
        _field(header, lower, b"\r\ndate:", DATE_CHARACTERS_MAX),
        lower.count(b"\r\nreceived:"),
        has_own_trace,
        has_own_trace and goes_in_circles(trace.lower() + lower[2:], own_name),
    )


def has_text_header(beginning: bytes) -> bool:
    """Whether the header, as far as it is in these octets, is text in lines: also that of binary content has to be. RFC 3030 3"""
    end = 0 if beginning.startswith(b"\r\n") else beginning.find(b"\r\n\r\n")
    line_ends = LineEnds()
    line_ends.take(beginning[: end + 2] if end >= 0 else beginning)
    return line_ends.are_right and b"\0" not in beginning[: max(end, 0)]


def _field(header: bytes, lower: bytes, name: bytes, characters_max: int) -> str:
    start = lower.find(name)
    if start < 0:
        return ""
    start += len(name)
    end = header.find(b"\r\n", start)
    while end >= 0 and header[end + 2 : end + 3] in (b" ", b"\t") and end - start < 4 * characters_max:
        end = header.find(b"\r\n", end + 2)
    text = header[start:end] if end >= 0 else header[start:]
    value = text[: 4 * characters_max].replace(b"\r\n", b"").strip().decode("utf-8", "replace")[:characters_max]
    return value if value.isprintable() else printable(value)


_NO_HOST_NAME = re.compile(r"[^A-Za-z0-9._:\[\]-]")


def trace_header(server: str, protocol: str, message_id: str, client: tuple[str, str], recipients: list[Recipient], at: datetime) -> bytes:
    """Our `Received:` line. `for` only if it reveals no other recipient. RFC 5321 4.4, RFC 6531 4.3.

    Shapes: `client` is its HELO name (`_` replaces what no host name has) and its address; `protocol` as in RFC 3848 or RFC 6531.
    """
    name, address = _NO_HOST_NAME.sub("_", client[0]), client[1]
    literal = f"IPv6:{address}" if ":" in address else address
    whom = f"\r\n\tfor <{recipients[0].address}>" if len(recipients) == 1 else ""
    return (
        f"Received: from {name} ([{literal}])\r\n\tby {server} with {protocol} id {message_id}{whom};\r\n\t{_date(int(at.timestamp()))}\r\n"
    ).encode()


def protocol_name(*, is_extended: bool, smtputf8: bool, is_encrypted: bool) -> str:
    """The protocol in a trace header."""
    if not is_extended:
        return "SMTP"
    return ("UTF8SMTP" if smtputf8 else "ESMTP") + ("S" if is_encrypted else "")


@lru_cache(16)
def _date(second: int) -> str:
    return format_datetime(datetime.fromtimestamp(second, UTC))


BARE_LINE_END = Reply(554, "5.6.0", "The content has a CR or LF that is not a line end")


def check_line_ends(data: bytes, server: str) -> None:
    """Of a whole content. Raises PermanentDeliveryError for a bare CR or LF."""
    line_ends = LineEnds()
    line_ends.take(data)
    if not line_ends.are_right:  # a next hop might take it for the end of the message (smuggling): never pass it on
        raise PermanentDeliveryError(BARE_LINE_END, server)


def whole_chunk(data: bytes, *, is_binary: bool) -> bytes:
    """The whole content, as one chunk for BDAT. RFC 3030 2"""
    if not is_binary and not data.endswith(b"\r\n"):
        data += b"\r\n"
    return b"BDAT %d LAST\r\n" % len(data) + data


def stuffed_with_end(data: bytes) -> bytes:
    """The whole content, whose line ends are right, stuffed, and the final dot."""
    end = b".\r\n" if not data or data.endswith(b"\r\n") else b"\r\n.\r\n"
    if b"\n." in data:
        data = data.replace(b"\r\n.", b"\r\n..")
    return b"." + data + end if data.startswith(b".") else data + end


class DotStuffer:
    """The same for content in blocks, split anywhere. One instance per message. `is_checked`: their line ends are known to be right."""

    def __init__(self, server: str, *, is_checked: bool = False) -> None:
        self._server = server
        self._line_ends = None if is_checked else LineEnds()
        self._held = b"\r\n"  # stands for the line end before the first line; not sent
        self._is_first = True

    def feed(self, block: bytes) -> bytes:
        """The octets that can be sent now; a line end at the very end is held until more follows."""
        if self._line_ends is not None:
            self._line_ends.take(block)
            if self._line_ends.has_bare:
                raise PermanentDeliveryError(BARE_LINE_END, self._server)
        data = self._held + block
        held = 2 if data.endswith(b"\r\n") else 1 if data.endswith(b"\r") else 0
        if b"\n." in data:
            data = data.replace(b"\r\n.", b"\r\n..")
        self._held = data[len(data) - held :]
        start = 2 if self._is_first and len(data) > held else 0
        if len(data) > held:
            self._is_first = False
        return data[start : len(data) - held]

    def end(self) -> bytes:
        """A line end if the last line has none, and the final dot."""
        if self._held == b"\r":
            raise PermanentDeliveryError(BARE_LINE_END, self._server)
        return b".\r\n" if self._is_first else self._held + b".\r\n" if self._held else b"\r\n.\r\n"
