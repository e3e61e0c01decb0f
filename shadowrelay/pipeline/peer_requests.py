"""Answers the requests of peers: hello, HOLD, TRACK, XQDISCARD, STATUS. docs/protocol.md 5, 6, 9, 10.

Implements `smtp.reception.PeerRequests`.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

import structlog

from shadowrelay import __version__
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import (
    Claim,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Role,
    StatusAnswer,
    StatusQuestion,
    StatusState,
    Transition,
)
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.queue import NewMessage, Origin
from shadowrelay.model.replies import LedgerUnavailable, Reply
from shadowrelay.model.settings import PeersMayRelay
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.common_settings import common_settings
from shadowrelay.pipeline.context import LEDGER_AGAIN_SECONDS, Context
from shadowrelay.pipeline.copy_limits import CopyLimits
from shadowrelay.pipeline.peerbook import PeerState
from shadowrelay.pipeline.rolled_back import OLDER_COPY, STARTS_AGAIN, RolledBackService
from shadowrelay.pipeline.track import NUMBER_USED_UP, TrackService
from shadowrelay.protocol import tracking
from shadowrelay.protocol.fields import SPAN_MAX
from shadowrelay.protocol.xqdiscard import format_superseded
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.back_pressure import Level
from shadowrelay.rules.placement import not_accepted
from shadowrelay.store import peer_promises, promises, reading

HELD = Reply(250, "2.0.0", "Held")
LOOK_SECONDS = 0.05
NOT_ACCEPTED = Reply(550, "5.1.1", "This server does not deliver to one of these recipients: peers_may_relay")
NO_PEER_ANY_MORE = Reply(451, "4.7.1", "This server does not hold copies for you: it is not configured as your peer any more")
NOT_POLLED = Reply(451, "4.7.1", "This server does not hold copies for you: send_xshadow is off here")  # RFC 3463 X.7.1
PROCESS_ENDED = Reply(451, "4.3.0", "This session is of a process that has ended")

_log = structlog.get_logger()


class PeerRequestService:
    """One method per SMTP command of an authorised peer."""

    def __init__(self, context: Context, rolled_back: RolledBackService, track: TrackService, limits: CopyLimits) -> None:
        self._context = context
        self._rolled_back = rolled_back
        self._track = track
        self._limits = limits
        self._sent: dict[PeerDatabase, int] = {}  # highest sequence that this process has sent to each peer
        self._acknowledged: dict[PeerDatabase, int] = {}  # highest sequence that each has acknowledged, in a commit
        self._unrecorded: dict[ServerName, tuple[PeerIdentity, datetime]] = {}  # the latest identity, and when it was received
        self._recording: set[ServerName] = set()  # whose identity is being recorded in the background

    def own_identity(self, listener: ServerName, database: DatabaseId = NO_DATABASE) -> PeerIdentity:
        """See `smtp.reception.PeerRequests`."""
        context = self._context
        identity = context.ledger.identity
        server = context.settings.server
        seen_of = database or context.peers.party(listener).database
        seen = context.ledger.peers.seen(listener, seen_of) if seen_of else None
        return PeerIdentity(
            server.name, server.boundary, identity.database, identity.incarnation, identity.began, context.ledger.position,
            context.settings.transport.shadow_resubmit_time_span, seen, seen_of if seen is not None else NO_DATABASE,
            identity.former, context.is_draining, common_settings(context.settings.transport, context.route_digests),
            min(context.leases.track_span, SPAN_MAX) if context.settings.tracks else None,
            context.peers.fates.mine.machine, context.peers.fates.mine.domains, __version__,
        )  # fmt: skip

    @property
    def position(self) -> int:
        """See `smtp.reception.PeerRequests`."""
        return self._context.ledger.position

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        """See `smtp.reception.PeerRequests`."""
        if (failure := self._context.commit_failure) is not None:
            return Reply(
                451, "4.3.0", f"This server cannot {failure.cannot} since {failure.since:%Y-%m-%dT%H:%M:%SZ}, and counts as silent"
            )
        reason = self._context.peers.conflict(self._context.me, identity)
        return Reply(550, "5.7.1", f"Refused: {reason}") if reason else self._rolled_back.refusal(identity)

    async def second_server(self, identity: PeerIdentity, address: str, began_at: float, *, is_dialed: bool = False) -> str:
        """See `smtp.reception.PeerRequests`. The known process keeps the name until it has ended, or was silent for the span: its messages,
        copies and leases are those that this node knows. That it answers late, or not at all, is no end. docs/design.md 6.6."""
        context, server, process = self._context, identity.server, identity.whole_incarnation
        peers = context.peers
        while True:
            state, link = peers.states.get(server), context.links.get(server)
            if state is None or link is None:
                return ""
            known = state.whole_incarnation
            if not state.is_met or process == known or state.accepted == (known, process):
                is_known = state.is_successor if state.is_met else state.database in (NO_DATABASE, identity.database)
                state.is_successor, state.spoke_from = is_known or (is_dialed and not state.is_former_elsewhere), address
                state.at_address = process if is_dialed else state.at_address
                return ""
            was_met_there = state.at_address == known or (not is_dialed and address == state.spoke_from)
            is_ended = is_dialed and state.at_address == known  # who calls proves no end of a database: its process may start again
            refusal = ""
            if self._ran_before(identity, state, began_at, is_dialed=is_dialed):
                peers.note_second(server, process, address, "ran before", known, state.spoke_from)
                state.newer.add(known)
            elif not state.is_forgotten and peers.silence(server) < context.leases.silence_limit(server):
                alive = Alive.ANSWERS if process in state.newer else await link.alive(known, is_dialed=is_dialed)
                if state.whole_incarnation != known:
                    continue  # another process became the peer meanwhile: is this one another than that?
                if alive is Alive.ENDED and not (was_met_there or is_dialed):
                    alive = Alive.SILENT  # who answers at the address, where the known process never did, proves nothing about it
                if alive is not Alive.ENDED:
                    there = state.spoke_from if process in state.newer else str(state.peer.address)
                    refusal = peers.note_second(server, known, there, alive.value, process, address)
            else:
                is_ended = True
            if not refusal:
                state.is_successor, state.is_former_elsewhere, state.accepted = is_ended, not was_met_there, (known, process)
                state.spoke_from, state.at_address = address, process if is_dialed else state.at_address
            return refusal

    def _ran_before(self, identity: PeerIdentity, state: PeerState, began_at: float, *, is_dialed: bool) -> bool:
        """Whether the server's former process speaks, in a session begun after the present one was accepted: it has run all the time.
        Of two that opened one database anew, a node and a clone of it, the one at the peer's address keeps the name."""
        context, database = self._context, identity.database
        if database in (state.database, state.former) or not context.ledger.peers.was_heard_before(database, state.database):
            return False
        if NO_DATABASE != identity.former == state.former and state.at_address == state.whole_incarnation and not is_dialed:
            return False
        seen = context.ledger.peers.seen(identity.server, database)
        is_same_process = seen is not None and (seen.incarnation, seen.began) == (identity.incarnation, identity.began)
        return is_same_process and asyncio.get_running_loop().time() - began_at < context.clock.awake() - state.present_since

    async def greeted(self, identity: PeerIdentity) -> PeerIdentity:
        """A peer identified itself: record that, and check whether its database changed. Returns our identity for the answer; it contains
        what this node had seen of the peer's database before this session."""
        context = self._context
        answer = self.own_identity(identity.server, identity.database)
        context.leases.learn_span(identity.server, identity.span, identity.track)
        context.peers.learn_fate(identity)
        server, latest = identity.server, (identity, context.now())
        self._unrecorded[server] = latest
        try:
            await context.ledger.commit(peer_promises.peer_heard, *latest)
        except LedgerUnavailable as error:
            _log.warning("peer.unrecorded", server=server, reason=error.reason)
            if server not in self._recording:
                self._recording.add(server)
                context.tasks.spawn(self._record_later(server), f"record {server}")
        else:
            self._recorded(server, latest)
        link = context.links.get(identity.server)
        is_ours = link is not None and link.identity is not None and link.identity.whole_incarnation == identity.whole_incarnation
        context.peers.identified(identity, is_ours=is_ours)
        context.peers.compare(context.settings, context.route_digests)
        context.peers.note_contact(identity.server)
        return answer

    def _recorded(self, server: ServerName, latest: tuple[PeerIdentity, datetime]) -> None:
        if self._unrecorded.get(server) is latest:  # otherwise a newer one is still unrecorded
            del self._unrecorded[server]

    async def _record_later(self, server: ServerName) -> None:
        """Repeat until it is recorded: the next session may be days away, and a restart needs the identity."""
        try:
            while server in self._unrecorded:
                await asyncio.sleep(LEDGER_AGAIN_SECONDS)
                if (latest := self._unrecorded.get(server)) is None:
                    return
                with contextlib.suppress(LedgerUnavailable):
                    await self._context.ledger.commit(peer_promises.peer_heard, *latest)
                    self._recorded(server, latest)
        finally:
            self._recording.discard(server)

    def offers_hold(self) -> bool:
        """Whether our EHLO offers HOLD."""
        context = self._context
        return context.is_enabled and not context.is_draining and context.commit_failure is None and context.pressure.level is Level.NORMAL

    def offers_track(self) -> bool:
        """Whether this node takes mail now, so that our EHLO may offer TRACK."""
        context = self._context
        return (
            context.is_enabled and not context.is_draining and context.commit_failure is None and context.pressure.level is not Level.HIGH
        )

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """See `smtp.reception.PeerRequests`."""
        self._context.peers.heard(server, database)

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        """See `smtp.reception.PeerRequests`."""
        if self._context.commit_failure is None:
            self._context.leases.proved(server, database, answered_awake)

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply:
        """Store a shadow copy. The reply 250 promises that it is on the disk."""
        context = self._context
        if peer.server not in context.peers:  # this node never polls it, so it could neither discard nor correctly promote its copies
            _log.warning("copy.refused", peer=peer.server, reason="this node does not place copies on it, nor ask it")
            return NOT_POLLED
        if context.peers.is_leaving(peer.server):
            _log.info("copy.refused", peer=peer.server, reason="it is in the configuration no more")
            return NO_PEER_ANY_MORE
        party = PeerDatabase(peer.server, peer.database)
        if self._is_of_ended_process(peer):  # copies of that process were reconciled when the peer restarted: nothing would end this one
            _log.info("copy.refused", peer=peer.server, reason="the network kept it until its server had been started again")
            return PROCESS_ENDED
        settings = context.settings
        if settings.transport.peers_may_relay is not PeersMayRelay.ALL and (stranger := not_accepted(offer.envelope, settings)):
            _log.warning("copy.refused", peer=peer.server, reason=f"peers_may_relay: no client may send to {stranger} here")
            return NOT_ACCEPTED
        if (too_much := await self._limits.refusal(peer.server, offer.envelope, offer.content.size)) is not None:
            return too_much
        count = len(offer.envelope.recipients)
        now = context.now()
        keep_until = delivery.shadow_keep_until(now, context.settings.transport)
        offer = replace(offer, envelope=delivery.by_this_clock(offer.envelope, now))
        offered = Claim(Role.SHADOW, offer.number, count, offer.done, peer.server, peer.database)
        message = NewMessage(offer.envelope, offered, Origin.SHADOW, None, keep_until)

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            if self._is_of_ended_process(peer):  # the peer restarted while the content was written
                return Transition(claim, claim, outcome=Outcome.REFUSED)
            transition = claims.hold(claim, context.me, party, offer.number, count, offer.done)
            if claim is not None:
                self._note_listed(message_id, party, transition)
            return transition

        try:
            transition = await context.ledger.commit(promises.hold, message, offer.content, decide)
        except LedgerUnavailable as error:
            return error.reply
        if transition.before is not None:
            self._note_listed(message.envelope.message_id, party, transition)  # again, after the commit
        if transition.outcome == Outcome.REFUSED:
            return PROCESS_ENDED if self._is_of_ended_process(peer) else NUMBER_USED_UP
        if transition.outcome == Outcome.SUPERSEDED and transition.answer is not None:
            return await self._superseded(message.envelope.message_id, transition, transition.answer)
        if context.settings.transport.duplicate_detection_window:
            context.repeats.note_held(offer.envelope)
        context.tracking.write(
            tracking.hareceive(context.me.server, offer.envelope, at=context.now(), primary=peer.server, size=offer.content.size)
        )
        return HELD

    async def _superseded(self, message_id: MessageId, transition: Transition, answer: StatusAnswer) -> Reply:
        for unreported in (await self._context.ledger.read(reading.unreported_of, [message_id])).values():
            answer = _without_unreported(answer, unreported, transition.after)
        return Reply(554, "5.5.0", format_superseded(answer))

    async def track(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply:
        """Take a message that the peer relays and keeps the shadow of. If it is here already, the reply reports its status."""
        if stranger := not_accepted(offer.envelope, self._context.settings):
            _log.warning("copy.refused", peer=peer.server, reason=f"peers_may_relay: no client may send to {stranger} here")
            return NOT_ACCEPTED
        reply = await self._track.take(peer, offer, began_awake)
        if reply is not None:
            return reply
        context, message_id, party = self._context, offer.envelope.message_id, PeerDatabase(peer.server, peer.database)

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = claims.relayed_again(claim, context.me, party)
            self._note_listed(message_id, party, transition)
            return transition

        try:
            (transition,) = await context.ledger.commit(promises.transition, (message_id,), decide)
        except LedgerUnavailable as error:
            return error.reply
        self._note_listed(message_id, party, transition)  # again, after the commit
        return await self._superseded(message_id, transition, transition.answer or StatusAnswer(StatusState.UNKNOWN))

    def _is_of_ended_process(self, peer: PeerIdentity) -> bool:
        """The session began before the peer restarted."""
        state = self._context.peers.states[peer.server]
        return state.database == peer.database and peer.incarnation < state.incarnation

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply:
        """The notifications for `peer`. An acknowledgement counts only for those that this process has sent."""
        context = self._context
        party = PeerDatabase(peer.server, peer.database)
        sent = self._sent.get(party, 0)
        if acknowledged is not None and (acknowledged := min(acknowledged, sent)) > self._acknowledged.get(party, 0):
            await context.tasks.whole(self._forget(party, acknowledged), f"acknowledged by {peer.server}")
            self._acknowledged[party] = max(acknowledged, self._acknowledged.get(party, 0))  # no later notification has a lower sequence
        reply = await context.ledger.discards_for(peer.server, peer.database, maximum)
        if reply.events:
            # The peer discards its copies when it receives this reply; from then on our tracking log is the only evidence.
            await context.tracking.sync()
            self._sent[party] = max(sent, reply.events[-1].sequence)
        return reply

    async def _forget(self, party: PeerDatabase, acknowledged: int) -> None:
        """What it has acknowledged. A row says of each copy that was given up that it has ended."""
        changes: dict[MessageId, Transition] = {}

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            changes[message_id] = self._apply_acknowledged(party, message_id, claim)
            return changes[message_id]

        await self._context.ledger.commit(promises.forget_acknowledged, party.server, party.database, acknowledged, decide)
        given_up = [message_id for message_id, change in changes.items() if change.outcome is Outcome.RELEASED]
        await self._context.log_discarded(party.server, [DiscardEvent(0, message_id, DiscardStatus.RELEASED) for message_id in given_up])

    async def wait_for_acknowledgements(self, seconds: float) -> frozenset[ServerName]:
        """Wait at most `seconds` until every peer that answers has acknowledged its notifications. Messages whose notifications do not
        arrive before this node stops are delivered again after the span. Returns the peers that have not acknowledged."""
        context = self._context
        deadline = context.clock.awake() + seconds
        while waiting := await self._with_unacknowledged():
            if context.clock.awake() >= deadline:
                break
            await asyncio.sleep(LOOK_SECONDS)
        return waiting

    async def _with_unacknowledged(self) -> frozenset[ServerName]:
        context = self._context
        waiting = set()
        for server, state in tuple(context.peers.states.items()):
            answers = state.unreachable_since is None and state.heard_awake is not None
            if answers and await context.ledger.read(reading.has_unacknowledged, server, state.database):
                waiting.add(server)
        return frozenset(waiting)

    def _apply_acknowledged(self, party: PeerDatabase, message_id: MessageId, claim: Claim | None) -> Transition:
        """The peer acknowledged our `released`. It leaves the list only if its lease still runs: otherwise it may have promoted before."""
        if claim is None:
            return Transition(None, None)
        entry = claim.copy_on(party.server)
        lease_runs = entry is not None and self._context.leases.left(message_id, entry) > 0
        return claims.released_acknowledged(claim, party, lease_runs)

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """Answer, and apply the rules for these questions to our own claims, in one commit. Raises: LedgerUnavailable, also if a question
        shows that the database is an older copy: no answer of it describes the present."""
        context = self._context
        asker = PeerDatabase(peer.server, peer.database)
        numbers = {question.message_id: question.number for question in questions}

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            return self._answer(message_id, claim, asker, numbers[message_id])

        transitions = await context.end_claims(list(numbers), decide)
        answers = dict(zip(numbers, transitions, strict=True))
        if any(transition.outcome == Outcome.OLDER_COPY for transition in transitions):
            self._rolled_back.proved(peer.server)
            raise LedgerUnavailable(STARTS_AGAIN, OLDER_COPY)
        for message_id, transition in answers.items():
            self._note_listed(message_id, asker, transition)  # again, after the commit
            if transition.changed:
                _log.info(
                    "claim.asked",
                    message_id=message_id,
                    asker=peer.server,
                    outcome=transition.outcome,
                    role=transition.after and transition.after.role,
                )
        reported = {message_id: transition.answer or StatusAnswer(StatusState.UNKNOWN) for message_id, transition in answers.items()}
        done = [message_id for message_id, answer in reported.items() if answer.done]
        for message_id, unreported in (await context.ledger.read(reading.unreported_of, done) if done else {}).items():
            reported[message_id] = _without_unreported(reported[message_id], unreported, answers[message_id].after)
        return tuple(reported[question.message_id] for question in questions)

    def _answer(self, message_id: MessageId, claim: Claim | None, asker: PeerDatabase, number: CopyNumber) -> Transition:
        context = self._context
        if claim is None and context.flights[message_id].is_busy:  # still being accepted: active
            answer = StatusAnswer(StatusState.PRIMARY, CopyNumber(1, 1, context.me.database))
            return Transition(None, None, answer=answer)
        number_server = context.ledger.peers.server_of(number.database)
        transition = claims.answer_question(claim, context.me, asker, number, number_server, in_attempt=False)
        ends = claim is not None and claim.is_primary and transition.after is not None and not transition.after.is_primary
        if ends and not context.flights.happens(message_id, flight.end_claim):
            transition = claims.answer_question(claim, context.me, asker, number, number_server, in_attempt=True)
        self._note_listed(message_id, asker, transition)
        return transition

    def _note_listed(self, message_id: MessageId, asker: PeerDatabase, transition: Transition) -> None:
        """If the question put the peer on our list, an attempt that runs must not end without a lease on it: the peer may not receive our
        answer. Called in the transaction and after its commit, because an attempt may begin between the two."""
        before, after = transition.before, transition.after
        if before is None or after is None or not after.is_primary:
            return
        was, entry = before.copy_on(asker.server), after.copy_on(asker.server)
        if entry is not None and (was is None or was.database != entry.database):
            self._context.flights.happens(message_id, flight.change)
            self._context.leases.begin_without_lease(message_id, asker.server)


def _without_unreported(answer: StatusAnswer, unreported: Ordinals, claim: Claim | None) -> StatusAnswer:
    """I3: answers, like notifications, omit recipients whose DSN has no second copy yet. Until then the message is not reported done."""
    left = answer.done - unreported if unreported else NO_ORDINALS
    if answer.state is not StatusState.DELIVERED or claim is None:
        return replace(answer, done=left)
    return StatusAnswer(StatusState.PRIMARY, claim.number, done=left)
