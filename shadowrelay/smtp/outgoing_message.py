"""What goes to a next hop: a message for some of its recipients, and the form in which a server takes it. RFC 1870, 3030, 6152, 6531.

Content is judged by its octets, not by what a client declared. A file is read only if its declaration needs what a server does not offer.
Binary content goes as it is to a server that offers BINARYMIME, and to others in lines, if it has such a form (`protocol.conversion`).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from io import FileIO
from math import inf
from typing import NamedTuple

from shadowrelay.model.message import BodyType, Content, Envelope
from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.conversion import Conversion, NotConvertible, Octets, converted

COMMAND_SECONDS = 300.0  # MAIL and RCPT. RFC 5321 4.5.3.2.2, 4.5.3.2.3
DATA_SECONDS = 120.0  # RFC 5321 4.5.3.2.4
BLOCK_SECONDS = 180.0  # RFC 5321 4.5.3.2.5
DOT_SECONDS = 600.0  # RFC 5321 4.5.3.2.6; a shorter time causes duplicates
BLOCK_OCTETS = 256 * 1024

NEEDS_BINARYMIME = Reply(554, "5.6.3", "The content is binary, and the next hop does not offer BINARYMIME")  # RFC 3030 3, RFC 3463 X.6.3
MUST_NOT_BE_CHANGED = Reply(554, "5.6.2", NEEDS_BINARYMIME.text)
CONTENT_UNREADABLE = Reply(451, "4.3.0", "The stored content cannot be read")


@dataclass(frozen=True, slots=True)
class Limits:
    """Units: seconds for each awaited reply. Shorter values are for tests."""

    command: float = COMMAND_SECONDS
    data: float = DATA_SECONDS
    block: float = BLOCK_SECONDS
    dot: float = DOT_SECONDS

    def within(self, seconds: float) -> "Limits":
        """None longer than `seconds`."""
        return Limits(*(min(each, seconds) for each in (self.command, self.data, self.block, self.dot)))


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The message to deliver. `ordinals` ascending, not empty; `prefix` whole header lines or empty."""

    envelope: Envelope
    ordinals: tuple[int, ...]
    content: Content
    prefix: bytes
    may_end_data: Callable[[], bool]
    limits: Limits = Limits()
    reply_seconds: Callable[[], float] = lambda: inf
    handling: Callable[[], AbstractContextManager[None]] = nullcontext  # see `store.ledger.Ledger.handling`
    may_send_8bit: bool = False  # also to a server that does not offer 8BITMIME
    may_send_chunks: bool = True  # to a server that offers CHUNKING


class Needs(NamedTuple):
    """What content needs of a next hop: 8BITMIME, SMTPUTF8, BINARYMIME."""

    is_8bit: bool
    has_utf8_header: bool
    is_binary: bool = False


NEEDS_NOTHING = Needs(is_8bit=False, has_utf8_header=False)


@dataclass(frozen=True, slots=True)
class Form:
    """How the content goes out: as it is, or by a conversion. `size`: octets for SIZE, without stuffing and final dot. RFC 1870 5
    `is_checked`: the line ends of all that goes out are known to be right."""

    needs: Needs
    size: int
    data: bytes | None = None
    conversion: Conversion | None = None
    is_checked: bool = False


async def form_for(work: OutgoingMessage, offered: Mapping[str, str], server: str) -> Form:
    """The form for a server that offers these extensions. Raises: PermanentDeliveryError if a binary message has none;
    TransientDeliveryError if the file cannot be read."""
    envelope, content = work.envelope, work.content
    size = len(work.prefix) + content.size
    if envelope.body is BodyType.BINARY_MIME:
        if work.may_send_chunks and "chunking" in offered and "binarymime" in offered:
            return Form(Needs(is_8bit=True, has_utf8_header=envelope.smtputf8, is_binary=True), size, content.data)
        return await _in_lines(work, server)
    data = content.data
    is_checked = content.is_checked and not work.prefix
    if data is not None:
        if data.isascii() and work.prefix.isascii():
            return Form(NEEDS_NOTHING, size, data, is_checked=is_checked)
        header = data[: data.find(b"\r\n\r\n")]
        needs = Needs(is_8bit=True, has_utf8_header=not (header.isascii() and work.prefix.isascii()))
        return Form(needs, size, data, is_checked=is_checked)
    declared = Needs(envelope.body is BodyType.EIGHT_BIT_MIME, envelope.smtputf8)
    if (declared.is_8bit and "8bitmime" not in offered) or (declared.has_utf8_header and "smtputf8" not in offered):
        try:
            return Form(await asyncio.to_thread(needs_of_file, content, work.prefix), size, is_checked=is_checked)
        except OSError as error:
            raise TransientDeliveryError(CONTENT_UNREADABLE, server) from error
    return Form(declared, size, is_checked=is_checked)


