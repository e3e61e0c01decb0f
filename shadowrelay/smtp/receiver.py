"""Receives mail: the commands of RFC 5321 and of the extensions offered in EHLO, in strict order.

Decides nothing about a message: the `Acceptor` does. Replies never echo client input. The grammar of a line is in `protocol.addresses`;
the parameters of MAIL and RCPT known here, and their values, are those of the extensions that our EHLO reply offers. Values are kept
as received.
"""

import asyncio
import os
import re
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from time import time_ns

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply, WireError
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.addresses import parse_mail, parse_rcpt
from shadowrelay.protocol.fields import ENVID
from shadowrelay.protocol.xshadow import EnvelopeExtras
from shadowrelay.smtp.client_session import reason_of
from shadowrelay.smtp.connection import BoundedReading, Connection, report_every_unwritten_octet
from shadowrelay.smtp.data import ContentSink, DataFilter, beginning_of, header_facts, receive_data, trace_header
from shadowrelay.smtp.limits import (
    ARGUMENT_NEEDED,
    BAD_HELLO_NAME,
    BAD_PARAMETER,
    BARE_CR_OR_LF,
    BDAT_WANTED,
    BYE,
    CANNOT_VERIFY,
    FAILED_IN_CONTENT,
    HANDSHAKE_SECONDS,
    HELLO_FIRST,
    HELLO_NAME_OCTETS_MAX,
    HELP,
    HOLD_HAS_FAILED,
    HOLD_RECIPIENTS_MAX,
    LOOP,
    MAIL_FIRST,
    MESSAGE_TOO_BIG,
    NESTED_MAIL,
    NO_ARGUMENT_ALLOWED,
    NO_POSTMASTER,
    NO_VALID_RECIPIENTS,
    NOT_IMPLEMENTED,
    OK,
    OUT_OF_STEP,
    RCPT_FIRST,
    RECIPIENT_OK,
    RELAYING_DENIED,
    ROOM_SECONDS,
    SENDER_OK,
    START_DATA,
    START_TLS,
    TLS_IS_ACTIVE,
    TOO_MANY_RECIPIENTS,
    UNKNOWN_PARAMETER,
)

_HELLO_NAME = re.compile(rf"[A-Za-z0-9._:\[\]-]{{1,{HELLO_NAME_OCTETS_MAX}}}")  # characters allowed in a trace header

_log = structlog.get_logger()

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
class Hold:
    """The additional state of a transaction between nodes: a shadow copy, or (if `trace` has our Received line) a message whose shadow the
    peer keeps. After `has_failed`, every further line is answered 503. `began_awake`: the arrival of MAIL, by `Clock.awake`."""

    message_id: MessageId
    number: CopyNumber
    sink: ContentSink
    extras: EnvelopeExtras | None = None
    has_failed: bool = False
    trace: bytes = b""
    began_awake: float = 0.0


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


_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
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


