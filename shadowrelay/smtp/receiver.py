"""The receiver of mail: the commands of RFC 5321 and of the extensions that EHLO names, in strict order.

Decides nothing about a message: the `Acceptor` does. A refusal says what was wrong in our words, never in the client's.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping

from shadowrelay.model.errors import WireError
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply
from shadowrelay.smtp.connection import NOT_IMPLEMENTED, Connection
from shadowrelay.smtp.data import BARE_CR_OR_LF, ContentSink, DataFilter, header_facts, receive_data, trace_header
from shadowrelay.smtp.limits import HANDSHAKE_SECONDS, HELLO_NAME_OCTETS_MAX, MESSAGE_TOO_BIG, TOO_MANY_RECIPIENTS
from shadowrelay.smtp.session import Transaction
from shadowrelay.wire.addresses import parse_mail, parse_rcpt

OK = Reply(250, "2.0.0", "OK")
SENDER_OK = Reply(250, "2.1.0", "Sender OK")
RECIPIENT_OK = Reply(250, "2.1.5", "Recipient OK")
START_DATA = Reply(354, "", "End data with <CR><LF>.<CR><LF>")
START_TLS = Reply(220, "2.0.0", "Ready to start TLS")
BYE = Reply(221, "2.0.0", "Bye")
HELP = Reply(214, "2.0.0", "See RFC 5321")
CANNOT_VERIFY = Reply(252, "2.5.0", "Cannot VRFY user, but will accept message and attempt delivery")
BAD_HELLO_NAME = Reply(501, "5.5.4", "Syntax: EHLO or HELO, and your host name")
NO_ARGUMENT_ALLOWED = Reply(501, "5.5.4", "No argument allowed")
ARGUMENT_NEEDED = Reply(501, "5.5.4", "Argument needed")
HELLO_FIRST = Reply(503, "5.5.1", "Send EHLO or HELO first")
NESTED_MAIL = Reply(503, "5.5.1", "Nested MAIL command")
MAIL_FIRST = Reply(503, "5.5.1", "Need MAIL command first")
RCPT_FIRST = Reply(503, "5.5.1", "Need RCPT command first")
NO_VALID_RECIPIENTS = Reply(554, "5.5.1", "No valid recipients")  # RFC 2920 3.1
TLS_IS_ACTIVE = Reply(503, "5.5.1", "TLS is already active")
UNKNOWN_PARAMETER = Reply(555, "5.5.4", "Parameter not recognized or not implemented")
BAD_PARAMETER = Reply(501, "5.5.4", "Bad parameter value")
RELAYING_DENIED = Reply(550, "5.7.1", "Relaying denied")
LOOP = Reply(554, "5.4.6", "Too many hops, message loops")  # RFC 3463 X.4.6
OUT_OF_STEP = Reply(421, "4.7.0", "Protocol synchronization error")  # octets where RFC 2920 allows none
FAILED_IN_CONTENT = Reply(421, "4.3.0", "Local error in processing, closing connection")

_HELLO_NAME = re.compile(rf"[A-Za-z0-9._:\[\]-]{{1,{HELLO_NAME_OCTETS_MAX}}}")  # what may stand in a trace header
_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_ENVID = re.compile(r"[!-<>-~]{1,100}")  # RFC 3461 4.4
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_BODIES = {body.value: body for body in BodyType}
_MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


class Receiver(Connection):
    """A client's session."""

    transaction: Transaction | None = None
    is_extended = False
    was_mail_refused = False  # then the rest of its pipelined group is refused too, and is no error of the client
    _is_in_content = False

    def is_idle(self) -> bool:
        """Between transactions."""
        return self.transaction is None and not self._is_in_content

    def reset(self) -> None:
        """Forget the transaction."""
        self.transaction = None
        self.was_mail_refused = False

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

    # the envelope

    async def smtp_MAIL(self, argument: str) -> None:
        if not self.account.client_name:
            self.refuse(HELLO_FIRST)
            return
        if self.transaction is not None:
            self.refuse(NESTED_MAIL)
            return
        self.was_mail_refused = True
        command = parse_mail(argument)
        if command.parameters and not self.is_extended:
            self.refuse(UNKNOWN_PARAMETER)
            return
        transaction = Transaction(command.address)
        if refusal := self._read_mail_parameters(transaction, command.parameters):
            self.refuse(refusal)
            return
        self.transaction = transaction
        self.was_mail_refused = False
        self.say(SENDER_OK)

    def _read_mail_parameters(self, transaction: Transaction, parameters: Mapping[str, str]) -> Reply | None:
        if parameters:
            if parameters.keys() - self.mail_parameters():
                return UNKNOWN_PARAMETER
            if not self._are_mail_values_good(transaction, parameters):
                return BAD_PARAMETER
        return self.refusal_of_mail(transaction, parameters, int(parameters.get("SIZE", 0)))

    def mail_parameters(self) -> frozenset[str]:
        """The parameters of MAIL that this session may use."""
        return _MAIL_PARAMETERS

    def refusal_of_mail(self, transaction: Transaction, parameters: Mapping[str, str], size: int) -> Reply | None:
        """Why this transaction cannot begin; `size` 0 where none was said."""
        if size > self.reception.connector.max_message_size:
            return MESSAGE_TOO_BIG
        return self.reception.acceptor.refusal()

    @staticmethod
    def _are_mail_values_good(transaction: Transaction, parameters: Mapping[str, str]) -> bool:
        for key, value in parameters.items():
            if key == "SIZE":
                if _SIZE.fullmatch(value) is None:
                    return False
            elif key == "BODY":
                body = _BODIES.get(value.upper())
                if body is None:
                    return False
                transaction.body = body
            elif key == "SMTPUTF8":
                if value:
                    return False
                transaction.smtputf8 = True
            elif key == "RET":
                if value.upper() not in ("FULL", "HDRS"):
                    return False
                transaction.ret = value
            elif key == "ENVID":
                if _ENVID.fullmatch(value) is None:
                    return False
                transaction.envid = value
        return True

    async def smtp_RCPT(self, argument: str) -> None:
        transaction = self.transaction
        if transaction is None:
            self.refuse(MAIL_FIRST, is_error=not self.was_mail_refused)
            return
        try:
            command = parse_rcpt(argument, smtputf8=transaction.smtputf8)
            recipient = self._recipient_of(command.address, command.parameters)
        except WireError:
            transaction.refused_count += 1
            raise
        if refusal := self.refusal_of_recipient(transaction, recipient):
            transaction.refused_count += 1
            self.refuse(refusal)
            return
        transaction.recipients.append(recipient)
        self.say(RECIPIENT_OK)

    def _recipient_of(self, address: str, parameters: Mapping[str, str]) -> Recipient:
        if not parameters:
            return Recipient(address)
        if not self.is_extended or parameters.keys() - _RCPT_PARAMETERS:
            raise WireError(UNKNOWN_PARAMETER)
        notify, orcpt = parameters.get("NOTIFY"), parameters.get("ORCPT")
        if (notify is not None and _NOTIFY.fullmatch(notify) is None) or (orcpt is not None and _ORCPT.fullmatch(orcpt) is None):
            raise WireError(BAD_PARAMETER)
        return Recipient(address, notify, orcpt)

    def refusal_of_recipient(self, transaction: Transaction, recipient: Recipient) -> Reply | None:
        """Why this recipient cannot be taken."""
        if len(transaction.recipients) >= self.reception.connector.max_recipients_per_message:
            return TOO_MANY_RECIPIENTS
        rights = self.reception.rights
        if rights.may_relay(self.account.address) or rights.accepts(recipient.address):
            return None
        return RELAYING_DENIED

    # the content

    async def smtp_DATA(self, argument: str) -> None:
        if refusal := self._refusal_of_data(argument):
            self.refuse(refusal, is_error=not self.was_mail_refused)
            if self._reader.has_octets():  # content of a client that did not wait: it must not be obeyed
                self.hang_up(OUT_OF_STEP, "out of step")
            return
        assert self.transaction is not None
        transaction = self.transaction
        self.say(START_DATA)
        await self.flush()
        await self._take_content(transaction)

    def _refusal_of_data(self, argument: str) -> Reply | None:
        if argument.strip():
            return NO_ARGUMENT_ALLOWED
        if self.transaction is None:
            return MAIL_FIRST
        return self.refusal_of_content(self.transaction)

    def refusal_of_content(self, transaction: Transaction) -> Reply | None:
        """Why DATA may not come now."""
        if transaction.recipients:
            return None
        return NO_VALID_RECIPIENTS if transaction.refused_count else RCPT_FIRST

    async def _take_content(self, transaction: Transaction) -> None:
        reception, account = self.reception, self.account
        message_id = reception.new_message_id()
        sink = ContentSink(reception.spool_directory / f"{message_id}.part")
        client = (account.client_name, account.address)
        sink.write(
            trace_header(reception.name, self._protocol(transaction), message_id, client, transaction.recipients, reception.clock.now())
        )
        data = DataFilter(sink, reception.connector.max_message_size)
        self._is_in_content = True
        try:
            await receive_data(self._reader, data)
        except BaseException:
            sink.discard()
            raise
        self._is_in_content = False
        self.transaction = None
        facts = header_facts(data.beginning)
        refusal = data.refusal or (LOOP if facts.hop_count > reception.connector.max_hop_count else None)
        if refusal is not None:
            sink.discard()
            self._refuse_content(refusal)
            return
        envelope = Envelope(
            message_id=message_id,
            sender=transaction.sender,
            recipients=tuple(transaction.recipients),
            arrived_at=reception.clock.now(),
            body=transaction.body if data.is_ascii else BodyType.EIGHT_BIT_MIME,  # said or not
            smtputf8=transaction.smtputf8,
            ret=transaction.ret,
            envid=transaction.envid,
            client_address=account.address,
            client_name=account.client_name,
            connector=reception.connector.name,
            internet_message_id=facts.internet_message_id,
            subject=facts.subject,
        )
        await self._accept(envelope, sink)

    async def _accept(self, envelope: Envelope, sink: ContentSink) -> None:
        try:
            content = sink.content()
        except OSError:
            sink.discard()
            self._refuse_content(INSUFFICIENT_RESOURCES)
            return
        reply = await self.deciding(self.reception.acceptor.accept(envelope, content))
        if reply.is_positive:
            self.account.messages_count += 1
            self.say(reply)
        else:
            sink.discard()
            self._refuse_content(reply)

    def _refuse_content(self, reply: Reply) -> None:
        if reply is BARE_CR_OR_LF:
            self.account.refused_count += 1
            self.hang_up(reply, "bare CR or LF")
        else:
            self.refuse(reply, is_error=False)

    def _protocol(self, transaction: Transaction) -> str:
        if not self.is_extended:
            return "SMTP"
        return ("UTF8SMTP" if transaction.smtputf8 else "ESMTP") + ("S" if self.account.tls else "")

    def after_failure(self, reply: Reply) -> None:
        """What is in the middle of content cannot go on: nobody knows where the next command is."""
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
        """TLS from here on; whatever was said before is forgotten, and what came too early is not obeyed. RFC 3207 4.2."""
        assert isinstance(self.transport, asyncio.Transport)
        self._reader.discard()
        try:
            transport = await self.loop.start_tls(self.transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
            self.account.reason = "TLS failed"
            # A connection lost in the handshake is told to the TLS layer alone.
            self.loop.call_soon(self.connection_lost, error)
            self._is_ending = True
            return
        assert transport is not None
        self.transport = transport
        self._reader.move_to(transport)
        self._writer._transport = transport  # type: ignore[attr-defined]
        self._replace_writer(self._writer)  # type: ignore[attr-defined]
        session = transport.get_extra_info("ssl_object")
        self.account.tls = session.version() or "TLS"
        self.account.client_name = ""
        self.protected(session)

    def protected(self, session: ssl.SSLObject) -> None:
        """TLS is active and everything before it forgotten. For subclasses."""
        self.reset()
