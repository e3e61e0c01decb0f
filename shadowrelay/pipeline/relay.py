"""Relays a message to a next hop that is a peer, and keeps its shadow (`TRACK`, as in Exchange 2010). docs/design.md 6.7.

The fork becomes a message of its own, whose primary server is the next hop, and this node keeps it as that server's shadow message. From
then on it is treated like any shadow message: the next hop reports which recipients are done, and if that server is lost, the message is
taken back (`pipeline.promote`). `pipeline.track` is the other end.

The id of the fork's message is computed from the id of the message, the next hop and the ordinals. A node that lost the reply, or its
record of the reply, therefore offers the same id again, and the next hop answers that it has the message: nothing is relayed twice to
one server.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID, uuid5

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Content, Envelope, Ordinals
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, StatusState
from shadowrelay.model.peers import CopyOffer
from shadowrelay.model.queue import NewMessage, Origin, StoredMessage
from shadowrelay.model.replies import (
    LeaseTooShort,
    PeerSaid,
    PeerUnavailable,
    PermanentDeliveryError,
    Reply,
    TransientDeliveryError,
)
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.context import Context
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, dsn
from shadowrelay.rules.placement import LARGE_OCTETS
from shadowrelay.store import reading

FIRST_RANK = (1, 1)  # of a relayed message: its first primary server has one copy, on the previous hop
RELAY_SECONDS = 600.0  # for one message, whatever its size. RFC 5321 4.5.3.2.6
STALL_SECONDS = 120.0  # without progress
CANNOT_TRACK = frozenset((500, 501, 502, 503, 504, 530, 555))  # they refuse TRACK, not the message: it is sent by plain SMTP

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Relayed:
    """The result of relaying to `server`: the report, and in `kept` the shadow message to keep; None if that server needs no shadow any
    more. `content` is set only if it is a file."""

    server: ServerName
    report: DeliveryReport
    kept: NewMessage | None
    content: Content | None


def relayed_id(message_id: MessageId, server: ServerName, ordinals: Ordinals) -> MessageId:
    """The id of the message that these recipients' fork becomes when it is relayed to this server: always the same."""
    return MessageId(str(uuid5(UUID(message_id), f"{server} {','.join(map(str, sorted(ordinals)))}")))


def relayed_envelope(envelope: Envelope, server: ServerName, ordinals: Ordinals) -> Envelope:
    """The envelope of that message: these recipients, in the same order."""
    recipients = tuple([envelope.recipients[ordinal - 1] for ordinal in sorted(ordinals)])
    return replace(
        envelope, message_id=relayed_id(envelope.message_id, server, ordinals), recipients=recipients, relayed_from=envelope.message_id
    )


