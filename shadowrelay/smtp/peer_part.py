"""The part of a session that is for peers: the right to XSHADOW, identity, proof of life, copies. docs/protocol.md 5 to 10, 16.

Each session holds one, because any client may prove to be a peer. It decides; the `Receiver`, whose commands ask it, reads and writes.

The rules here:

- A session without the right is not offered the extension and cannot use it (docs/design.md 6.6).
- `proved` is reported only for commands that start a new exchange, because a peer starts one only after it has read all
  replies to the previous one. Other lines of a pipelined group may have been written before our reply was read.
- A copy is checked as a whole when it is complete, and belongs to the database that the peer named in its hello.
"""

import ssl
from collections.abc import Sequence

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.peers import CopyOffer, Incarnation, PeerIdentity
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply, WireError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import TRACK_NOT_OFFERED, MailValues
from shadowrelay.protocol.original_client import OriginalClient, checked_address, format_original_client
from shadowrelay.protocol.xshadow import EnvelopeExtras, format_hello, format_keyword, is_track, parse_commit, parse_hello, parse_hold
from shadowrelay.smtp.data import ContentSink, RelayedSink, beginning_of, header_facts, protocol_name, trace_header
from shadowrelay.smtp.limits import (
    AUTHENTICATION_NEEDED,
    CIRCLE,
    CONTENT_MISMATCH,
    EXCHANGE_STARTS,
    HELLO_FIRST,
    HOLD_HAS_FAILED,
    HOLD_IS_INCOMPLETE,
    HOLD_NOT_OFFERED,
    HOLD_SIZE_MAX,
    IN_TRANSACTION,
    LOOP,
    MESSAGE_TOO_BIG,
    NOT_IMPLEMENTED,
    NOT_YOUR_NAME,
    OTHER_BOUNDARY,
    XSHADOW_FIRST,
)
from shadowrelay.smtp.reception import Reception, SessionState
from shadowrelay.trust import Chain, PeerTrust, chain_of, names_in


@dataclass(slots=True)
class PeerTransaction:
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


