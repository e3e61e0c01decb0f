"""Polls each primary server for discard notifications, which is also the heartbeat, and has a session for copies held ready with each
that answers and takes them. docs/protocol.md 9, 15, docs/design.md 4.

The interval is discard_poll_interval while shadow messages are held for the server, an acknowledgement is due, or the server drains,
else shadow_heartbeat_frequency; never more than the latter, nor than shadow_heartbeat_timeout_interval while messages are held that were
relayed to the server by TRACK, also while it does not answer: its silence is counted in these. One task per peer, one XQDISCARD at a
time. A reply is committed before the next question acknowledges it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Envelope
from shadowrelay.model.ownership import Claim, DiscardEvent, Transition
from shadowrelay.model.peers import DiscardReply, PeerIdentity
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable
from shadowrelay.model.tracking import Acknowledged
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.context import Context, woken_within
from shadowrelay.pipeline.follow import FollowService
from shadowrelay.pipeline.promote import PromoteService
from shadowrelay.pipeline.relay import RelayService
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.pipeline.site_copies import choosable
from shadowrelay.rules import delivery, flight
from shadowrelay.store import peer_promises, promises, reading

DISCARDS_PER_QUESTION = 400  # docs/protocol.md 9: never more in a reply

_log = structlog.get_logger()


class Session(Protocol):
    """A link to a peer, or one session of it."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity | None: ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...


