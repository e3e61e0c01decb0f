"""State of a session: what a connector's sessions share, its account, a transaction, and the parameters of MAIL and RCPT. RFC 5321 4.1.1.

The grammar of a line is in `protocol.addresses`. The parameters known here, and their values, are those of the extensions that our EHLO
reply offers. Values are kept as received.
"""

import asyncio
import os
import re
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
from shadowrelay.model.replies import Reply, WireError
from shadowrelay.ports import Acceptor, Clock, PeerDesk
from shadowrelay.protocol.xshadow import EnvelopeExtras
from shadowrelay.settings.values import Peer, ReceiveConnector, Route
from shadowrelay.smtp.data import ContentSink
from shadowrelay.smtp.limits import (
    BAD_PARAMETER,
    CONTENT_AHEAD_OCTETS,
    UNKNOWN_PARAMETER,
    Descriptors,
    Rights,
    SessionCount,
    postmaster_homes,
)

IDS_DRAWN_AT_ONCE = 64  # a system call per id, which also releases the interpreter's lock, is too slow

_drawn: deque[str] = deque()  # hexadecimal digits, 32 per id; deque operations are atomic
os.register_at_fork(after_in_child=_drawn.clear)  # two processes must not use the same digits


def new_message_id() -> MessageId:
    """A network message id: a UUID of version 7 (RFC 9562 5.7). Its random part makes it unique in the boundary; the time in
    milliseconds before it places ids of the same time together in the database's index."""
    try:
        digits = _drawn.popleft()
    except IndexError:
        fresh = os.urandom(16 * IDS_DRAWN_AT_ONCE).hex()
        _drawn.extend([fresh[start : start + 32] for start in range(32, len(fresh), 32)])
        digits = fresh[:32]
    at = f"{time_ns() // 1_000_000:012x}"
    variant = "89ab"[int(digits[16], 16) & 3]
    return MessageId(f"{at[:8]}-{at[8:]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}")


@dataclass(slots=True)
class Reception:
    """Objects shared by the sessions of one receive connector.

    Shapes: `spool_directory` exists; files in it that no ledger owns are left over from a crash and may be deleted at
    start. `is_advertised` False (`shadow_redundancy_enabled = false`) hides the keyword; peers may still use the verbs,
    because copies that they hold must be discarded.
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
    closed_with: Reply | None = None  # the refusal of all mail; peers may still fetch discard notifications
    new_message_id: Callable[[], MessageId] = new_message_id
    routes: Sequence[Route] = ()
    running: set["asyncio.Task[None]"] = field(default_factory=set)  # the sessions' command loops, also of closed connections
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(CONTENT_AHEAD_OCTETS)))
    """Read buffer shared by the transports of all sessions: its data is consumed before another read can happen."""
    rights: Rights = field(init=False)
    _homes: tuple[str, str] = field(init=False)
    count: SessionCount = field(init=False)

    def __post_init__(self) -> None:
        self.count = SessionCount()
        self.adopt(self.connector, self.routes)

    def adopt(self, connector: ReceiveConnector, routes: Sequence[Route]) -> None:
        """Apply changed settings, from the next command of each session on."""
        self.connector = connector
        self.routes = routes
        self.rights = Rights(connector)
        self._homes = postmaster_homes(self.rights, connector, self.name, routes)

    def postmaster_home(self, *, may_relay: bool) -> str:
        """The domain for a bare `Postmaster`, empty if there is none."""
        return self._homes[may_relay]


@dataclass(slots=True)
class Hold:
    """The part of a transaction that only a shadow copy has. After `has_failed`, every further line is answered 503."""

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
    """The fields of a session's line in the operator log."""

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


_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_ENVID = re.compile(r"[!-<>-~]{1,100}")  # RFC 3461 4.4
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


def take_mail_parameters(transaction: Transaction, parameters: Mapping[str, str], known: frozenset[str]) -> int:
    """Store the parameters in the transaction. Returns the declared size, or 0.

    Raises: WireError 555 for a parameter that is not `known`, 501 for a bad value.
    """
    if parameters.keys() - known:
        raise WireError(UNKNOWN_PARAMETER)
    for key, value in parameters.items():
        if not _take(transaction, key, value):
            raise WireError(BAD_PARAMETER)
    return int(parameters.get("SIZE", 0))


def _take(transaction: Transaction, key: str, value: str) -> bool:
    if key == "SIZE":
        return _SIZE.fullmatch(value) is not None
    if key == "BODY":
        body = _BODIES.get(value.upper())
        transaction.body = body or BodyType.SEVEN_BIT
        return body is not None
    if key == "SMTPUTF8":
        transaction.smtputf8 = True
        return not value
    if key == "RET":
        transaction.ret = value
        return value.upper() in ("FULL", "HDRS")
    if key == "ENVID":
        transaction.envid = value
        return _ENVID.fullmatch(value) is not None
    return True  # a subclass's own parameter: it parses the value itself


def recipient_of(address: str, parameters: Mapping[str, str]) -> Recipient:
    """A recipient with its parameters. Raises: WireError 555 for an unknown parameter, 501 for a bad value."""
    if parameters.keys() - _RCPT_PARAMETERS:
        raise WireError(UNKNOWN_PARAMETER)
    notify, orcpt = parameters.get("NOTIFY"), parameters.get("ORCPT")
    if notify is not None and _NOTIFY.fullmatch(notify) is None:
        raise WireError(BAD_PARAMETER)
    return Recipient(address, notify, None if orcpt is None else original_recipient(orcpt))


def original_recipient(orcpt: str) -> str:
    """ORCPT as passed on: unchanged, except that a UTF-8 address in UTF-8 (RFC 6533, utf-8-addr-unitext) is converted to its
    ASCII form (utf-8-addr-xtext), which means the same and passes every server. Raises: WireError 501."""
    if _UTF8_ORCPT.match(orcpt):
        orcpt = "".join(character if character.isascii() else f"\\x{{{ord(character):X}}}" for character in orcpt)
        if len(orcpt) > _ORCPT_OCTETS_MAX or _UTF8_ADDRESS.fullmatch(orcpt, len("utf-8;")) is None:
            raise WireError(BAD_PARAMETER)
    if _ORCPT.fullmatch(orcpt) is None:
        raise WireError(BAD_PARAMETER)
    return orcpt
