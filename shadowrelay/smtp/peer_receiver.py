"""Handles the commands of peers: XSHADOW, BDAT, XQDISCARD; and decides which clients may use them. docs/protocol.md 5 to 10, 16.

The rules here:

- A session without the right is not offered the extension and cannot use it (docs/design.md 6.6).
- `proved` is reported only for commands that start a new exchange, because a peer starts one only after it has read all
  replies to the previous one. Other lines of a pipelined group may have been written before our reply was read.
- A copy's transaction fails as a whole. Its lines are pipelined: those after the first failure are answered 503, one reply
  each, and their octets are read, so that replies and commands stay in step.
"""

import re
import ssl
from collections.abc import Awaitable, Mapping
from functools import partial

from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.peers import CopyOffer, PeerIdentity
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, SUPERSEDED, Reply, WireError
from shadowrelay.model.values import replace
from shadowrelay.protocol.fields import TRACK_NOT_OFFERED
from shadowrelay.protocol.xqdiscard import (
    BLOCK_OCTETS_MAX,
    DiscardQuery,
    format_answer_lines,
    format_reply_lines,
    parse_command,
    parse_question_block,
)
from shadowrelay.protocol.xshadow import (
    KEYWORD,
    XshadowForm,
    format_hello,
    format_keyword,
    format_position,
    is_track,
    parse_commit,
    parse_envelope,
    parse_form,
    parse_hello,
    parse_hold,
)
from shadowrelay.smtp.data import ContentSink, RelayedSink, beginning_of, header_facts, receive_octets, trace_header
from shadowrelay.smtp.limits import (
    AUTHENTICATION_NEEDED,
    BAD_CHUNK,
    CONTENT_MISMATCH,
    ENVELOPE_OK,
    EXCHANGE_STARTS,
    HELLO_FIRST,
    HOLD_HAS_FAILED,
    HOLD_IS_INCOMPLETE,
    HOLD_NOT_OFFERED,
    HOLD_SIZE_MAX,
    IN_TRANSACTION,
    LOOP,
    MESSAGE_TOO_BIG,
    NO_HOLD,
    NOT_IMPLEMENTED,
    NOT_YOUR_NAME,
    OTHER_BOUNDARY,
    READ_AHEAD_OCTETS,
    ROOM_FOR_COPY_SECONDS,
    XSHADOW_FIRST,
)
from shadowrelay.smtp.receiver import MAIL_PARAMETERS, Hold, MailTransaction, Receiver, new_message_id
from shadowrelay.smtp.tls import names_in_certificate


