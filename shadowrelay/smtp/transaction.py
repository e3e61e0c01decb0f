"""A transaction, from MAIL to the reply to its content: its state, the parameters of MAIL and RCPT, message ids. RFC 5321 3.3.

The parameters known here, and their values, are those of the extensions that our EHLO reply offers. Values are kept as received.
"""

import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from time import time_ns

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.replies import WireError
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.fields import ENVID
from shadowrelay.protocol.xshadow import KEYWORD, EnvelopeExtras
from shadowrelay.smtp.data import ContentSink
from shadowrelay.smtp.limits import BAD_PARAMETER, UNKNOWN_PARAMETER


@dataclass(slots=True)
class Hold:
    """The additional state of a transaction between nodes: a shadow copy, or (if `trace` has our Received line) a message whose shadow the
    peer keeps. `began_awake`: the arrival of MAIL, by `Clock.awake`.

    It fails as a whole. Its lines are pipelined: those after the first failure are answered 503, one reply each, and their octets are
    read, so that replies and commands stay in step.
    """

    message_id: MessageId
    number: CopyNumber
    sink: ContentSink
    size_max: int
    extras: EnvelopeExtras | None = None
    has_failed: bool = False
    trace: bytes = b""
    began_awake: float = 0.0

    def fail(self) -> None:
        """A line of it was refused."""
        self.has_failed = True
        self.sink.discard()


@dataclass(slots=True)
class MailTransaction:
    """From MAIL to the reply to its content."""

    sender: str
    body: BodyType = BodyType.SEVEN_BIT
    smtputf8: bool = False
    ret: str | None = None
    envid: str | None = None
    recipients: list[Recipient] = field(default_factory=list)
    refused_count: int = 0
    hold: Hold | None = None

    def protocol(self, *, is_extended: bool, is_encrypted: bool) -> str:
        """For the trace header. RFC 3848, RFC 6531 4.3."""
        if not is_extended:
            return "SMTP"
        return ("UTF8SMTP" if self.smtputf8 else "ESMTP") + ("S" if is_encrypted else "")


_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
PEER_MAIL_PARAMETERS = MAIL_PARAMETERS | {KEYWORD}
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


def take_mail_parameters(transaction: MailTransaction, parameters: Mapping[str, str], known: frozenset[str]) -> int:
    """Store the parameters in the transaction. Returns the declared size, or 0.

    Raises: WireError 555 for a parameter that is not `known`, 501 for a bad value.
    """
    if parameters.keys() - known:
        raise WireError(UNKNOWN_PARAMETER)
    for key, value in parameters.items():
        if not _take(transaction, key, value):
            raise WireError(BAD_PARAMETER)
    return int(parameters.get("SIZE", 0))


def _take(transaction: MailTransaction, key: str, value: str) -> bool:
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
        return ENVID.fullmatch(value) is not None
    return True  # XSHADOW: see `PeerPart.begin_hold`


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
