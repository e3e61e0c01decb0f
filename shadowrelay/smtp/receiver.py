"""Receives mail: the commands of RFC 5321, of the extensions offered in EHLO, and of peers (docs/protocol.md 5 to 10), in strict order.

Decides nothing about a message: the `Acceptor` does, and `PeerRequests` about a copy. Replies never echo client input. The grammar of a
line is in `protocol.fields`, what may come from a peer in `PeerPart`.
"""

import itertools
import re
from collections.abc import Awaitable
from functools import partial

from shadowrelay.model.client_minute import Counted
from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.numbers import decimal
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, SUPERSEDED, Reply, WireError
from shadowrelay.model.values import replace
from shadowrelay.protocol.fields import (
    BAD_PARAMETER,
    BAD_RECIPIENT,
    MAIL_PARAMETERS,
    UNKNOWN_PARAMETER,
    MailValues,
    mail_values_of,
    parse_mail,
    parse_rcpt,
    recipient_of,
)
from shadowrelay.protocol.original_client import NOBODY, XCLIENT, XFORWARD, OriginalClient, parse_attributes
from shadowrelay.protocol.xqdiscard import (
    BLOCK_OCTETS_MAX,
    DiscardQuery,
    format_answer_lines,
    format_reply_lines,
    parse_command,
    parse_question_block,
)
from shadowrelay.protocol.xshadow import KEYWORD, XshadowForm, format_position, parse_envelope, parse_form
from shadowrelay.rules import strangers
from shadowrelay.smtp.arriving_content import ArrivingContent, ContentRefused
from shadowrelay.smtp.connection import Connection, reply_line
from shadowrelay.smtp.data import ContentSink, receive_chunk, receive_data, receive_octets
from shadowrelay.smtp.fruitless_commands import SMALL_CHUNK_OCTETS, Pace, pace_of_small_chunks
from shadowrelay.smtp.limits import (
    ARGUMENT_NEEDED,
    BAD_CHUNK,
    BAD_HELLO_NAME,
    BARE_CR_OR_LF,
    BYE,
    CANNOT_VERIFY,
    CHUNKS_HAVE_BEGUN,
    ENVELOPE_OK,
    FAILED_IN_CONTENT,
    HANDSHAKES_MAX,
    HELLO_FIRST,
    HELLO_NAME_OCTETS_MAX,
    HELP,
    HOLD_HAS_FAILED,
    MAIL_FIRST,
    MESSAGE_TOO_BIG,
    NESTED_MAIL,
    NO_ARGUMENT_ALLOWED,
    NO_HOLD,
    NO_RETURN_PATH,
    NOT_IMPLEMENTED,
    OK,
    OUT_OF_STEP,
    READ_AHEAD_OCTETS,
    RECIPIENT_OK,
    ROOM_FOR_COPY_SECONDS,
    ROOM_SECONDS,
    SENDER_OK,
    SESSION_IS_OF_OTHERS,
    START_DATA,
    START_TLS,
    TLS_BUSY,
    TLS_IS_ACTIVE,
    TOO_MANY_RECIPIENTS,
    UNKNOWN_COMMAND,
)
from shadowrelay.smtp.mail_filters import FilterRefusal, Passage
from shadowrelay.smtp.mail_transaction import MailTransaction, notified
from shadowrelay.smtp.message_ids import new_message_id
from shadowrelay.smtp.own_addresses import THIS_PROCESS, XSELF, leads_to_this_machine
from shadowrelay.smtp.peer_part import PeerPart, PeerTransaction

PEER_MAIL_PARAMETERS = MAIL_PARAMETERS | {KEYWORD}
NO_VALUES = MailValues()
CHUNK = re.compile(r"[ \t]*([0-9]{1,19})([ \t]+LAST)?[ \t]*", re.IGNORECASE)  # the argument of BDAT
_copy_numbers = itertools.count(1)  # names of spool files; the directory is emptied at a start
_BLOCK = re.compile(r"STATUS BDAT ([0-9]{1,19}) *", re.IGNORECASE)
_HELLO_NAME = re.compile(rf"[A-Za-z0-9._:\[\]-]{{1,{HELLO_NAME_OCTETS_MAX}}}")