class HeartbeatService:
    """Keeps one session with each peer, and applies the notifications received in it."""

    def __init__(
        self, context: Context, promote: PromoteService, review: ReviewService, follow: FollowService, relay: RelayService
    ) -> None:
        self._context = context
        self._promote = promote
        self._review = review
        self._follow = follow
        self._relay = relay
        self._acknowledged: dict[tuple[ServerName, str, int], int] = {}
        self._held: dict[ServerName, int] = {}
        self._kept: frozenset[ServerName] = frozenset()  # servers for which shadows are kept of what was relayed to them
        self._repeating: set[ServerName] = set()  # servers whose last reply repeated acknowledged events
        self._unacknowledged: set[ServerName] = set()  # servers whose last reply had events: the next question acknowledges them
        self._asking = {server: asyncio.Lock() for server in context.peers.states}

    def held(self) -> Mapping[str, int]:
        """Shadow messages by primary server, as last counted."""
        return {str(server): count for server, count in self._held.items()}

    def start(self) -> None:
        """Start one task per peer, and one that counts the shadow messages held for each."""
        for server in self._context.peers.states:
            self._context.tasks.keep(partial(self._watch, server), f"heartbeat {server}")
        self._context.tasks.keep(self._count_held, "heartbeat holdings")

    def add(self, server: ServerName) -> None:
        """A peer that came while the node runs, or came again."""
        self._asking[server] = asyncio.Lock()
        self._context.tasks.keep(partial(self._watch, server), f"heartbeat {server}")

    async def _count_held(self) -> None:
        while True:
            try:
                held: dict[ServerName, int] = {}
                groups = await self._context.ledger.read(reading.shadow_groups)
                for group in groups:
                    held[group.primary] = held.get(group.primary, 0) + group.count
                kept = frozenset(group.primary for group in groups if group.kept_count)
                began = (held.keys() - self._held.keys()) | (kept - self._kept)
                self._held, self._kept = held, kept
                for server in began & self._context.peers.states.keys():
                    self._context.peers.states[server].wake.set()  # poll at discard_poll_interval from now on
            except LedgerUnavailable as error:
                _log.warning("heartbeat.holdings_unknown", reason=error.reason)
            await asyncio.sleep(self._context.settings.transport.discard_poll_interval.total_seconds())

    async def _watch(self, server: ServerName) -> None:
        state = self._context.peers.states[server]
        failures, said = 0, ""
        while not state.is_gone:
            try:
                if self._context.commit_failure is None and await self._is_wanted(server):
                    await self._ask(server)
                    await self._save_position(server)
                    self._context.links[server].hold_ready(is_wanted=self._takes_copies(server))
                failures, said = 0, ""
            except PeerUnavailable as error:
                failures += 1
                self._context.links[server].hold_ready(is_wanted=False)
                self._context.peers.failed(server, error.reason)
                if error.reason != said:  # log once, and again for another reason
                    said = error.reason
                    _log.warning("peer.silent", server=server, reason=said)
            except LedgerUnavailable as error:
                _log.warning("discards.unrecorded", server=server, reason=error.reason)
            state.wake.clear()
            await woken_within(state.wake, self._pause(server, failures))

    async def _is_wanted(self, server: ServerName) -> bool:
        """Whether to poll: always with redundancy enabled; otherwise only while messages are left from before."""
        context = self._context
        return context.is_enabled or bool(self._held.get(server)) or bool(await context.ledger.read(reading.primaries_listed_on, server, 1))

    def _takes_copies(self, server: ServerName) -> bool:
        """Whether the next copy may go to this peer, so that a session is held ready for it."""
        context = self._context
        is_choosable = context.is_enabled and any(peer.name == server for peer in choosable(context.settings))
        return is_choosable and not context.peers.drains(server) and context.peers.may_try(server)

    def _pause(self, server: ServerName, failures: int) -> float:
        transport = self._context.settings.transport
        heartbeat = transport.shadow_heartbeat_frequency.total_seconds()
        if server in self._kept:  # Source: seed-003
            heartbeat = min(heartbeat, transport.shadow_heartbeat_timeout_interval.total_seconds())
        poll = transport.discard_poll_interval.total_seconds()
        if failures:
            return min(poll * 2.0 ** min(failures, 10), heartbeat)
        is_awaited = self._held.get(server) or server in self._unacknowledged or self._context.peers.states[server].is_draining
        return min(poll, heartbeat) if is_awaited else heartbeat

    async def opened(self, session: Session) -> None:
        """XQDISCARD is issued in every session between nodes, whatever it was opened for. One at a time for each pair."""
        if not self._asking[session.server].locked():
            async with self._asking[session.server]:
                assert session.identity is not None
                await self._ask_on(session, session.identity)

    async def _save_position(self, server: ServerName) -> None:
        """Write what all peers told, if no commit has done so for a heartbeat: a restart of this node must not forget it."""
        context = self._context
        identity, peers = context.links[server].identity, context.ledger.peers
        if server in peers.told_unsaved and identity is not None and not peers.were_saved_within(context.heartbeat, context.now()):
            await context.ledger.commit(peer_promises.peer_heard, identity, context.now())

    async def _ask(self, server: ServerName) -> None:
        link = self._context.links[server]
        async with self._asking[server]:
            await self._ask_on(link, await link.greet())

    async def _ask_on(self, link: Session, identity: PeerIdentity) -> None:
        context = self._context
        server = identity.server
        party = PeerDatabase(server, identity.database)
        key = (server, identity.database, identity.incarnation)
        while True:
            if key not in self._acknowledged:
                self._acknowledged[key] = await context.ledger.read(reading.acknowledged, *key)
            spoke_at = context.clock.awake()
            reply = await link.discards(DISCARDS_PER_QUESTION, self._acknowledged[key])
            if link.identity is None or link.identity.database != identity.database:
                return  # another database answered: sequences are per database
            context.peers.note_contact(server)
            context.peers.answered(server)
            context.leases.proved(server, identity.database, spoke_at)  # our command reset its silence timer
            if not reply.events:
                self._unacknowledged.discard(server)
                return
            if reply.events[-1].sequence <= self._acknowledged[key]:
                if server not in self._repeating:
                    _log.warning("discards.repeated", server=server, acknowledged=self._acknowledged[key])
                self._repeating.add(server)
                return  # the next poll asks again
            self._repeating.discard(server)
            self._unacknowledged.add(server)
            await context.tasks.whole(self._apply(party, identity.incarnation, reply), f"discards {server}")
            self._acknowledged[key] = reply.events[-1].sequence
            if not reply.remaining:
                return

    async def _apply(self, speaker: PeerDatabase, incarnation: int, reply: DiscardReply) -> None:
        context = self._context
        await self._relay.wait_until_recorded(reply.events)

        def decide(event: DiscardEvent, claim: Claim | None) -> Transition:
            transition = claims.heard(claim, speaker, event)
            if not context.call_off_done(event.message_id, transition) and transition.changed:
                context.flights.happens(event.message_id, flight.change)
            return transition

        keep_until = delivery.safety_net_until(context.now(), context.settings.transport)
        envelopes, keys = await self._reached(reply.events)
        transitions = await context.ledger.commit(
            promises.discards, speaker.server, speaker.database, incarnation, reply.events, decide, keep_until, keys
        )
        for event, transition in zip(reply.events, transitions, strict=True):
            is_changed = transition.changed
            if is_changed and not context.call_off_done(event.message_id, transition):
                context.flights.happens(event.message_id, flight.change)
            if transition.outcome == Outcome.REVIEW:
                self._review.suspect(event.message_id, speaker.server)
            elif transition.outcome == Outcome.FOLLOW:
                self._follow.want(event.message_id)
            elif transition.outcome == Outcome.MEET:
                self._follow.want(event.message_id, speaker.server)
            elif transition.outcome == Outcome.HANDED:
                self._promote.wake()
            elif transition.outcome == Outcome.DONE:
                context.leases.forget(event.message_id)
                if context.delayed.waiting:
                    context.delayed.end(event.message_id, Acknowledged.DONE)
            if is_changed and context.repeats.waiting:
                context.repeats.ended(event.message_id)
        await context.log_discarded(speaker.server, rules.discarded(reply.events, transitions), envelopes)

    async def _reached(
        self, events: Sequence[DiscardEvent]
    ) -> tuple[Mapping[MessageId, tuple[int, Envelope]], Mapping[MessageId, Mapping[int, bytes]]]:
        """Envelopes of the messages of which recipients were reached, and what is recorded of these to recognise the messages when they are
        sent again, to this node. docs/design.md 6.5. Raises: LedgerUnavailable."""
        context = self._context
        reached = [event.message_id for event in events if event.is_reached]
        if not reached or not context.settings.transport.duplicate_detection_window:
            return {}, {}
        envelopes = await context.ledger.read(reading.envelopes, reached)
        return envelopes, {message_id: context.repeats.keys_of(envelope) for message_id, (_, envelope) in envelopes.items()}