async def _in_lines(work: OutgoingMessage, server: str) -> Form:
    try:
        return await asyncio.to_thread(_converted, work)
    except NotConvertible as error:
        reply = MUST_NOT_BE_CHANGED if error.is_prohibited else NEEDS_BINARYMIME
        raise PermanentDeliveryError(reply._replace(text=f"{reply.text}: {error}"), server) from None
    except OSError as error:
        raise TransientDeliveryError(CONTENT_UNREADABLE, server) from error


def _converted(work: OutgoingMessage) -> Form:
    content, prefix = work.content, work.prefix
    with octets_of(content) as octets:
        conversion = converted(octets)
        is_8bit, has_utf8_header, seen = False, not prefix.isascii(), b""
        for block in conversion.blocks(octets):
            if len(seen) < BLOCK_OCTETS:
                seen += block
            is_8bit = is_8bit or not block.isascii()
        header = seen[: seen.find(b"\r\n\r\n")] if b"\r\n\r\n" in seen else seen
        needs = Needs(is_8bit or has_utf8_header, has_utf8_header or not header.isascii())
        data = None if content.data is None else b"".join(conversion.blocks(octets))
    return Form(needs, len(prefix) + conversion.size, data, None if data is not None else conversion)


class FileOctets:
    """A content in a file as `conversion.Octets`. Not mapped into memory: a disk that fails must be an error, not a signal."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._number, self._size = file.fileno(), size
        self._begin, self._block = 0, b""  # read last by `find`

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice, /) -> bytes:
        start, end, _ = place.indices(self._size)
        if self._begin <= start and end <= self._begin + len(self._block):
            return self._block[start - self._begin : end - self._begin]
        blocks = []
        while start < end:
            if not (block := os.pread(self._number, end - start, start)):
                raise OSError("the file is shorter than it was")
            blocks.append(block)
            start += len(block)
        return b"".join(blocks)

    def find(self, wanted: bytes, start: int, end: int, /) -> int:
        """See `conversion.Octets`."""
        while start + len(wanted) <= end:
            if not self._begin <= start <= self._begin + len(self._block) - len(wanted):
                block = self[start : start + BLOCK_OCTETS]
                self._begin, self._block = start, block
            last = min(end - self._begin, len(self._block))
            if (found := self._block.find(wanted, start - self._begin, last)) >= 0:
                return self._begin + found
            start = self._begin + last - len(wanted) + 1
        return -1


@contextlib.contextmanager
def octets_of(content: Content) -> Iterator[Octets]:
    """For a conversion. Raises: OSError."""
    if content.data is not None:
        yield content.data
        return
    with opened(content) as file:
        yield FileOctets(file, content.size)


@dataclass(slots=True)
class Blocks:
    """What goes out of a content that is in a file, block by block. Units: `left` octets."""

    work: OutgoingMessage
    form: Form
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _next: Callable[[], bytes] = bytes

    def __enter__(self) -> "Blocks":
        """Raises: OSError."""
        content, conversion = self.work.content, self.form.conversion
        if conversion is None:
            file = self._stack.enter_context(opened(content))
            self._next = lambda: file.read(BLOCK_OCTETS)
        else:
            pieces = conversion.blocks(self._stack.enter_context(octets_of(content)))
            self._next = lambda: next(pieces, b"")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def read(self) -> bytes:
        """The next block, empty at the end. Raises: OSError."""
        return await asyncio.to_thread(self._next)


def needs_of_file(content: Content, prefix: bytes) -> Needs:
    """Reads until the answer is known. A header that does not end in the first block counts as that long. Raises: OSError."""
    with opened(content) as file:
        block = file.read(BLOCK_OCTETS)
        end = 0 if block.startswith(b"\r\n") else block.find(b"\r\n\r\n")
        has_utf8_header = not (prefix + (block if end < 0 else block[:end])).isascii()
        is_8bit = has_utf8_header
        while block and not is_8bit:
            is_8bit = not block.isascii()
            block = file.read(BLOCK_OCTETS)
    return Needs(is_8bit, has_utf8_header)


def opened(content: Content) -> FileIO:
    """Open content that is in a file. Read it by `asyncio.to_thread`, so that the loop does not wait for the disk."""
    assert content.path is not None
    return FileIO(content.path)