class PeerPart:
    """What one session knows of its client as a peer, and what it allows it."""

    __slots__ = ("_answered_awake", "_has_refused", "_proved_names", "_reception", "_shown", "_state", "heard_at", "identity")

    def __init__(self, reception: Reception, state: SessionState) -> None:
        self._reception = reception
        self._state = state
        self._proved_names: frozenset[str] = frozenset()
        self._answered_awake: float | None = None
        self._has_refused = False  # among the replies not written yet is a refusal
        self._shown: Chain = ()  # by the client
        self.identity: PeerIdentity | None = None  # since its XSHADOW hello; `state.peer` is its name
        self.heard_at = 0.0  # the reader's `progress_at` at the last command that was reported to `heard`

    # the right

    def protected(self, session: ssl.SSLObject) -> str:
        """TLS is active, and earlier state is forgotten. A client certificate signed by the peer authority proves the names in it, unless
        it was revoked: then the reason is returned, and the session must end."""
        self.identity = None
        self._state.peer = ""
        self._proved_names = frozenset()
        self._shown = chain_of(session)
        tls = self._reception.tls
        if self._shown and tls is not None and (reason := tls.trust.refusal(self._shown)):
            return reason
        self._proved_names = names_in(session.getpeercert()) & self._reception.peers.keys()
        return ""

    def reread(self, trust: PeerTrust, before: PeerTrust) -> str:
        """The files of [tls] were read again: why the certificate of this open session counts no more; "" if it does."""
        reason = trust.refusal_of_session(self._shown, before)
        if reason:
            self._proved_names = frozenset()
        return reason

    def may_use_xshadow(self) -> bool:
        """Whether this client may use the extension."""
        if not self._reception.connector.accept_xshadow:
            return False
        state = self._state  # whoever speaks for others is no peer: see `SessionState.own_address`
        return bool(self._proved_names) or (
            not state.is_spoken_for and self._reception.rights.is_externally_secured(state.connection_address)
        )

    def may_prove(self) -> bool:
        """Whether this client is a peer, or may still prove by TLS that it is one."""
        can_by_tls = self._reception.connector.accept_xshadow and self._reception.tls is not None
        return can_by_tls or self.may_use_xshadow()

    def required(self) -> PeerIdentity:
        """The peer's identity. Raises: WireError 530, 502; 503 before its XSHADOW hello."""
        if not self.may_use_xshadow():
            raise self._refusal_of_right()
        return self._introduced()

    def _introduced(self) -> PeerIdentity:
        if self.identity is None:
            raise WireError(XSHADOW_FIRST)
        return self.identity

    def _refusal_of_right(self) -> WireError:
        """530, or 502 if the connector does not accept XSHADOW."""
        return WireError(AUTHENTICATION_NEEDED if self._reception.connector.accept_xshadow else NOT_IMPLEMENTED)

    def keyword(self) -> str | None:
        """The line for XSHADOW in the reply to EHLO. It is shown only to sessions that may use it."""
        if not (self._reception.is_advertised and self.may_use_xshadow()):
            return None
        return format_keyword(hold=self._reception.peer_requests.offers_hold(), track=self._offers_track())

    def _offers_track(self) -> bool:
        """Whether this connector now accepts mail whose shadow the previous hop keeps."""
        return self._reception.connector.redundancy.tracks and self._reception.peer_requests.offers_track()

    # identity

    async def hello(self, argument: str, *, is_in_transaction: bool) -> Reply:
        """XSHADOW server=…: check and record the peer's identity, answer with ours. Raises: WireError."""
        if not self.may_use_xshadow():
            raise self._refusal_of_right()
        if not self._state.client_name:
            raise WireError(HELLO_FIRST)
        if is_in_transaction:
            raise WireError(IN_TRANSACTION)
        identity = parse_hello(argument)
        reception = self._reception
        is_named = identity.server in self._proved_names or reception.rights.is_externally_secured(self._state.own_address)
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
        if reason := await reception.peer_requests.second_server(identity, self._state.address, self._state.began_at):
            raise WireError(Reply(550, "5.7.1", f"Refused: {reason}"))
        answer = await reception.peer_requests.greeted(identity)
        self.identity = identity
        self._answered_awake = None  # earlier replies went to a session without this identity
        self._state.peer = identity.server
        reception.peer_requests.heard(identity.server, identity.database)
        return Reply(250, "2.0.0", format_hello(answer))

    def is_with_other(self, server: ServerName, incarnation: Incarnation) -> bool:
        """Whether another process of this peer has identified itself in this session."""
        identity = self.identity
        return identity is not None and identity.server == server and identity.whole_incarnation != incarnation

    # proof of life

    def heard(self, name: str, progress_at: float) -> None:
        """Each command is a proof of life; one that starts an exchange also proves that the peer has read our last reply."""
        if (identity := self.identity) is None:
            return
        if self.heard_at != progress_at:  # commands that arrived together count once
            self.heard_at = progress_at
            self._reception.peer_requests.heard(identity.server, identity.database)
        if self._answered_awake is not None and name in EXCHANGE_STARTS:
            self._reception.peer_requests.proved(identity.server, identity.database, self._answered_awake)

    def refused(self) -> None:
        """A negative reply was collected. The peer does not count it as a sign of life, so no lease may be renewed by it."""
        self._has_refused = True

    def answering(self) -> None:
        """Replies are about to be written: note the time that `proved` reports. Never later than the peer's reading."""
        if self.identity is not None:
            self._answered_awake = None if self._has_refused else self._reception.clock.awake()
        self._has_refused = False

    # a copy

    def begin_hold(self, value: str, size: int, path: str, *, smtputf8: bool) -> PeerTransaction:
        """MAIL with XSHADOW=: the transaction becomes a copy, or a message whose shadow the peer keeps. It is exempt from the limits for
        other clients. Its client may use the extension: MAIL knew the parameter by that. Raises: WireError.

        Shapes: `value` that of the parameter; `size` the declared one, or 0; `path` of a spool file. It must not be that of the message
        id: an earlier copy of the same message may still be on its way into the ledger.
        """
        identity, reception = self._introduced(), self._reception
        message_id, number = parse_hold(value, identity.database)
        is_tracked = is_track(value)
        size_max = reception.connector.max_message_size if is_tracked else HOLD_SIZE_MAX
        if size > size_max:
            raise WireError(MESSAGE_TOO_BIG)
        if is_tracked and not self._offers_track():
            is_for_good = reception.peer_requests.offers_track() or not reception.connector.redundancy.tracks
            raise WireError(TRACK_NOT_OFFERED if is_for_good else HOLD_NOT_OFFERED)
        if not is_tracked and (identity.boundary != reception.boundary or not reception.peer_requests.offers_hold()):
            raise WireError(HOLD_NOT_OFFERED)
        portion, descriptors = reception.budget.portion(), reception.descriptors
        if not is_tracked:
            return PeerTransaction(message_id, number, ContentSink(path, portion, descriptors), size_max)
        state = self._state
        client = (state.client_name, state.address)
        protocol = protocol_name(is_extended=True, smtputf8=smtputf8, is_encrypted=bool(state.tls))
        trace = trace_header(reception.name, protocol, message_id, client, [], reception.clock.now())
        sink = RelayedSink(path, portion, descriptors, trace)
        return PeerTransaction(message_id, number, sink, size_max, trace=trace, began_awake=reception.clock.awake())

    def offer_of(self, hold: PeerTransaction, argument: str, sender: str, recipients: Sequence[Recipient], values: MailValues) -> CopyOffer:
        """XSHADOW COMMIT: the copy, if it is complete and equals what the peer sent. Raises: WireError."""
        if hold.has_failed:
            raise WireError(HOLD_HAS_FAILED)
        if hold.extras is None or not recipients:
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
        envelope = hold.extras.envelope(hold.message_id, sender, tuple(recipients), values.body, smtputf8=values.smtputf8)
        if hold.trace:
            envelope = self._relayed(envelope, content, hold.trace)
        return CopyOffer(hold.number, envelope, hold.extras.done, content)

    def _client_there(self, envelope: Envelope) -> str:
        """The client of the previous hop; nobody if it made the message itself."""
        if not envelope.client_address or envelope.client_name.lower() == self._state.peer:
            return ""
        client = OriginalClient(checked_address(envelope.client_address), helo=envelope.client_name, by=self._state.address)
        return format_original_client(client)

    def _relayed(self, envelope: Envelope, content: Content, trace: bytes) -> Envelope:
        """The envelope of a message that the peer relays, as received here. Raises: WireError 554 after too many hops. RFC 5321 6.3."""
        reception = self._reception
        try:
            facts = header_facts(beginning_of(content, len(trace)), reception.name, trace)
        except OSError:
            raise WireError(INSUFFICIENT_RESOURCES) from None
        if facts.hop_count > reception.connector.max_hop_count:
            raise WireError(LOOP)
        if facts.is_in_circles:
            raise WireError(CIRCLE)
        state = self._state
        return replace(
            envelope,
            client_address=state.address,
            client_name=state.client_name,
            original_client=envelope.original_client or self._client_there(envelope),
            connector=reception.connector.name,
            date="" if facts.has_own_trace else envelope.date,
        )
