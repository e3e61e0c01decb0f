"""What a session is: what all sessions of a receive connector share, one transaction, and the account of a session."""

import asyncio
import os
import ssl
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import BoundaryName, MessageId, ServerName
from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.settings import Peer, ReceiveConnector, Route
from shadowrelay.ports import Acceptor, Clock, PeerDesk
from shadowrelay.smtp.data import ContentSink
from shadowrelay.smtp.limits import CONTENT_AHEAD_OCTETS, Descriptors, SessionCount
from shadowrelay.smtp.rights import Rights, postmaster_homes
from shadowrelay.wire.xshadow import EnvelopeExtras

IDS_DRAWN_AT_ONCE = 64  # a system call for each, which also gives up the interpreter's lock, is dear

_drawn: deque[str] = deque()  # hexadecimal digits, 32 an id; deque's own operations are atomic
os.register_at_fork(after_in_child=_drawn.clear)  # two processes must not draw the same ones


def new_message_id() -> MessageId:
    """A network message id: a UUID of version 7 (RFC 9562 5.7), random, because it must be the only one in the boundary,
    behind the time in milliseconds: ids that come together lie together in the database's index."""
    try:
        digits = _drawn.popleft()
    except IndexError:
        fresh = os.urandom(16 * IDS_DRAWN_AT_ONCE).hex()
        _drawn.extend(fresh[start : start + 32] for start in range(32, len(fresh), 32))
        digits = fresh[:32]
    at = f"{time_ns() // 1_000_000:012x}"
    variant = "89ab"[int(digits[16], 16) & 3]
    return MessageId(f"{at[:8]}-{at[8:]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}")


@dataclass(slots=True)
class Reception:
    """What the sessions of one receive connector share.

    Shapes: `spool_directory` exists; files in it that no ledger took are left over from a crash and may be deleted at
    start. `is_advertised` False (`shadow_redundancy_enabled = false`) hides the keyword; peers may still use the verbs,
    since what they hold has to be discarded.
    """

    name: ServerName
    boundary: BoundaryName
    connector: ReceiveConnector
    peers: Mapping[ServerName, Peer]
    acceptor: Acceptor
    desk: PeerDesk
    clock: Clock
    spool_directory: Path
    budget: ContentBudget = field(default_factory=ContentBudget)
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(sys.maxsize))
    tls_context: ssl.SSLContext | None = None
    is_advertised: bool = True
    is_draining: bool = False  # no mail is taken any more; peers may still ask what is done
    new_message_id: Callable[[], MessageId] = new_message_id
    routes: Sequence[Route] = ()
    running: set["asyncio.Task[None]"] = field(default_factory=set)  # the sessions' command loops, also of lost connections
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(CONTENT_AHEAD_OCTETS)))
    """Where the transports of all sessions read into, one after the other: what is there is taken before anything else runs."""
    rights: Rights = field(init=False)
    _homes: tuple[str, str] = field(init=False)
    count: SessionCount = field(init=False)

    def __post_init__(self) -> None:
        self.count = SessionCount()
        self.adopt(self.connector, self.routes)

    def adopt(self, connector: ReceiveConnector, routes: Sequence[Route]) -> None:
        """Follow changed settings, from the next command of each session on."""
        self.connector = connector
        self.routes = routes
        self.rights = Rights(connector)
        self._homes = postmaster_homes(self.rights, connector, self.name, routes)

    def postmaster_home(self, *, may_relay: bool) -> str:
        """The domain of a bare `Postmaster`, empty where it has none."""
        return self._homes[may_relay]


@dataclass(slots=True)
class Hold:
    """The part of a transaction that only a shadow copy has. Once `has_failed`, every further line is answered 503."""

    message_id: MessageId
    number: CopyNumber
    sink: ContentSink
    extras: EnvelopeExtras | None = None
    has_failed: bool = False


@dataclass(slots=True)
class Transaction:
    """From MAIL to the reply to its content."""

    sender: str
    body: BodyType = BodyType.SEVEN_BIT
    smtputf8: bool = False
    ret: str | None = None
    envid: str | None = None
    recipients: list[Recipient] = field(default_factory=list)
    refused_count: int = 0
    hold: Hold | None = None


@dataclass(slots=True)
class Account:
    """What the line that a session leaves in the operator log says."""

    address: str
    port: int
    began_at: float  # the loop's time
    client_name: str = ""
    tls: str = ""
    peer: str = ""
    messages_count: int = 0
    copies_count: int = 0
    refused_count: int = 0
    errors_count: int = 0
    reason: str = "lost"
