"""What goes to a next hop: a message for some of its recipients, and what its content needs of the server. RFC 6152, RFC 6531.

Content is judged by its octets, not by what a client declared. A file is read only if its declaration needs what a server does not offer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import FileIO
from math import inf
from typing import NamedTuple

from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.values import dataclass

COMMAND_SECONDS = 300.0  # MAIL and RCPT. RFC 5321 4.5.3.2.2, 4.5.3.2.3
DATA_SECONDS = 120.0  # RFC 5321 4.5.3.2.4
BLOCK_SECONDS = 180.0  # RFC 5321 4.5.3.2.5
DOT_SECONDS = 600.0  # RFC 5321 4.5.3.2.6; a shorter time causes duplicates
BLOCK_OCTETS = 256 * 1024


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
    handling: Callable[[], AbstractContextManager[None]] = nullcontext  # see `ports.Ledger.handling`
    may_send_8bit: bool = False  # also to a server that does not offer 8BITMIME

    @property
    def size(self) -> int:
        """Octets for SIZE: no stuffing, no final dot. RFC 1870 5."""
        return len(self.prefix) + self.content.size


class Needs(NamedTuple):
    """What content needs of a next hop: 8BITMIME, SMTPUTF8."""

    is_8bit: bool
    has_utf8_header: bool


NEEDS_NOTHING = Needs(is_8bit=False, has_utf8_header=False)


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
