"""A message as the pipeline sees it: envelope (RFC 5321 2.3.1), recipients and content."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from shadowrelay.model.ids import NO_MESSAGE, MessageId
from shadowrelay.model.values import dataclass

CONTENT_IN_MEMORY_BYTES_MAX = 1024 * 1024  # docs/design.md 9: a session never holds more than 1 MiB of content

Ordinals = frozenset[int]
"""Positions of recipients in the original RCPT order, counted from 1; they never change. docs/protocol.md 3."""

NO_ORDINALS: Ordinals = frozenset()

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""Between these lies every instant that a peer or the queue database gives. Times of this node are sums of one of them and settings of 90
days at most, three in a row, so that they stay far from the end of `datetime`, and below `NEVER` of `model.queue`."""


class BodyType(StrEnum):
    """RFC 6152, RFC 3030."""

    SEVEN_BIT = "7BIT"
    EIGHT_BIT_MIME = "8BITMIME"
    BINARY_MIME = "BINARYMIME"


@dataclass(frozen=True, slots=True)
class Recipient:
    """One forward path with its RFC 3461 parameters as received, `None` where absent."""

    address: str
    notify: str | None = None
    orcpt: str | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Everything about a message except its content.

    Shapes: `sender` is empty for the null sender; `recipients` has at least one, in the original order.
    """

    message_id: MessageId
    sender: str
    recipients: tuple[Recipient, ...]
    arrived_at: datetime
    body: BodyType = BodyType.SEVEN_BIT
    smtputf8: bool = False
    ret: str | None = None
    envid: str | None = None
    client_address: str = ""
    client_name: str = ""
    connector: str = ""
    internet_message_id: str = ""
    subject: str = ""
    date: str = ""  # of the header, as written there; empty also where an older version did not record it
    fingerprint: str = ""  # of content and next hops: `delivery.routed`; empty where an older version took the message
    resubmitted_from: MessageId = NO_MESSAGE  # the message in Safety Net of which this one was made
    original_client: str = ""  # of whom somebody else spoke: `protocol.original_client`
    filtered: str = ""  # the verdicts of its filters, while it is being accepted: not kept
    relayed_from: MessageId = NO_MESSAGE  # the message of the previous hop of which this one is a fork (`TRACK`)

    @property
    def ordinals(self) -> Ordinals:
        """Every recipient's ordinal."""
        return frozenset(range(1, len(self.recipients) + 1))


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The bytes of a message, in memory or, when larger than `CONTENT_IN_MEMORY_BYTES_MAX`, in a file.

    Shapes: exactly one of `data` and `path` is set; `sha256` has 32 bytes; line ends are CRLF, not dot-stuffed.
    The ledger owns the file once a `record_…` call that takes it has returned. `portion` is the part of the node's memory budget
    that `data` uses (`memory.Portion`); it is released with the last reference to this object. `is_checked`: as it came, this process found
    its line ends right.
    """

    size: int
    sha256: bytes
    data: bytes | None = None
    path: Path | None = None
    portion: object = None
    is_checked: bool = False

    def __eq__(self, other: object) -> bool:
        """The same bytes, whatever memory they use."""
        if not isinstance(other, Content):
            return NotImplemented
        return (self.size, self.sha256, self.data, self.path) == (other.size, other.sha256, other.data, other.path)

    def __hash__(self) -> int:
        return hash((self.size, self.sha256))


@dataclass(frozen=True, slots=True)
class ContentPlace:
    """Where the content store keeps a message: `size` bytes at `offset` of segment `segment`."""

    segment: int
    offset: int
    size: int
    sha256: bytes
