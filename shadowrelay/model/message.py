"""A message as the pipeline sees it: who sends it to whom, and which bytes."""

from dataclasses import field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from shadowrelay.model.ids import MessageId
from shadowrelay.model.values import dataclass

CONTENT_IN_MEMORY_BYTES_MAX = 1024 * 1024  # docs/design.md 9: a session never holds more than 1 MiB of content

Ordinals = frozenset[int]
"""Places of recipients in the original order, counted from 1; they never change."""

NO_ORDINALS: Ordinals = frozenset()


class BodyType(StrEnum):
    """RFC 6152."""

    SEVEN_BIT = "7BIT"
    EIGHT_BIT_MIME = "8BITMIME"


@dataclass(frozen=True, slots=True)
class Recipient:
    """One forward path with its RFC 3461 parameters as they came, `None` where absent."""

    address: str
    notify: str | None = None
    orcpt: str | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What travels beside the content.

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

    @property
    def ordinals(self) -> Ordinals:
        """Every recipient's ordinal."""
        return frozenset(range(1, len(self.recipients) + 1))


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a message, in memory or, when larger than `CONTENT_IN_MEMORY_BYTES_MAX`, in a file.

    Shapes: exactly one of `data` and `path` is set; `sha256` has 32 bytes; line ends are CRLF, not dot-stuffed.
    A file belongs to the ledger as soon as a `record_…` that takes it has returned. `portion` is what `data` counts in the
    node's memory budget (`memory.Portion`): it is given back when nobody holds this object any more.
    """

    size: int
    sha256: bytes
    data: bytes | None = None
    path: Path | None = None
    portion: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ContentPlace:
    """Where the content store keeps the bytes: `size` bytes at `offset` of segment `segment`."""

    segment: int
    offset: int
    size: int
    sha256: bytes