class Receiver(Connection):
    """A session with a client. docs/reference.md "Settings" has its limits."""

    is_extended = False
    transaction: MailTransaction | None = None
    was_mail_refused = False  # then the rest of the pipelined group is refused without counting as errors
    _is_in_content = False
    _forwarded: OriginalClient | None = None  # by XFORWARD, for one transaction

    # hello

    async def smtp_HELO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = False
            self.say(Reply(250, "", self.reception.name))

    async def smtp_EHLO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = True
            self.say_lines(250, "", [self.reception.name, *self._extensions()])

    def _hello_from(self, argument: str) -> bool:
        name = argument.strip()
        is_lenient = self.reception.connector.lenient_addresses and name and len(name.encode()) <= HELLO_NAME_OCTETS_MAX
        if _HELLO_NAME.fullmatch(name) is None and not (is_lenient and name == printable(name)):
            self.refuse(BAD_HELLO_NAME)
            return False
        if self.reception.closed_with is not None and name.rstrip(".").lower() not in self.reception.peers:  # a peer was greeted
            self.hang_up(self.reception.closed_with, "drain")
            return False
        self.reset()
        self.state.client_name = name
        return True

    def _extensions(self) -> list[str]:
        lines = [
            f"SIZE {self.reception.connector.max_message_size}",
            "PIPELINING",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
        ]
        connector, is_peer = self.reception.connector, self.peer.may_use_xshadow()
        if connector.chunking_enabled or is_peer:
            lines += ["CHUNKING", "BINARYMIME"] if connector.binary_mime_enabled or is_peer else ["CHUNKING"]
        # A stranger's NOTIFY is not obeyed to the letter, so the server that relays for it reports instead. RFC 3461 5.2.2
        if self.is_trusted or is_peer:
            lines.append("DSN")
        if self.reception.tls is not None and not self.state.tls:
            lines.append("STARTTLS")
        if (keyword := self.peer.keyword()) is not None:
            lines.append(keyword)
        if self.state.client_name.rstrip(".").lower() == self.reception.name:
            lines.append(f"{XSELF.upper()} {THIS_PROCESS}")
        if self._may_speak_for_others():
            lines += [f"XCLIENT {' '.join(XCLIENT)}", f"XFORWARD {' '.join(XFORWARD)}"]
        return lines

    # who speaks for another client: docs/mtas.md "Whose mail it is"

    def _may_speak_for_others(self) -> bool:
        """By the connection's address; nobody for whom a load balancer speaks."""
        return not self._has_header and self.reception.rights.may_speak_for_others(self.state.connection_address)

    def _client_in(self, argument: str, known: tuple[str, ...], before: OriginalClient) -> OriginalClient | None:
        """Whom the argument of XCLIENT or XFORWARD names; None: it was refused."""
        if not self._may_speak_for_others():
            self.refuse(UNKNOWN_COMMAND)
        elif not self.is_idle():
            self.refuse(SESSION_IS_OF_OTHERS)
        else:
            return parse_attributes(argument, known, before)
        return None

    async def smtp_XCLIENT(self, argument: str) -> None:
        """The session begins again, and is that of the client which is named. It has proved nothing that whoever is connected had."""
        if (client := self._client_in(argument, XCLIENT, self.state.named)) is None:
            return
        self.reset()
        self.state.client_name = self.state.peer = ""
        self.peer = PeerPart(self.reception, self.state)
        self._refused_at_once = self.client_named(client)
        if (refusal := self._refusal_at_greeting()) is not None:
            self.hang_up(refusal, "too many sessions" if self._refused_at_once is not None else "drain")
            return
        self.say(self.greeting)

    async def smtp_XFORWARD(self, argument: str) -> None:
        """Whose the next transaction was where it came from: a label for the tracking log and next hops."""
        if (client := self._client_in(argument, XFORWARD, self._forwarded or NOBODY)) is not None:
            self._forwarded = client
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
        context = self.reception.tls_context(self.state)
        if context is None:
            self.refuse(NOT_IMPLEMENTED)
        elif arg.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
        elif self.state.tls:
            self.refuse(TLS_IS_ACTIVE)
        elif not self._is_ours and self.reception.handshakes_count >= self._handshakes_max():
            self.refuse(TLS_BUSY)
        else:
            self.say(START_TLS)
            await self.flush()
            is_unproved = not self._is_ours
            self.reception.handshakes_count += is_unproved
            try:
                is_protected = await self._protect(context)
            finally:
                self.reception.handshakes_count -= is_unproved
            if is_protected:
                self.reset()

    def _handshakes_max(self) -> int:
        is_said_to_be_peer = self.state.client_name.rstrip(".").lower() in self.reception.peers
        return HANDSHAKES_MAX * (2 if is_said_to_be_peer else 1)

    # the transaction

    def is_idle(self) -> bool:
        """Between transactions."""
        return self.transaction is None and not self._is_in_content

    def reset(self) -> None:
        """Drop the transaction; may be called twice."""
        if (hold := self._hold()) is not None:
            hold.sink.discard()
        elif self.transaction is not None:
            if self.transaction.arriving is not None:
                self.transaction.arriving.discard()
            self.state.fruitless.abandon(len(self.transaction.recipients))
        self.transaction = self._forwarded = None
        self.was_mail_refused = False

    def _hold(self) -> PeerTransaction | None:
        return None if self.transaction is None else self.transaction.hold

    def refuse(self, reply: Reply, *, is_error: bool = True) -> None:
        """Any refusal within a copy fails it."""
        if (hold := self._hold()) is not None:
            hold.fail()
        super().refuse(reply, is_error=is_error)

    def connection_lost(self, error: Exception | None) -> None:
        """Drop an unfinished copy."""
        self.reset()
        super().connection_lost(error)

    # the envelope

    async def smtp_MAIL(self, argument: str) -> None:
        if self.reception.closed_with is not None:
            self.hang_up(self.reception.closed_with, "drain")
            return
        if not self.state.client_name:
            self.refuse(HELLO_FIRST)
            return
        if (before := self.transaction) is not None:
            if before.hold is None or not before.hold.has_failed:
                self.refuse(NESTED_MAIL)
                return
            self.reset()  # the peer abandoned the failed copy without XSHADOW COMMIT
        self.was_mail_refused = True
        # also with a peer, which took the address from a client of its own: a copy must not fail by it
        is_lenient = self.reception.connector.lenient_addresses or bool(self.state.peer)
        takes_bare = is_lenient and not self.state.peer and self.reception.may_relay(self.state)
        command = parse_mail(argument, lenient=is_lenient, takes_bare=takes_bare)
        transaction = MailTransaction(command.address, NO_VALUES, is_lenient, takes_bare)
        if command.address and "@" not in command.address:
            transaction.sender += f"@{self.reception.postmaster_home(may_relay=True) or self.reception.name}"
        if command.parameters:
            if not (self.is_extended or is_lenient):
                self.refuse(UNKNOWN_PARAMETER)
                return
            xshadow = command.parameters.get(KEYWORD)
            known = PEER_MAIL_PARAMETERS if xshadow is not None and self.peer.may_use_xshadow() else MAIL_PARAMETERS
            transaction.values = values = mail_values_of(command.parameters, known, lenient=is_lenient)
            if values.body is BodyType.BINARY_MIME and not self._takes_binary():
                raise WireError(BAD_PARAMETER)
            if xshadow is not None:
                path = f"{self.reception.spool}/{next(_copy_numbers)}.copy"
                transaction.hold = self.peer.begin_hold(xshadow, values.size, path, smtputf8=values.smtputf8)
            elif values.size > self.reception.connector.max_message_size:
                self.refuse(MESSAGE_TOO_BIG)
                return
        if transaction.hold is None and not (self.state.peer or self.reception.may_relay(self.state)):
            if leads_to_this_machine(transaction.sender):
                self.refuse(NO_RETURN_PATH)
                return
            if transaction.values.ret is not None:
                transaction.values = replace(transaction.values, ret=strangers.RET)
        # A copy is not delayed: its primary server can try another server.
        if transaction.hold is None and self.reception.acceptor.pressure.is_felt and (refusal := await self._refusal_under_pressure()):
            self.refuse(refusal)
            return
        if transaction.hold is None and self.reception.limits is not None and self._is_limited_at_mail(transaction.values.size):
            return
        self.transaction = transaction
        self.was_mail_refused = False
        self.say(SENDER_OK)

    def _takes_binary(self) -> bool:
        connector = self.reception.connector
        return (connector.binary_mime_enabled and connector.chunking_enabled) or self.peer.may_use_xshadow()

    def _is_limited_at_mail(self, size: int) -> bool:
        """Whether this client has had its share of this minute; it was told so."""
        if self._refused_later is not None and not self.state.peer:
            self.hang_up(self._refused_later, "limit")
            return True
        if self._has_tried_too_many():
            return True
        refusal = self._exceeded(Counted.OCTETS, max(size, 1)) or self.over_limit(Counted.MESSAGES)
        if refusal is not None:
            self.refuse(refusal)
        return refusal is not None

    def _exceeded(self, what: Counted, amount: int) -> Reply | None:
        if (limits := self.reception.limits) is None or self.state.peer:
            return None
        return limits.exceeded(self.state.address, what, amount, self.loop.time())

    def _has_tried_too_many(self) -> bool:
        """Whether this client tried so many wrong recipients that it is not told any more which ones are right; its session ends."""
        if (refusal := self._exceeded(Counted.REFUSED_RECIPIENTS, 1)) is None:
            return False
        self.hang_up(refusal, "limit")
        return True

    async def _refusal_under_pressure(self) -> Reply | None:
        """Wait as long as back pressure keeps this client waiting; then why its transaction cannot begin. docs/design.md 6.8."""
        acceptor = self.reception.acceptor
        # the mail of our own clients, and of peers, is refused last
        is_inside = self.is_trusted
        refusal = acceptor.refusal(is_inside=is_inside)
        if refusal is None and (seconds := acceptor.pressure.delay(is_inside=is_inside)):
            await self.hold_back(seconds)
            refusal = acceptor.refusal(is_inside=is_inside)
        return refusal

    async def smtp_RCPT(self, argument: str) -> None:
        transaction = self.transaction
        if transaction is None:
            await self.was_misplaced()
            self.refuse(MAIL_FIRST, is_error=not self.was_mail_refused)
            return
        if transaction.arriving is not None:
            self.refuse(CHUNKS_HAVE_BEGUN)
            return
        if self.reception.limits is not None and transaction.hold is None and self._has_tried_too_many():
            return
        try:
            command = parse_rcpt(
                argument, smtputf8=transaction.values.smtputf8, lenient=transaction.is_lenient, takes_bare=transaction.takes_bare
            )
            if command.parameters and not (self.is_extended or transaction.is_lenient):
                raise WireError(UNKNOWN_PARAMETER)
            address = command.address if "@" in command.address else transaction.with_home(command.address, self.reception, self.state)
            recipient = Recipient(address)
            if command.parameters:
                recipient = recipient_of(address, command.parameters, lenient=transaction.is_lenient)
        except WireError as error:
            await self._refused_recipient(transaction, error.reply)
            if error.reply != BAD_RECIPIENT:
                raise
            self.refuse(BAD_RECIPIENT, is_error=False)  # the client passes on what it was given
            return
        refusal = transaction.refusal_of(recipient, self.reception, self.state, has_source_route=command.has_source_route)
        if refusal is None and transaction.hold is None and self.reception.recipients is not None and not self.state.peer:
            refusal = await self._refusal_by_source(recipient.address)
        if refusal is None and transaction.hold is None and self.reception.limits is not None:
            refusal = self.over_limit(Counted.RECIPIENTS)
        if refusal is not None:
            await self._refused_recipient(transaction, refusal)
            self.refuse(refusal)
            return
        if transaction.hold is None and (recipient.notify is not None or self.state.peer):
            recipient = notified(recipient, is_of_peer=bool(self.state.peer), is_trusted=self.is_trusted)
        if not (transaction.values.smtputf8 or recipient.address.isascii()):
            transaction.values = replace(transaction.values, smtputf8=True)
        transaction.recipients.append(recipient)
        self.say(RECIPIENT_OK)

    async def _refusal_by_source(self, address: str) -> Reply | None:
        """Why the sources of recipients do not want it. Only recipients of accepted domains are looked up: others are relayed."""
        recipients, rights = self.reception.recipients, self.reception.rights
        return await recipients.refusal(address, self.state.address) if recipients is not None and rights.accepts(address) else None

    async def _refused_recipient(self, transaction: MailTransaction, reply: Reply) -> None:
        """Raises: ConnectionError if the session ends."""
        transaction.refused_count += 1
        if reply.code >= 500 and (limits := self.reception.limits) is not None and not self.state.peer:
            limits.note(self.state.address, Counted.REFUSED_RECIPIENTS, self.loop.time())
        is_one_too_many = reply.code == TOO_MANY_RECIPIENTS.code
        pace = self.state.fruitless.refuse_recipient(transaction.refused_count, self.patience(), is_one_too_many=is_one_too_many)
        await self.keep_pace(Pace.AT_ONCE if self.state.peer else pace)

    # the content

    async def smtp_DATA(self, argument: str) -> None:
        if argument.strip():
            refusal: Reply | None = NO_ARGUMENT_ALLOWED
        else:
            refusal = MAIL_FIRST if self.transaction is None else self.transaction.refusal_of_data()
        if refusal is None and not self.has_room_now() and not await self.has_room(ROOM_SECONDS):
            refusal = INSUFFICIENT_RESOURCES
        if refusal is not None:
            if not self._reader.has_octets():
                await self.was_misplaced()
            self.refuse(refusal, is_error=not self.was_mail_refused)
            if self._reader.has_octets():  # content sent before our 354: it must not be executed as commands
                self.hang_up(OUT_OF_STEP, "out of step")
            return
        assert self.transaction is not None
        self.say(START_DATA)
        if self._write():
            await self._drained()
        transaction, arriving = self.transaction, self._content_of(self.transaction, is_chunked=False)
        self._is_in_content = True
        try:
            await receive_data(self._reader, arriving.data, partial(self.has_room, ROOM_SECONDS))
        except BaseException:
            arriving.discard()
            raise
        self._is_in_content = False
        await self._conclude(transaction, arriving)

    def _content_of(self, transaction: MailTransaction, *, is_chunked: bool) -> ArrivingContent:
        return ArrivingContent(
            self.reception,
            self.state,
            new_message_id(),
            transaction.values,
            transaction.recipients,
            is_extended=self.is_extended,
            is_chunked=is_chunked,
        )

    async def _conclude(self, transaction: MailTransaction, arriving: ArrivingContent) -> None:
        """The end of the content was read: reply to it."""
        reception, state, sink = self.reception, self.state, arriving.sink
        original = state.named if self._forwarded is None else replace(self._forwarded, by=state.connection_address)
        self._forwarded = None
        self.transaction = None
        try:
            envelope, content = arriving.complete(transaction.sender, transaction.recipients, original)
        except ContentRefused as refused:
            self._refuse_content(refused.reply)
            return
        trace_size = len(arriving.trace)
        if reception.limits is not None and (refusal := self.over_limit(Counted.OCTETS, content.size - trace_size)):
            sink.discard()
            self._refuse_content(refusal)
            return
        self._is_deciding = self._is_our_time = True  # no timeout ends a session between the final dot and its reply
        try:
            if reception.filters is not None and not state.peer:
                passage = Passage(envelope, content, trace_size, original.name, original.login)
                envelope, content, sink = await reception.filters.pass_through(passage, sink, self._another_sink)
                if self.transport is None:
                    raise ConnectionResetError("the client did not wait for its reply")  # and will send the message again
            answer = reception.acceptor.accept(envelope, content)
            del content  # the answer may take its time
            reply = await answer
        except FilterRefusal as refused:
            reply = refused.reply
        except BaseException:
            sink.discard()
            raise
        finally:
            self._end_our_time()
        if reply.code < 300:
            state.messages_count += 1
            self.led_to_mail()
            self.say(reply)
        else:
            sink.discard()
            self._refuse_content(reply)

    def _another_sink(self) -> ContentSink:
        path = f"{self.reception.spool}/{new_message_id()}.part"
        return ContentSink(path, self.reception.budget.portion(), self.reception.descriptors)

    def _refuse_content(self, reply: Reply) -> None:
        if reply is BARE_CR_OR_LF:
            self.state.refused_count += 1
            self.hang_up(reply, "bare CR or LF")
        else:
            self.refuse(reply, is_error=False)

    async def smtp_BDAT(self, argument: str) -> None:
        """Read the chunk even if it is refused: its octets must never be taken for commands. RFC 3030 section 2."""
        found = CHUNK.fullmatch(argument)
        hold = self._hold()
        if found is None or (found[2] and hold is not None):  # XSHADOW COMMIT ends the content of a copy
            self.hang_up(BAD_CHUNK, "bad BDAT")  # the start of the next command is unknown
            return
        count = decimal(found[1]) or 0
        if len(self._reader.buffered) < count:
            await self.flush()
        if hold is None:
            await self._take_chunk(count, is_last=bool(found[2]))
        else:
            await self._take_chunk_of_copy(hold, count)

    async def _take_chunk(self, count: int, *, is_last: bool) -> None:
        """Of a client's content. After a refusal nothing of the transaction is left, and the rest of its chunks is only read."""
        refusal = self._refusal_of_chunk()
        if refusal is None and not self.has_room_now() and not await self.has_room(ROOM_SECONDS):
            refusal = INSUFFICIENT_RESOURCES
        transaction, arriving = self.transaction, None
        if refusal is None and transaction is not None:
            if transaction.arriving is None:
                transaction.arriving = self._content_of(transaction, is_chunked=True)
            arriving = transaction.arriving
        self._is_in_content = True
        await receive_chunk(self._reader, count, None if arriving is None else arriving.data, partial(self.has_room, ROOM_SECONDS))
        self._is_in_content = False
        if arriving is not None and (refusal := arriving.data.refusal_so_far) is None and transaction is not None:
            if not is_last:
                transaction.small_chunks_count += count < SMALL_CHUNK_OCTETS
                if not count:
                    await self.led_nowhere()
                elif count < SMALL_CHUNK_OCTETS:
                    await self.keep_pace(pace_of_small_chunks(transaction.small_chunks_count))
                self._collect(b"250 2.0.0 %d octets received\r\n" % count)
                return
            arriving.data.end()
            await self._conclude(transaction, arriving)
            return
        assert refusal is not None
        if arriving is None:
            await self.was_misplaced()
        is_error = arriving is None and not self.was_mail_refused
        self.reset()
        self.was_mail_refused = not is_last
        self.refuse(refusal, is_error=is_error)

    def _refusal_of_chunk(self) -> Reply | None:
        transaction = self.transaction
        is_peer = self.peer.may_use_xshadow()
        if not (self.reception.connector.chunking_enabled or is_peer):
            return NOT_IMPLEMENTED
        if transaction is None:
            return NO_HOLD if is_peer else MAIL_FIRST
        return transaction.lack_of_recipients()

    async def _take_chunk_of_copy(self, hold: PeerTransaction, count: int) -> None:
        is_too_big = not hold.has_failed and hold.sink.size + count > hold.size_max
        sink = None if hold.has_failed or is_too_big else hold.sink
        self._is_in_content = True
        is_kept = await receive_octets(self._reader, count, sink, partial(self.has_room, ROOM_FOR_COPY_SECONDS))
        self._is_in_content = False
        if is_too_big:
            raise WireError(MESSAGE_TOO_BIG)
        self._live_hold()
        if not is_kept:
            raise WireError(INSUFFICIENT_RESOURCES)
        self._collect(b"250 2.0.0 %d octets received\r\n" % count)

    def after_failure(self, reply: Reply) -> None:
        """A failure within content ends the session: the start of the next command is unknown."""
        if self._is_in_content:
            self.hang_up(FAILED_IN_CONTENT, "failed")
            return
        self.reset()
        self.say(reply)

    async def smtp_RSET(self, argument: str) -> None:
        if argument.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
            return
        self.reset()
        self.say(OK)

    # peers: docs/protocol.md 5 to 10

    def smtp_XSHADOW(self, argument: str) -> Awaitable[None]:
        form, rest = parse_form(argument)
        if form is XshadowForm.HELLO:
            return self._hello_of_peer(rest)
        return self._take_envelope(rest) if form is XshadowForm.ENVELOPE else self._commit(rest)

    async def _hello_of_peer(self, argument: str) -> None:
        self.say(await self.peer.hello(argument, is_in_transaction=self.transaction is not None))
        self.proved_peer()

    async def _take_envelope(self, argument: str) -> None:
        self.peer.required()
        hold = self._live_hold()
        hold.extras = parse_envelope(argument)
        self._say_with_position(ENVELOPE_OK)

    def _live_hold(self) -> PeerTransaction:
        hold = None if self.transaction is None else self.transaction.hold
        if hold is None:
            raise WireError(NO_HOLD)
        if hold.has_failed:
            raise WireError(HOLD_HAS_FAILED)
        return hold

    async def _commit(self, argument: str) -> None:
        identity = self.peer.required()
        transaction = self.transaction
        hold = None if transaction is None else transaction.hold
        self.was_mail_refused = False  # the pipelined group ends here
        if transaction is None or hold is None:
            raise WireError(NO_HOLD)
        self.transaction = None
        try:
            offer = self.peer.offer_of(hold, argument, transaction.sender, transaction.recipients, transaction.values)
        except BaseException:
            hold.sink.discard()
            raise
        self._is_deciding = self._is_our_time = True  # as in `smtp_DATA`
        try:
            if hold.trace:
                reply = await self.reception.peer_requests.track(identity, offer, hold.began_awake)
            else:
                reply = await self.reception.peer_requests.hold(identity, offer)
        except BaseException:
            hold.sink.discard()
            raise
        finally:
            self._end_our_time()
        if reply.code < 300 and hold.trace:
            self.state.messages_count += 1
        elif reply.code < 300:
            self.state.copies_count += 1
            self.state.fruitless.count = 0
        else:
            self.state.refused_count += 1
            self.peer.refused()
            hold.sink.discard()
        self._say_with_position(reply)

    def _say_with_position(self, reply: Reply) -> None:
        if reply.text.startswith(SUPERSEDED):  # followed by the answer to STATUS only, without a position
            self.say(reply)
        else:
            self._collect(reply_line(reply)[:-2] + f" {format_position(self.reception.peer_requests.position)}\r\n".encode())

    async def smtp_XQDISCARD(self, argument: str) -> None:
        announced = _BLOCK.fullmatch(argument)
        block = b"" if announced is None else await self._read_block(decimal(announced[1]) or 0)
        identity = self.peer.required()
        self.state.fruitless.count = 0
        query = parse_command(argument)
        peer_requests = self.reception.peer_requests
        if isinstance(query, DiscardQuery):
            reply = await peer_requests.discards(identity, query.maximum, query.acknowledged)
            self.say_lines(250, "2.0.0", format_reply_lines(reply, peer_requests.position))
            return
        questions = query.questions if query.block_size is None else parse_question_block(block)
        answers = await peer_requests.status(identity, questions)
        self.say_lines(250, "2.0.0", format_answer_lines(answers, peer_requests.position))

    async def _read_block(self, size: int) -> bytes:
        """Read the announced octets from any client; if they exceed the limit of a block, drop them."""
        if not self._reader.has_octets(size):
            await self.flush()
        self._is_in_content = True
        blocks: list[bytes] = []
        left = size
        while left:
            block = await self._reader.readexactly(min(left, READ_AHEAD_OCTETS))
            left -= len(block)
            if size <= BLOCK_OCTETS_MAX:
                blocks.append(block)
        self._is_in_content = False
        return b"".join(blocks)