class RelayService:
    """The side of the previous hop."""

    def __init__(self, context: Context, on_yielded: Callable[[MessageId], None]) -> None:
        self._context = context
        self._on_yielded = on_yielded  # called with each kept shadow whose next hop has yielded to another server
        self._yielded: set[MessageId] = set()  # messages in flight for which it will be called
        self._in_flight: dict[MessageId, asyncio.Future[None]] = {}
        # For each offer without an answer yet: recipients that notifications report as done. An empty set means all.
        self._done_before_answer: dict[MessageId, list[Ordinals]] = {}
        self._servers: tuple[Settings, Mapping[HostPort, ServerName]] | None = None

    def server_at(self, host: HostPort) -> ServerName | None:
        """The peer whose address this is."""
        settings = self._context.settings
        if self._servers is None or self._servers[0] is not settings:
            known = {HostPort(peer.address.host.lower(), peer.address.port): peer.name for peer in settings.linked_peers}
            self._servers = settings, known
        return self._servers[1].get(HostPort(host.host.lower(), host.port))

    def is_to_peer(self, destination: Destination) -> bool:
        """Whether mail goes there by TRACK, if it is offered."""
        return destination.tracks and any(self.server_at(host) is not None for host in destination.hosts)

    async def relay(self, stored: StoredMessage, job: DeliveryJob, in_flight: list[MessageId]) -> Relayed | DeliveryJob:
        """Make one attempt. Returns the job if the message is to be delivered without TRACK, with the hosts to try.

        A host that does not offer TRACK now is skipped while another host may take the message by TRACK, because a delivery without TRACK
        leaves no shadow here. A peer of the route that cannot be reached now is not among them: it may have the message from an
        earlier attempt, and would recognise it only by TRACK. A peer that refuses it for now is passed over. The search
        ends at the first host that is not a peer. Adds to `in_flight`;
        once the outcome is recorded, or will not be, call `end_in_flight` with that list.

        Raises: as `ports.Deliverer.deliver`.
        """
        context, hosts = self._context, job.destination.hosts
        if not context.is_enabled:
            return job
        reasons: list[str] = []
        refused: TransientDeliveryError | None = None
        without_track: list[HostPort] = []
        for place, host in enumerate(hosts):
            server = self.server_at(host)
            if server is None or server not in context.links:  # no peer: the search ends here
                return replace(job, destination=replace(job.destination, hosts=(*without_track, *hosts[place:])))
            state = context.peers.states[server]
            if state.unreachable_since is not None:  # the heartbeat finds out when it is back
                reasons.append(f"{server}: {state.last_error}")
                continue
            try:
                return await self._relay_to(server, f"{server} [{host.host}]:{host.port}", stored, job, in_flight)
            except PeerUnavailable as error:
                if error.reply is None and error.said is PeerSaid.NOTHING:
                    context.peers.failed(server, error.reason)
                if error.sent:
                    reply = Reply(451, "4.4.2", f"no reply to the whole message: {error.reason}")
                    raise TransientDeliveryError(reply, server, is_connection=True, dot_sent_unanswered=True) from error
                if error.said is PeerSaid.NO_SESSION or (error.reply is not None and error.reply.code in CANNOT_TRACK):
                    _log.info("relay.without_track", server=server, reason=error.reason)
                    without_track.append(host)
                    continue
                if error.reply is None:
                    reasons.append(f"{server}: {error.reason}")
                    continue
                if error.reply.is_permanent:
                    raise PermanentDeliveryError(error.reply, server) from error
                refused = refused or TransientDeliveryError(error.reply, server)  # it has not stored it: another one may
        if without_track:
            return replace(job, destination=replace(job.destination, hosts=tuple(without_track)))
        raise refused or TransientDeliveryError(Reply(451, "4.4.1", "; ".join(reasons)), job.destination.key, is_unreachable=True)

    async def _relay_to(
        self, server: ServerName, name: str, stored: StoredMessage, job: DeliveryJob, in_flight: list[MessageId]
    ) -> Relayed:
        context = self._context
        envelope = relayed_envelope(stored.envelope, server, job.ordinals)
        if job.ordinals & delivery.told_of_delay(stored, context.heard_at(stored.promoted_from), context.settings.send):
            envelope = replace(envelope, recipients=tuple(map(dsn.without_delay, envelope.recipients)))
        message_id, count = envelope.message_id, len(envelope.recipients)
        if self._may_have_been_offered(stored) and await context.ledger.read(reading.load, message_id) is not None:
            # The next hop took it earlier and placed a copy here, or this node even took it over. A second offer would be a second message.
            known = Reply(250, "2.0.0", f"Here as {message_id}")
            return Relayed(server, DeliveryReport(name, dict.fromkeys(sorted(job.ordinals), known)), None, None)
        content = await job.content()
        sent = _with_prefix(job.prefix, content)
        if not job.may_end_data():
            raise LeaseTooShort
        rank = CopyNumber(*FIRST_RANK, context.me.database)
        self._in_flight[message_id] = asyncio.get_running_loop().create_future()
        in_flight.append(message_id)
        stall_seconds = STALL_SECONDS if sent.size > LARGE_OCTETS else None
        offer = CopyOffer(rank, envelope, frozenset(), sent)
        reported = self._done_before_answer[message_id] = []
        try:
            answer = await context.links[server].track(offer, context.clock.awake() + RELAY_SECONDS, stall_seconds)
        finally:
            del self._done_before_answer[message_id]
        superseded_by = answer.superseded_by
        if superseded_by is not None and superseded_by.state is StatusState.UNKNOWN:
            # Its row has just expired: the next offer is new there.
            raise TransientDeliveryError(Reply(451, "4.3.0", "it was forgotten there"), server)
        done = (NO_ORDINALS if superseded_by is None else superseded_by.done).union(*reported).intersection(range(1, count + 1))
        state = None if superseded_by is None else superseded_by.state
        is_done = state is StatusState.DELIVERED or not all(reported) or len(done) >= count
        if is_done:
            text = f"Delivered there as {message_id}"
        elif state is StatusState.RELEASED:  # another server has it, with the copies that it wants: rules *higher* and *keep*
            text = f"Handed over there as {message_id}"
        else:
            text = f"Queued for delivery there as {message_id}; the shadow stays here"
        report = DeliveryReport(name, dict.fromkeys(sorted(job.ordinals), Reply(250, "2.0.0", text)))
        if is_done or state is StatusState.RELEASED:
            if self._is_of_earlier_process(stored):
                self._log_end(envelope, server, DiscardStatus.DELIVERED if is_done else DiscardStatus.RELEASED)
            return Relayed(server, report, None, None)
        next_hop = PeerDatabase(server, answer.server_database)
        number = (
            superseded_by.number
            if superseded_by is not None and superseded_by.state is StatusState.PRIMARY and superseded_by.number is not None
            else rank
        )
        if not rules.can_be_followed(number):  # no correct server answers so
            number = rank
        claim = claims.kept_claim(next_hop, number, count, done)
        if superseded_by is not None and rules.yielded_to(superseded_by, next_hop, context.me):
            self._yielded.add(message_id)
        keep_until = delivery.shadow_keep_until(context.now(), context.settings.transport)
        kept = NewMessage(envelope, claim, Origin.SHADOW, None, keep_until)
        return Relayed(server, report, kept, content if content.path is not None else None)

    def log_ends_elsewhere(self, stored: StoredMessage, destination: Destination, ordinals: Ordinals, taken: ServerName) -> None:
        """This fork has ended; the server `taken` has taken it, if it is set. An earlier process may have logged that it keeps a shadow for
        another server, and died before its commit. Log the end of that shadow as well."""
        if not self._is_of_earlier_process(stored):
            return
        for host in destination.hosts:
            server = self.server_at(host)
            if server is not None and server != taken:
                self._log_end(relayed_envelope(stored.envelope, server, ordinals), server, DiscardStatus.RELEASED)

    def _log_end(self, envelope: Envelope, server: ServerName, status: DiscardStatus) -> None:
        context = self._context
        context.tracking.write(
            tracking.hadiscard(
                context.me.server, envelope.message_id, at=context.now(), primary=server, envelope=envelope, status=status, is_kept=True
            )
        )

    def _is_of_earlier_process(self, stored: StoredMessage) -> bool:
        return stored.internal_id <= self._context.ledger.last_id_at_start

    def _may_have_been_offered(self, stored: StoredMessage) -> bool:
        """Whether an earlier attempt may have ended without its record."""
        return bool(stored.retries) or stored.is_promoted or self._is_of_earlier_process(stored)

    def end_in_flight(self, in_flight: Iterable[MessageId]) -> None:
        """The outcome of the attempt that relayed these is recorded, or will not be."""
        for message_id in in_flight:
            if (waiting := self._in_flight.pop(message_id, None)) is not None and not waiting.done():
                waiting.set_result(None)
            if message_id in self._yielded:
                self._yielded.discard(message_id)
                self._on_yielded(message_id)

    async def wait_until_recorded(self, events: Iterable[DiscardEvent]) -> None:
        """Wait until the ledger has the messages that were relayed just now: the next hop may deliver one before this node has recorded its
        shadow. An offer without an answer is not waited for. Its events are applied when the answer arrives; if none arrives, the message
        is offered again, and that answer contains them."""
        for event in events:
            reported = self._done_before_answer.get(event.message_id)
            if reported is not None and event.status is DiscardStatus.DELIVERED:
                reported.append(event.ordinals)
            elif reported is not None and event.status is DiscardStatus.FORKS:
                continue  # information only
            elif (waiting := self._in_flight.get(event.message_id)) is not None:
                await asyncio.shield(waiting)


def _with_prefix(prefix: bytes, content: Content) -> Content:
    """The content with the trace header of a takeover. Content in a file is sent without: the tracking log has the same information."""
    if not prefix or content.data is None:
        return content
    data = prefix + content.data
    return Content(len(data), hashlib.sha256(data).digest(), data)