class Receiver(Connection):
    """A session with an ordinary client. docs/operations.md "Settings" has its limits."""

    is_extended = False
    transaction: MailTransaction | None = None
    was_mail_refused = False  # then the rest of the pipelined group is refused without counting as errors
    _is_in_content = False

    # hello

    async def smtp_HELO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = False
            self.say(Reply(250, "", self.reception.name))

    async def smtp_EHLO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = True
            self.say_lines(250, "", [self.reception.name, *self.extensions()])

    def _hello_from(self, argument: str) -> bool:
        name = argument.strip()
        if _HELLO_NAME.fullmatch(name) is None:
            self.refuse(BAD_HELLO_NAME)
            return False
        self.reset()
        self.account.client_name = name
        return True

    def extensions(self) -> list[str]:
        """The lines of the reply to EHLO."""
        lines = [
            f"SIZE {self.reception.connector.max_message_size}",
            "PIPELINING",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
            "DSN",
        ]
        if self.reception.tls_context is not None and not self.account.tls:
            lines.append("STARTTLS")
        return lines

    async def smtp_NOOP(self, argument: str) -> None:
        self.say(OK)

    async def smtp_QUIT(self, argument: str) -> None:
        if argument.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
            return
        self.hang_up(BYE, "quit")

    async def smtp_VRFY(self, argument: str) -> None:
        if argument.strip():
            self.say(CANNOT_VERIFY)
        else:
            self.refuse(ARGUMENT_NEEDED)

    async def smtp_HELP(self, argument: str) -> None:
        self.say(HELP)

    async def smtp_STARTTLS(self, arg: str) -> None:
        context = self.reception.tls_context
        if context is None:
            self.refuse(NOT_IMPLEMENTED)
        elif arg.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
        elif self.account.tls:
            self.refuse(TLS_IS_ACTIVE)
        else:
            self.say(START_TLS)
            await self.flush()
            await self._protect(context)

    async def _protect(self, context: ssl.SSLContext) -> None:
        """Start TLS. Forget the session's state, and drop octets received before the handshake. RFC 3207 4.2."""
        if self.transport is None:
            raise ConnectionResetError("the connection was lost before the handshake")
        self._reader.discard()
        transport: asyncio.Transport | None = None
        failure: OSError | None = None
        try:
            transport = await self.loop.start_tls(
                self.transport, BoundedReading(self), context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are subclasses
            self.account.reason, failure = "TLS failed", error
            name, address = self.reception.connector.name, self.account.address
            _log.warning(
                "session.tls_failed", connector=name, client=address, client_name=self.account.client_name, reason=reason_of(error)
            )
        session = None if transport is None else transport.get_extra_info("ssl_object")
        if transport is None or session is None:  # without an error: we cut the connection
            # A connection lost in the handshake is reported to the TLS layer only. asyncio returns no transport then, uvloop a dead one.
            self.loop.call_soon(self.connection_lost, failure)
            self._is_ending = True
            return
        self.transport = transport
        self._reader.move_to(transport)
        self._writer._transport = transport  # type: ignore[attr-defined]
        self._replace_writer(self._writer)  # type: ignore[attr-defined]
        report_every_unwritten_octet(transport)  # now: unwritten handshake data may pause reading on this transport, not on the old one
        self.account.tls = session.version() or "TLS"
        self.account.client_name = ""
        self.protected(session)

    def protected(self, session: ssl.SSLObject) -> None:
        """TLS is active and the earlier state is forgotten. For subclasses."""
        self.reset()

    # the transaction

    def is_idle(self) -> bool:
        """Between transactions."""
        return self.transaction is None and not self._is_in_content

    def reset(self) -> None:
        """Drop the transaction."""
        self.transaction = None
        self.was_mail_refused = False

    # the envelope

    async def smtp_MAIL(self, argument: str) -> None:
        if self.reception.closed_with is not None:
            self.hang_up(self.reception.closed_with, "drain")
            return
        if not self.account.client_name:
            self.refuse(HELLO_FIRST)
            return
        if (before := self.transaction) is not None:
            if before.hold is None or not before.hold.has_failed:
                self.refuse(NESTED_MAIL)
                return
            self.reset()  # the peer abandoned the failed copy without XSHADOW COMMIT
        self.was_mail_refused = True
        command = parse_mail(argument, lenient=self.reception.connector.lenient_addresses)
        transaction = MailTransaction(command.address)
        if command.parameters:
            if not self.is_extended:
                self.refuse(UNKNOWN_PARAMETER)
                return
            size = take_mail_parameters(transaction, command.parameters, self.mail_parameters())
            if refusal := self.refusal_of_mail(transaction, command.parameters, size):
                self.refuse(refusal)
                return
        if self.reception.acceptor.pressure.is_felt and (refusal := await self.refusal_under_pressure(command.parameters)):
            self.refuse(refusal)
            return
        self.transaction = transaction
        self.was_mail_refused = False
        self.say(SENDER_OK)

    def mail_parameters(self) -> frozenset[str]:
        """The parameters of MAIL that this session may use."""
        return MAIL_PARAMETERS

    def refusal_of_mail(self, transaction: MailTransaction, parameters: Mapping[str, str], size: int) -> Reply | None:
        """Why a transaction with these parameters cannot begin; `size` 0 if not declared."""
        return MESSAGE_TOO_BIG if size > self.reception.connector.max_message_size else None

    async def refusal_under_pressure(self, parameters: Mapping[str, str]) -> Reply | None:
        """Wait as long as back pressure keeps this client waiting; then why its transaction cannot begin. docs/design.md 6.8."""
        acceptor, is_inside = self.reception.acceptor, self.is_inside()
        refusal = acceptor.refusal(is_inside=is_inside)
        if refusal is None and (seconds := acceptor.pressure.delay(is_inside=is_inside)):
            await self.hold_back(seconds)
            refusal = acceptor.refusal(is_inside=is_inside)
        return refusal

    def is_inside(self) -> bool:
        """Whether the client is one of ours, whose mail is refused last."""
        return self.reception.rights.may_relay(self.account.address)

    async def smtp_RCPT(self, argument: str) -> None:
        transaction = self.transaction
        if transaction is None:
            self.refuse(MAIL_FIRST, is_error=not self.was_mail_refused)
            return
        try:
            lenient = self.reception.connector.lenient_addresses
            command = parse_rcpt(argument, smtputf8=transaction.smtputf8, lenient=lenient)
            if command.parameters and not self.is_extended:
                raise WireError(UNKNOWN_PARAMETER)
            address = command.address if "@" in command.address else self._with_home(transaction, command.address)
            recipient = recipient_of(address, command.parameters) if command.parameters else Recipient(address)
        except WireError:
            transaction.refused_count += 1
            raise
        if refusal := self.refusal_of_recipient(transaction, recipient):
            transaction.refused_count += 1
            self.refuse(refusal)
            return
        transaction.recipients.append(recipient)
        self.say(RECIPIENT_OK)

    def _with_home(self, transaction: MailTransaction, address: str) -> str:
        """A bare `Postmaster` gets the domain where it can be delivered (RFC 5321 4.5.1); in a copy, its primary added it.

        Raises: WireError 550 if there is no such domain: if accepted, it would bounce to a sender that may be forged.
        """
        if transaction.hold is not None:
            return address
        home = self.reception.postmaster_home(may_relay=self.reception.rights.may_relay(self.account.address))
        if not home:
            raise WireError(NO_POSTMASTER)
        return f"{address}@{home}"

    def refusal_of_recipient(self, transaction: MailTransaction, recipient: Recipient) -> Reply | None:
        """Why this recipient is refused. A copy must have all original recipients, or it fails."""
        if (hold := transaction.hold) is not None:
            if hold.has_failed:
                return HOLD_HAS_FAILED
            return TOO_MANY_RECIPIENTS if len(transaction.recipients) >= HOLD_RECIPIENTS_MAX else None
        if len(transaction.recipients) >= self.reception.connector.max_recipients_per_message:
            return TOO_MANY_RECIPIENTS
        rights = self.reception.rights
        if rights.may_relay(self.account.address) or rights.accepts(recipient.address):
            return None
        return RELAYING_DENIED

    # the content

    async def smtp_DATA(self, argument: str) -> None:
        refusal = self._refusal_of_data(argument)
        if refusal is None and self.reception.budget.is_full and not await self.has_room(ROOM_SECONDS):
            refusal = INSUFFICIENT_RESOURCES
        if refusal is not None:
            self.refuse(refusal, is_error=not self.was_mail_refused)
            if self._reader.has_octets():  # content sent before our 354: it must not be executed as commands
                self.hang_up(OUT_OF_STEP, "out of step")
            return
        assert self.transaction is not None
        transaction, reception, account = self.transaction, self.reception, self.account
        self.say(START_DATA)
        if self._write():
            await self._drained()
        message_id = new_message_id()
        sink = ContentSink(f"{reception.spool}/{message_id}.part", reception.budget.portion(), reception.descriptors)
        client = (account.client_name, account.address)
        trace = trace_header(reception.name, self._protocol(transaction), message_id, client, transaction.recipients, reception.clock.now())
        data = DataFilter(sink, reception.connector.max_message_size, trace)
        self._is_in_content = True
        try:
            await receive_data(self._reader, data, partial(self.has_room, ROOM_SECONDS))
        except BaseException:
            sink.discard()
            raise
        self._is_in_content = False
        self.transaction = None
        if data.refusal is not None:
            sink.discard()
            self._refuse_content(data.refusal)
            return
        try:
            content = sink.content()
            facts = header_facts(beginning_of(content, len(trace)), reception.name)
        except OSError:
            sink.discard()
            self._refuse_content(INSUFFICIENT_RESOURCES)
            return
        if facts.hop_count > reception.connector.max_hop_count:
            sink.discard()
            self._refuse_content(LOOP)
            return
        envelope = Envelope(
            message_id=message_id,
            sender=transaction.sender,
            recipients=tuple(transaction.recipients),
            arrived_at=reception.clock.now(),
            body=transaction.body if data.is_ascii else BodyType.EIGHT_BIT_MIME,  # whether declared or not
            smtputf8=transaction.smtputf8,
            ret=transaction.ret,
            envid=transaction.envid,
            client_address=account.address,
            client_name=account.client_name,
            connector=reception.connector.name,
            internet_message_id=facts.internet_message_id,
            subject=facts.subject,
            date="" if facts.has_own_trace else facts.date,  # not detected as a duplicate: a loop is ended by the hop count, with a DSN
        )
        self._is_deciding = self._is_our_time = True  # no timeout ends a session between the final dot and its reply
        try:
            answer = reception.acceptor.accept(envelope, content)
            del content  # the answer may take its time
            reply = await answer
        except BaseException:
            sink.discard()
            raise
        finally:
            self._end_our_time()
        if reply.code < 300:
            account.messages_count += 1
            self.say(reply)
        else:
            sink.discard()
            self._refuse_content(reply)

    def _refusal_of_data(self, argument: str) -> Reply | None:
        transaction = self.transaction
        if argument.strip():
            return NO_ARGUMENT_ALLOWED
        if transaction is None:
            return MAIL_FIRST
        if transaction.hold is not None:
            return BDAT_WANTED
        if transaction.recipients:
            return None
        return NO_VALID_RECIPIENTS if transaction.refused_count else RCPT_FIRST

    def _refuse_content(self, reply: Reply) -> None:
        if reply is BARE_CR_OR_LF:
            self.account.refused_count += 1
            self.hang_up(reply, "bare CR or LF")
        else:
            self.refuse(reply, is_error=False)

    def _protocol(self, transaction: MailTransaction) -> str:
        if not self.is_extended:
            return "SMTP"
        return ("UTF8SMTP" if transaction.smtputf8 else "ESMTP") + ("S" if self.account.tls else "")

    def after_failure(self, reply: Reply) -> None:
        """A failure within content ends the session: the start of the next command is unknown."""
        if self._is_in_content:
            self.hang_up(FAILED_IN_CONTENT, "failed")
            return
        self.reset()
        self.say(reply)

    # the rest

    async def smtp_RSET(self, argument: str) -> None:
        if argument.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
            return
        self.reset()
        self.say(OK)
