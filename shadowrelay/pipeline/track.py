"""Accepts a message from a previous hop that keeps its shadow (`TRACK`, as in Exchange 2010). docs/design.md 6.7, docs/protocol.md 6.

The message becomes a new primary message, as if this node had just placed a copy on the previous hop: that server is the chosen shadow
server, its lease begins with the arrival of MAIL, and it receives discard notifications like any shadow server. `pipeline.relay` is the
other end.
"""

from datetime import timedelta

import structlog

from shadowrelay.model.counts import Refusal
from shadowrelay.model.ids import MessageId
from shadowrelay.model.peers import CopyOffer, PeerIdentity
from shadowrelay.model.queue import NewMessage, Origin
from shadowrelay.model.replies import LOCAL_ERROR, LedgerUnavailable, Reply, queued_as
from shadowrelay.model.tracking import Replication
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery
from shadowrelay.store import promises, reading

# 555 is the reply to an unknown parameter. The previous hop then delivers the message without TRACK at once, instead of waiting.
NOT_LINKED = Reply(555, "5.5.4", "This server takes no XSHADOW=TRACK from you: send_xshadow is off here")
NUMBER_USED_UP = Reply(501, "5.5.4", "The copy's number leaves no room for a promotion")

_log = structlog.get_logger()


class TrackService:
    """Implements `smtp.reception.PeerRequests.track`."""

    def __init__(self, context: Context, deliver: DeliverService, copy_repair: CopyRepair) -> None:
        self._context = context
        self._deliver = deliver
        self._copy_repair = copy_repair

    async def take(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply | None:
        """Accept a message whose shadow `peer` keeps. Returns the reply, or None if the message is here already. The node owns the task, so
        it completes even if the session ends."""
        return await self._context.tasks.whole(self._take(peer, offer, began_awake), "track")

    async def _take(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply | None:
        context, envelope, content = self._context, offer.envelope, offer.content
        message_id, transport = envelope.message_id, context.settings.transport
        if peer.server not in context.peers:  # neither would ever poll the other for notifications
            return NOT_LINKED
        if not rules.can_be_followed(offer.number):
            return NUMBER_USED_UP
        previous = PeerDatabase(peer.server, peer.database)
        wanted = transport.shadow_copies if context.settings.is_copied(envelope.connector) else 0
        shared = context.shared_fate(peer.server)
        claim = claims.relayed_claim(context.me, previous, offer.number, len(envelope.recipients), wanted, shared)
        now, started = context.now(), context.clock.awake()
        envelope = delivery.by_this_clock(envelope, now)
        message = NewMessage(envelope, claim, Origin.CLIENT, now, delivery.remember_until(now, transport))
        if not context.attempts.begin(message_id):  # it is here, and an attempt runs; or an earlier offer of it is still being accepted
            return None if await self._is_here(message_id) else LOCAL_ERROR
        try:
            stored = await context.ledger.commit(promises.accepted, message, content, decided=True)
        except LedgerUnavailable as error:
            context.attempts.end(message_id)
            if await self._is_here(message_id):
                return None
            context.counts.refused[Refusal.LEDGER] += 1
            _log.warning("message.refused", message_id=message_id, reason=error.reason)
            return error.reply
        except BaseException:
            context.attempts.end(message_id)
            raise
        context.leases.began(message_id, peer.server, began_awake, is_confirmed=True)
        elapsed = timedelta(seconds=context.clock.awake() - started)
        replication = Replication.FAILED if shared.is_own else Replication.SUCCESS
        context.tracking.write(
            tracking.receive(
                context.me.server, stored, at=context.now(), replication=replication, ack_elapsed=elapsed, size=content.size,
                copies=(0 if shared.is_own else 1, max(wanted, 1)), previous_hop=peer.server,
                shared_fate=(peer.server,) if shared.is_own else (),
            )
        )  # fmt: skip
        context.counts.acknowledged[replication] += 1
        context.counts.shared_fate += shared.is_own
        if stored.claim.missing_count:
            self._copy_repair.want(message_id)
        self._deliver.deliver_accepted(stored, None if content.path is not None else content)
        return queued_as(message_id)

    async def _is_here(self, message_id: MessageId) -> bool:
        return await self._context.ledger.read(reading.load, message_id) is not None