class PeerReceiver(Receiver):
    """A session whose client may be a peer."""

    identity: PeerIdentity | None = None
    _proved_names: frozenset[str] = frozenset()
    _answered_awake: float | None = None

    # rights

    def protected(self, session: ssl.SSLObject) -> None:
        """A client certificate signed by the peer authority proves the names in it."""
        super().protected(session)
        self.identity = None
        self.account.peer = ""
        self._proved_names = names_in_certificate(session.getpeercert()) & self.reception.peers.keys()

    def may_use_xshadow(self) -> bool:
        """Whether this client may use the extension."""
        if not self.reception.connector.accept_xshadow:
            return False
        return bool(self._proved_names) or self.reception.rights.is_externally_secured(self.account.address)

    def refusal_at_greeting(self) -> Reply | None:
        """While no mail is accepted, peers are greeted nevertheless, and clients that may still prove by TLS that they are peers."""
        refusal = super().refusal_at_greeting()
        is_for_all = refusal is not None and refusal is not self.reception.closed_with
        may_prove = self.reception.connector.accept_xshadow and self.reception.tls_context is not None
        return refusal if is_for_all or not (may_prove or self.may_use_xshadow()) else None

    def refusal_of_right(self) -> WireError:
        """530, or 502 if the connector does not accept XSHADOW."""
        return WireError(AUTHENTICATION_NEEDED if self.reception.connector.accept_xshadow else NOT_IMPLEMENTED)

    def require_peer(self) -> PeerIdentity:
        """The peer's identity. Raises: WireError 530, 502; 503 before its XSHADOW hello."""
        if not self.may_use_xshadow():
            raise self.refusal_of_right()
        if self.identity is None:
            raise WireError(XSHADOW_FIRST)
        return self.identity

    def extensions(self) -> list[str]:
        """XSHADOW is shown only to sessions that may use it."""
        lines = super().extensions()
        if self.reception.is_advertised and self.may_use_xshadow():
            lines.append(format_keyword(hold=self.reception.peer_requests.offers_hold(), track=self._offers_track()))
        return lines

    def _offers_track(self) -> bool:
        """Whether this connector now accepts mail whose shadow the previous hop keeps."""
        return self.reception.connector.redundancy.tracks and self.reception.peer_requests.offers_track()

    # proof of life

    def heard(self, name: str) -> None:
        """Each command is a proof of life; one that starts an exchange also proves that the peer has read our last reply."""
        if (identity := self.identity) is None:
            return
        if self.heard_at != self.own_reader.progress_at:  # commands that arrived together count once
            self.heard_at = self.own_reader.progress_at
            self.reception.peer_requests.heard(identity.server, identity.database)
        if self._answered_awake is not None and name in EXCHANGE_STARTS:
            self.reception.peer_requests.proved(identity.server, identity.database, self._answered_awake)

    def writing(self) -> None:
        """Note the time that `proved` reports. Taken before the write, so that it is never later than the peer's reading."""
        if self.identity is not None:
            self._answered_awake = self.reception.clock.awake()

    # identity

    async def _hello(self, argument: str) -> None:
        """XSHADOW server=…: check and record the peer's identity, answer with ours."""
        if not self.may_use_xshadow():
            raise self.refusal_of_right()
        if not self.account.client_name:
            raise WireError(HELLO_FIRST)
        if self.transaction is not None:
            raise WireError(IN_TRANSACTION)
        identity = parse_hello(argument)
        reception = self.reception
        is_named = identity.server in self._proved_names or reception.rights.is_externally_secured(self.account.address)
        if identity.server == reception.name and (refusal := reception.peer_requests.refusal(identity)) is not None:
            raise WireError(refusal)
        if identity.server not in reception.peers or not is_named:
            raise WireError(NOT_YOUR_NAME)
        if identity.boundary != reception.peers[identity.server].boundary:
            raise WireError(OTHER_BOUNDARY)
        if identity.boundary != reception.boundary and identity.server not in reception.linked:
            raise WireError(OTHER_BOUNDARY)
        if (refusal := reception.peer_requests.refusal(identity)) is not None:
            raise WireError(refusal)
        answer = await reception.peer_requests.greeted(identity)
        self.identity = identity
        self._answered_awake = None  # earlier replies went to a session without this identity
        self.account.peer = identity.server
        reception.peer_requests.heard(identity.server, identity.database)
        self.say(Reply(250, "2.0.0", format_hello(answer)))

    # failure of a copy

    def _hold(self) -> Hold | None:
        return None if self.transaction is None else self.transaction.hold

    def refuse(self, reply: Reply, *, is_error: bool = True) -> None:
        """Any refusal within a copy fails it.

        A peer's errors do not end its session: it is trusted, and would repeat them in a new session."""
        if (hold := self._hold()) is not None:
            self._fail(hold)
        super().refuse(reply, is_error=is_error and self.identity is None)

    def _fail(self, hold: Hold) -> None:
        hold.has_failed = True
        hold.sink.discard()

    def reset(self) -> None:
        """Drop an unfinished copy."""
        if (hold := self._hold()) is not None:
            hold.sink.discard()
        super().reset()

    def connection_lost(self, error: Exception | None) -> None:
        """Drop an unfinished copy."""
        self.reset()
        super().connection_lost(error)

    def smtp_XSHADOW(self, argument: str) -> Awaitable[None]:
        form, rest = parse_form(argument)
        if form is XshadowForm.HELLO:
            return self._hello(rest)
        return self._take_envelope(rest) if form is XshadowForm.ENVELOPE else self._commit(rest)

    # a copy

    def mail_parameters(self) -> frozenset[str]:
        """The XSHADOW parameter is known only in sessions that may use it."""
        return PEER_MAIL_PARAMETERS if self.may_use_xshadow() else MAIL_PARAMETERS

    def refusal_of_mail(self, transaction: MailTransaction, parameters: Mapping[str, str], size: int) -> Reply | None:
        """A copy is exempt from the limits for other clients."""
        value = parameters.get(KEYWORD)
        if value is None:
            return super().refusal_of_mail(transaction, parameters, size)
        identity, reception = self.require_peer(), self.reception
        message_id, number = parse_hold(value, identity.database)
        is_tracked = is_track(value)
        if size > (reception.connector.max_message_size if is_tracked else HOLD_SIZE_MAX):
            return MESSAGE_TOO_BIG
        if is_tracked and not self._offers_track():
            return (
                TRACK_NOT_OFFERED
                if reception.peer_requests.offers_track() or not reception.connector.redundancy.tracks
                else HOLD_NOT_OFFERED
            )
        if not is_tracked and (identity.boundary != reception.boundary or not reception.peer_requests.offers_hold()):
            return HOLD_NOT_OFFERED
        # Not named by the message id: an earlier copy of the same message may still be on its way into the ledger.
        path = f"{reception.spool}/{new_message_id()}.copy"
        portion, descriptors = reception.budget.portion(), reception.descriptors
        if is_tracked:
            client = (self.account.client_name, self.account.address)
            trace = trace_header(reception.name, self._protocol(transaction), message_id, client, [], reception.clock.now())
            sink: ContentSink = RelayedSink(path, portion, descriptors, trace)
            transaction.hold = Hold(message_id, number, sink, trace=trace, began_awake=reception.clock.awake())
        else:
            transaction.hold = Hold(message_id, number, ContentSink(path, portion, descriptors))
        return None

    async def refusal_under_pressure(self, parameters: Mapping[str, str]) -> Reply | None:
        """A copy is refused by `refusal_of_mail`, and not delayed: its primary server can try another server."""
        return None if KEYWORD in parameters else await super().refusal_under_pressure(parameters)

    def is_inside(self) -> bool:
        """A peer counts as inside."""
        return self.identity is not None or super().is_inside()

    def _live_hold(self) -> Hold:
        hold = None if self.transaction is None else self.transaction.hold
        if hold is None:
            raise WireError(NO_HOLD)
        if hold.has_failed:
            raise WireError(HOLD_HAS_FAILED)
        return hold

    async def _take_envelope(self, argument: str) -> None:
        self.require_peer()
        hold = self._live_hold()
        hold.extras = parse_envelope(argument)
        self._say_with_position(ENVELOPE_OK)

    async def smtp_BDAT(self, argument: str) -> None:
        """Read the chunk even if it is refused: its octets must never be taken for commands. RFC 3030 section 2."""
        found = CHUNK.fullmatch(argument)
        if found is None:
            self.hang_up(BAD_CHUNK, "bad BDAT")  # the start of the next command is unknown
            return
        count = int(found[1])
        if len(self._reader.buffered) < count:
            await self.flush()
        hold = None if self.transaction is None else self.transaction.hold
        sink = None if hold is None or hold.has_failed else hold.sink
        is_tracked = hold is not None and bool(hold.trace)
        if sink is not None and sink.size + count > (self.reception.connector.max_message_size if is_tracked else HOLD_SIZE_MAX):
            await self._read_octets(count, None)
            raise WireError(MESSAGE_TOO_BIG)
        is_kept = await self._read_octets(count, sink)
        self._live_hold()
        if not is_kept:
            raise WireError(INSUFFICIENT_RESOURCES)
        self._collect(b"250 2.0.0 %d octets received\r\n" % count)

    async def _read_octets(self, count: int, sink: ContentSink | None) -> bool:
        self._is_in_content = True
        is_kept = await receive_octets(self._reader, count, sink, partial(self.has_room, ROOM_FOR_COPY_SECONDS))
        self._is_in_content = False
        return is_kept

    async def _commit(self, argument: str) -> None:
        identity = self.require_peer()
        transaction = self.transaction
        hold = None if transaction is None else transaction.hold
        self.was_mail_refused = False  # the pipelined group ends here
        if transaction is None or hold is None:
            raise WireError(NO_HOLD)
        self.transaction = None
        try:
            offer = self._offer_of(transaction, hold, argument)
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
            self.account.messages_count += 1
        elif reply.code < 300:
            self.account.copies_count += 1
        else:
            self.account.refused_count += 1
            hold.sink.discard()
        self._say_with_position(reply)

    def _offer_of(self, transaction: MailTransaction, hold: Hold, argument: str) -> CopyOffer:
        if hold.has_failed:
            raise WireError(HOLD_HAS_FAILED)
        if hold.extras is None or not transaction.recipients:
            raise WireError(HOLD_IS_INCOMPLETE)
        size, sha256 = parse_commit(argument)
        try:
            content = hold.sink.content()
        except OSError:
            raise WireError(INSUFFICIENT_RESOURCES) from None
        sink = hold.sink
        sent = (sink.received_size, sink.received_sha256) if isinstance(sink, RelayedSink) else (content.size, content.sha256)
        if (size, sha256) != sent:
            raise WireError(CONTENT_MISMATCH)
        envelope = hold.extras.envelope(
            hold.message_id, transaction.sender, tuple(transaction.recipients), transaction.body, smtputf8=transaction.smtputf8
        )
        if hold.trace:
            envelope = self._relayed(envelope, content, len(hold.trace))
        return CopyOffer(hold.number, envelope, hold.extras.done, content)

    def _relayed(self, envelope: Envelope, content: Content, trace_size: int) -> Envelope:
        """The envelope of a message that the peer relays, as received here. Raises: WireError 554 after too many hops. RFC 5321 6.3."""
        reception = self.reception
        try:
            facts = header_facts(beginning_of(content, trace_size), reception.name)
        except OSError:
            raise WireError(INSUFFICIENT_RESOURCES) from None
        if facts.hop_count > reception.connector.max_hop_count:
            raise WireError(LOOP)
        account = self.account
        return replace(
            envelope,
            client_address=account.address,
            client_name=account.client_name,
            connector=reception.connector.name,
            date="" if facts.has_own_trace else envelope.date,
        )

    def _say_with_position(self, reply: Reply) -> None:
        if reply.text.startswith(SUPERSEDED):  # followed by the answer to STATUS only, without a position
            self.say(reply)
        else:
            self._collect(f"{reply} {format_position(self.reception.peer_requests.position)}\r\n".encode())

    # XQDISCARD

    async def smtp_XQDISCARD(self, argument: str) -> None:
        announced = _BLOCK.fullmatch(argument)
        block = b"" if announced is None else await self._read_block(int(announced[1]))
        identity = self.require_peer()
        query = parse_command(argument)
        peer_requests = self.reception.peer_requests
        if isinstance(query, DiscardQuery):
            reply = await peer_requests.discards(identity, query.maximum, query.acknowledged)
            self.say_lines(250, "2.0.0", format_reply_lines(reply, self.reception.peer_requests.position))
            return
        questions = query.questions if query.block_size is None else parse_question_block(block)
        answers = await peer_requests.status(identity, questions)
        self.say_lines(250, "2.0.0", format_answer_lines(answers, self.reception.peer_requests.position))

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


PEER_MAIL_PARAMETERS = MAIL_PARAMETERS | {KEYWORD}

CHUNK = re.compile(r"([0-9]{1,19}) *")  # the argument of BDAT in a copy: no LAST, because XSHADOW COMMIT ends the content
_BLOCK = re.compile(r"STATUS BDAT ([0-9]{1,19}) *", re.IGNORECASE)
