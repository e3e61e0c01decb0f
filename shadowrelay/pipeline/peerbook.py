"""Tracks each peer's current state: last contact, database, circuit breaker, turns. docs/architecture.md "Circuit breaker".

Large copies to one peer take turns. If a burst of them were sent at once, none would arrive in time; sent one after the other, all do.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName
from shadowrelay.model.ownership import Copy
from shadowrelay.model.peers import NO_INCARNATION, Incarnation, PeerIdentity
from shadowrelay.model.queue import PeerRow
from shadowrelay.model.readiness import Takes
from shadowrelay.model.settings import Peer, Settings
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline import common_settings
from shadowrelay.ports import Clock
from shadowrelay.rules import placement as circuit
from shadowrelay.rules.fates import Fates, fate_of
from shadowrelay.rules.placement import LARGE_OCTETS, TURN_OCTETS_MAX


class Turns:
    """First come, first served; small copies do not wait. Units: octets."""

    def __init__(self, octets_max: int = TURN_OCTETS_MAX) -> None:
        self._octets_max = octets_max
        self._octets = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for room among the copies in progress; a copy larger than the limit goes alone."""
        if size <= LARGE_OCTETS:
            yield
            return
        await self._enter(size)
        try:
            yield
        finally:
            self._octets -= size
            self._let_in()

    async def _enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._let_in()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._octets -= size
            with contextlib.suppress(ValueError):
                self._waiting.remove((size, turn))
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and (not self._octets or self._octets + self._waiting[0][0] <= self._octets_max):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._octets += size
                turn.set_result(None)


_log = structlog.get_logger()


@dataclass(slots=True)
class PeerState:
    """One peer. `heard_ran` is in `Clock.ran`: silence counts only while this node itself ran."""

    peer: Peer
    heard_ran: float
    database: DatabaseId = NO_DATABASE
    incarnation: int = 0
    began: int = 0
    recorded: Incarnation | None = None  # in the ledger when this node started
    to_confirm: Incarnation | None = None  # it came back with this one, and was not asked about all copies on it yet
    former: DatabaseId = NO_DATABASE  # the id of its database before it was found to be an older copy
    heard_awake: float | None = None
    contact_awake: float = 0.0  # it answered a poll, or greeted this node; until then, the start
    breaker: circuit.Breaker = circuit.CLOSED
    evidence: circuit.CopyEvidence = circuit.NOTHING_TRIED
    copies_in_flight: int = 0
    turns: Turns = field(default_factory=Turns)  # of copies that clients wait for
    repair_turns: Turns = field(default_factory=Turns)  # of all other copies, which may take an hour
    present_since: float = 0.0  # `Clock.awake`: since when this process counts as the server
    present_ran: float = 0.0  # the same in `Clock.ran`
    spoke_from: str = ""  # the address of that process
    at_address: Incarnation = NO_INCARNATION  # who answered last at the configured address: whoever else does proves its end
    accepted: tuple[Incarnation, Incarnation] = (NO_INCARNATION, NO_INCARNATION)  # the second in place of the first, recorded or not
    is_former_elsewhere: bool = False  # the process before it was never met where this one is: nothing there proves its end
    is_successor: bool = True  # False: the server's former process, with another database, may run for all that is known
    newer: set[Incarnation] = field(default_factory=set)  # second servers of its name, refused while this one is heard
    refuses_us: str = ""  # why it takes this node for the second server of its name, until it accepts a session of ours
    unreachable_since: float | None = None  # `Clock.ran`: time in which this node was suspended does not count
    last_error: str = ""  # why it gave no session or no answer; empty while it answers
    copies_refused: str = ""  # why this node held no more copies of it, until it holds one again
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_draining: bool = False
    is_forgotten: bool = False  # by an administrator, until it contacts this node
    features: tuple[str, ...] = ()  # that its EHLO offered in the last session of ours
    is_leaving: bool = False  # it is not in the configuration any more, but holds copies, or is owed something
    is_gone: bool = False  # nor that: it is no peer
    position: int = 0  # position of its database in the latest report of whether it drains: an older report must not overwrite a newer one
    identity: PeerIdentity | None = None  # the latest
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # `common_settings.differences`

    @property
    def party(self) -> PeerDatabase:
        return PeerDatabase(self.peer.name, self.database)

    @property
    def whole_incarnation(self) -> Incarnation:
        return Incarnation(self.database, self.incarnation, self.began)

    @property
    def is_met(self) -> bool:
        """It has been in a session with this process."""
        return self.incarnation > 0


class PeerStates(dict[ServerName, PeerState]):
    """By name. A peer that has left is in no listing and no count, but work that is under way for it still finds it by its name."""

    def __init__(self, states: Mapping[ServerName, PeerState]) -> None:
        super().__init__(states)
        self.gone: dict[ServerName, PeerState] = {}

    def __missing__(self, server: ServerName) -> PeerState:
        return self.gone[server]


SECOND_SERVER = "two servers have the name"  # docs/protocol.md 5: begins the refusal of the second of them
SECOND_HEARTBEATS = 3  # without another try, the second server of a name has gone


class PeerBook:
    """All configured peers of this boundary. Callbacks notify the services of new databases, incarnations and returns."""

    def __init__(
        self, peers: Iterable[Peer], clock: Clock, heartbeat_seconds: float, fates: Fates | None = None, own_hosts: Iterable[str] = ()
    ) -> None:
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self.states = PeerStates({peer.name: PeerState(peer, clock.ran(), contact_awake=clock.awake()) for peer in peers})
        self._contradictions: dict[ServerName, str] = {}  # peers refused for their name or database, and why
        # refused second servers of a name: why, `Clock.awake`, and who
        self._seconds: dict[ServerName, tuple[str, float, Incarnation]] = {}
        self.on_new_database: list[Callable[[ServerName, DatabaseId, DatabaseId], None]] = []
        self.on_new_incarnation: list[Callable[[ServerName, bool], None]] = []  # True: it was recorded before this node started
        self.on_return: list[Callable[[ServerName, float], None]] = []
        self.on_remembered: list[Callable[[PeerIdentity], None]] = []  # a forgotten peer contacted this node
        self.on_available: list[Callable[[ServerName], None]] = []  # copies may be sent to it again
        self.on_other_process: list[Callable[[ServerName, Incarnation], None]] = []  # which counts as the peer from now on
        self.on_fate: list[Callable[[ServerName], None]] = []  # what it shares with this node or with others is something else now
        self.fates = Fates() if fates is None else fates
        self._own_hosts = frozenset(own_hosts)
        self._trials_count = 0
        self._counted_ran = clock.ran()  # silence counts from here: the start, or the last `resume`
        self._is_paused = False

    def load(self, rows: Iterable[PeerRow]) -> None:
        """Load what the ledger recorded: any other database is new."""
        for row in rows:
            if (state := self.states.get(row.server)) is not None:
                state.database, state.is_forgotten = row.database, row.is_forgotten
                state.recorded = Incarnation(row.database, row.incarnation, row.began)

    def add(self, peer: Peer, rows: Iterable[PeerRow]) -> None:
        """A peer more, or again; `rows` is what the ledger recorded of all."""
        self.states[peer.name] = PeerState(peer, self._clock.ran(), contact_awake=self._clock.awake())
        self.load([row for row in rows if row.server == peer.name])

    def dismiss(self, server: ServerName) -> None:
        """It is no peer any more: asked nothing, and no copy, lease or takeover waits for it."""
        state = self.states.gone[server] = self.states.pop(server)
        state.is_gone, state.is_leaving = True, False
        state.wake.set()
        self.fates.leave(server)

    def note_features(self, server: ServerName, features: tuple[str, ...]) -> None:
        """What its EHLO offered."""
        if (state := self.states.get(server)) is not None:
            state.features = features

    def is_leaving(self, server: ServerName) -> bool:
        """Whether it is not in the configuration any more, and not gone yet."""
        state = self.states.get(server)
        return state is not None and state.is_leaving

    def adopt_hosts(self, hosts: Iterable[str]) -> None:
        """This node listens at these addresses now."""
        self._own_hosts = frozenset(hosts)

    def __contains__(self, server: ServerName) -> bool:
        return server in self.states

    def party(self, server: ServerName) -> PeerDatabase:
        """The peer in the database that it last reported."""
        state = self.states.get(server)
        return PeerDatabase(server, NO_DATABASE if state is None else state.database)

    def reachable_as_copies(self) -> tuple[Copy, ...]:
        """An entry for each peer that can be reached: the list of a message that any peer may also hold."""
        return tuple([Copy(server, self.party(server).database) for server in self.states if self.is_reachable(server)])

    def whole_incarnation(self, server: ServerName) -> Incarnation | None:
        """The incarnation that the peer last reported; `None` for a server that is no peer."""
        state = self.states.get(server)
        return None if state is None else state.whole_incarnation

    def conflict(self, me: PeerDatabase, identity: PeerIdentity) -> str:
        """Why this peer must be refused; empty if its identity is plausible. Logged once, and again when resolved."""
        server = identity.server
        known = [state.party for state in self.states.values()]
        reason = contradiction(me, PeerDatabase(server, identity.database), known)
        before = self._contradictions.get(server, "")
        if reason:
            self._contradictions[server] = reason
        elif before:
            del self._contradictions[server]
        if reason and reason != before:
            _log.error("peer.identity_conflict", server=server, database=identity.database, reason=reason)
        elif before and not reason:
            _log.warning("peer.identity_settled", server=server, database=identity.database)
        return reason

    @property
    def conflicts(self) -> dict[ServerName, str]:
        """The peers that are refused for their name or database, and why. A second server counts while it goes on trying."""
        oldest = self._clock.awake() - SECOND_HEARTBEATS * self._heartbeat_seconds
        return {server: reason for server, (reason, at, _) in self._seconds.items() if at >= oldest} | self._contradictions

    def note_second(self, server: ServerName, first: Incarnation, at: str, does: str, second: Incarnation, address: str) -> str:
        """A second server has the name of a peer: note and return why it is refused. `does`: what the first one does."""
        reason = (
            f"{SECOND_SERVER} {server}: database {first.database}, incarnation {first.number} at {at} {does}, "
            f"so database {second.database}, incarnation {second.number} at {address} is refused"
        )
        if self.conflicts.get(server) != reason:
            _log.error("peer.identity_conflict", server=server, database=second.database, reason=reason)
        self._seconds[server] = reason, self._clock.awake(), second
        return reason

    def _note_first(self, identity: PeerIdentity) -> None:
        """If this process was refused as the second one, it is no more."""
        second = self._seconds.get(identity.server)
        if second is not None and second[2] == identity.whole_incarnation:
            del self._seconds[identity.server]
            _log.warning("peer.identity_settled", server=identity.server, database=identity.database)

    def is_gone(self, party: PeerDatabase, limit: float) -> bool:
        """Whether the server has another database now, so that this one is gone. Where its former process may run for all that is known,
        so much time must have passed besides."""
        state = self.states.get(party.server)
        if state is None or state.database in (NO_DATABASE, party.database):
            return False
        has_replaced_it = state.former == party.database and state.at_address == state.whole_incarnation  # it was its own, and it says so
        return state.is_successor or has_replaced_it or self._clock.ran() - state.present_ran >= limit

    def identified(self, identity: PeerIdentity, *, is_ours: bool = False) -> None:
        """A session identified the peer. Any session is a sign of life; a new process of the peer closes the breaker, because it may accept
        what the last one refused. `is_ours`: our latest session is with this process, and what it offered was noted already."""
        state = self.states.get(identity.server)
        if state is None:
            return
        before, is_same = state.database, state.whole_incarnation == identity.whole_incarnation
        was_met = state.is_met
        state.database, state.incarnation, state.began = identity.database, identity.incarnation, identity.began
        state.former, state.identity = identity.former, identity
        if not is_same:
            state.present_since, state.present_ran = self._clock.awake(), self._clock.ran()
            state.newer.discard(identity.whole_incarnation)
            self._note_first(identity)
            self._set_breaker(state, circuit.after_copy(state.breaker))
            state.evidence = circuit.CopyEvidence(is_offered=is_ours and state.evidence.is_offered)
            state.wake.set()  # a session of ours shows whether it takes copies
        if not is_same or identity.position >= state.position:  # two sessions may tell it in the wrong order
            state.position = identity.position
            self._note_draining(state, is_draining=identity.is_draining)
        self.heard(identity.server, identity.database)
        if was_met and not is_same:
            for tell_process in self.on_other_process:
                tell_process(identity.server, identity.whole_incarnation)
        if before not in (NO_DATABASE, identity.database):
            for tell_database in self.on_new_database:
                tell_database(identity.server, before, identity.database)
        elif not is_same:
            for tell_incarnation in self.on_new_incarnation:
                tell_incarnation(identity.server, state.recorded == state.whole_incarnation)

    def learn_fate(self, identity: PeerIdentity) -> None:
        """What a session told of it counts at once: the copy that follows must not be redundant for want of a commit."""
        if (state := self.states.get(identity.server)) is None:
            return
        for server in self.fates.learn(identity.server, fate_of(identity, state.peer.address.host, self.fates.mine, self._own_hosts)):
            for tell in self.on_fate:
                tell(server)

    def compare(self, settings: Settings, routes: Mapping[str, str] = common_settings.NO_DIGESTS) -> None:
        """Compare the peers' settings with ours, after a peer's hello or a reload. Another boundary may have other settings."""
        transport = settings.transport
        for server, state in self.states.items():
            if state.identity is None or state.identity.boundary != settings.server.boundary:
                continue
            before, state.differs = state.differs, common_settings.differences(transport, state.identity, routes)
            for name, (here, there) in state.differs.items():
                if before.get(name) != (here, there):
                    _log.warning("peer.setting_differs", server=server, setting=name, here=here, there=there)
            for name in before.keys() - state.differs.keys():
                _log.warning("peer.setting_agrees", server=server, setting=name)

    def differing_count(self) -> int:
        """How many peers have another value of a setting that should be one."""
        return sum(bool(state.differs) for state in self.states.values())

    def _note_draining(self, state: PeerState, *, is_draining: bool) -> None:
        """Note whether the peer reports that it drains. A draining peer has to be polled soon."""
        was_draining, state.is_draining = state.is_draining, is_draining
        if is_draining:
            if not was_draining:
                _log.info("peer.draining", server=state.peer.name)
            self.refused(state.peer.name, circuit.Refused.SESSION, "it drains")
            state.wake.set()
        elif was_draining:
            _log.info("peer.drains_no_longer", server=state.peer.name)
            self._set_breaker(state, circuit.after_copy(state.breaker))
            state.evidence = replace(state.evidence, is_offered=True)  # sessions that stand are not asked anew

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """Record a sign of life, in either direction."""
        state = self.states.get(server)
        if state is None:
            return
        state.heard_ran = self._clock.ran()
        state.heard_awake = self._clock.awake()
        state.last_error = ""
        if state.is_forgotten:
            self._came_back(state)
        if state.breaker is not circuit.CLOSED:
            self._set_breaker(state, circuit.after_sign_of_life(state.breaker))
        if state.unreachable_since is not None:
            seconds = self._clock.ran() - state.unreachable_since
            state.unreachable_since = None
            for tell in self.on_return:
                tell(server, seconds)

    def is_available(self, server: ServerName) -> bool:
        """Whether mail may be relayed to this peer: it has contacted this node, answers and does not drain."""
        state = self.states.get(server)
        return state is not None and state.unreachable_since is None and state.heard_awake is not None and not state.is_draining

    def forget(self, server: ServerName, is_forgotten: bool = True) -> None:
        """The peer will not come back: ask it nothing and send it no copies. Once a heartbeat the node still tries whether it is back."""
        if server in self.states:
            self.states[server].is_forgotten = is_forgotten

    def _came_back(self, state: PeerState) -> None:
        """The peer came back and is used as before. It reports by its own notifications what it took over meanwhile."""
        state.is_forgotten = False
        _log.warning("peer.remembered", server=state.peer.name)
        if state.identity is not None:
            for tell_identity in self.on_remembered:
                tell_identity(state.identity)
        for tell in self.on_available:
            tell(state.peer.name)

    def failed(self, server: ServerName, reason: str = "", *, was_refused: bool = False, is_of_copy: bool = False) -> None:
        """The peer gave no session, or no answer in time. `is_of_copy`: there was a session, but a copy in it was not confirmed."""
        state = self.states.get(server)
        if state is None or self._is_paused:
            return
        now = self._clock.awake()
        state.last_error = reason or state.last_error
        evidence, why = state.evidence, reason or "it did not answer"
        state.evidence = circuit.evidence_of_failed_copy(evidence, now, why) if is_of_copy else circuit.evidence_cut(evidence, now, why)
        state.breaker = circuit.after_failure(state.breaker, now, self._heartbeat_seconds, was_refused=was_refused)
        if state.unreachable_since is None:
            state.unreachable_since = self._clock.ran()
        if f"Refused: {SECOND_SERVER}" not in reason:
            return
        state.heard_ran = state.unreachable_since = self._clock.ran()  # it lives: silence and absence are counted from its last refusal
        if not state.refuses_us:
            state.refuses_us = reason
            _log.error("peer.refuses_this_node", server=server, reason=reason)

    @property
    def refusing_us(self) -> dict[ServerName, str]:
        """The peers that refuse this node because another server with its name answers them, and their words."""
        return {server: state.refuses_us for server, state in self.states.items() if state.refuses_us}

    def answered(self, server: ServerName) -> None:
        """The peer answered a question in a session of ours."""
        if (state := self.states.get(server)) is not None:
            state.evidence = circuit.evidence_answered(state.evidence)
            self._note_accepted(state)

    def _note_accepted(self, state: PeerState) -> None:
        """It accepted a session of this node."""
        if state.refuses_us:
            state.refuses_us = ""
            _log.warning("peer.accepts_this_node", server=state.peer.name)

    def refused_this(self, server: ServerName, reason: str) -> None:
        """The peer refused a copy for something in it."""
        state = self.states[server]
        state.evidence = circuit.evidence_of_failed_copy(state.evidence, self._clock.awake(), reason, is_not_this=True)

    def refused(self, server: ServerName, refused: circuit.Refused, reason: str) -> None:
        """The peer answered, but accepts no copies now."""
        state = self.states.get(server)
        if state is None:
            return
        if refused is circuit.Refused.COPY:
            state.evidence = circuit.evidence_of_failed_copy(state.evidence, self._clock.awake(), reason)
        if state.breaker.refused is None:
            _log.warning("peer.refuses", server=server, what=refused.value, reason=reason)
        state.breaker = circuit.after_refusal(state.breaker, self._clock.awake(), self._heartbeat_seconds, refused, reason)

    def offered(self, server: ServerName, is_offered: bool) -> None:
        """Whether the peer's EHLO offered HOLD in one of our sessions, whatever the session is for."""
        if not is_offered:
            self.refused(server, circuit.Refused.SESSION, "does not offer HOLD now")
            if (state := self.states.get(server)) is not None:
                state.evidence = replace(state.evidence, is_offered=False)
        elif (state := self.states.get(server)) is not None:
            self._set_breaker(state, circuit.after_offer(state.breaker))
            state.evidence = circuit.evidence_offered(state.evidence)
            self._note_accepted(state)

    def stored(self, server: ServerName) -> None:
        """The peer has stored a copy."""
        state = self.states[server]
        state.evidence = circuit.PROVED
        if state.breaker is not circuit.CLOSED:
            self._set_breaker(state, circuit.after_copy(state.breaker))

    def _set_breaker(self, state: PeerState, after: circuit.Breaker) -> None:
        before, state.breaker = state.breaker, after
        if before.opened_at is None or after.opened_at is not None:
            return
        if before.refused is not None:
            _log.info("peer.accepts_again", server=state.peer.name)
        for tell in self.on_available:
            tell(state.peer.name)

    def may_try(self, server: ServerName) -> bool:
        """Whether the circuit breaker allows a copy."""
        state = self.states.get(server)
        return state is not None and not state.is_forgotten and circuit.may_try(state.breaker, self._clock.awake())

    def breaker_state(self, server: ServerName) -> str:
        """ "closed", "open", "half-open" or "refusing"."""
        return circuit.state_of(self.states[server].breaker, self._clock.awake())

    def begin_attempt(self, server: ServerName) -> int | None:
        """Begin an attempt; None if another one is on trial, or it is too early. A number other than 0 must be passed to `end_attempt`."""
        state = self.states[server]
        if state.breaker.opened_at is None and not state.is_forgotten:
            return 0
        if not self.may_try(server):
            return None
        self._trials_count += 1
        state.breaker = circuit.begun(state.breaker, self._trials_count)
        return self._trials_count

    def end_attempt(self, server: ServerName, trial: int) -> None:
        """The attempt with that number has ended, or was cancelled."""
        state = self.states[server]
        state.breaker = circuit.given_back(state.breaker, trial)

    def trial_next_at(self) -> float | None:
        """When the next peer may be tried again, in `Clock.awake`; while one is on trial, when to check again. None: no breaker is open."""
        again_at = self._clock.awake() + circuit.OPEN_SECONDS_FIRST
        breakers = [state.breaker for state in self.states.values() if state.breaker.opened_at is not None and not state.is_forgotten]
        return min((again_at if breaker.trial else breaker.trial_at for breaker in breakers), default=None)

    def takes_copies(self, server: ServerName) -> Takes:
        """Whether a copy would be stored there, as far as our own sessions and copies show."""
        state = self.states.get(server)
        if state is None or state.is_forgotten or server in self._contradictions:
            return Takes.NO
        return circuit.takes_copies(state.evidence, state.breaker, self._clock.awake())

    def may_recover(self, server: ServerName) -> bool:
        """See `placement.may_recover`."""
        state = self.states.get(server)
        return state is not None and circuit.may_recover(state.evidence, state.heard_awake, self._clock.awake())

    def reasons_against_copies(self) -> tuple[str, ...]:
        """Why each peer takes no copies, or why that is not known."""
        return tuple([f"{server}: {reason}" for server in self.states if (reason := self.reason_against_copies(server))])

    def reason_against_copies(self, server: ServerName) -> str:
        """Why a peer takes no copies, or why that is not known; empty if it takes them."""
        state, takes = self.states[server], self.takes_copies(server)
        if takes is Takes.YES:
            return ""
        if state.is_forgotten:
            return "it was forgotten"
        if reason := self._contradictions.get(server):
            return reason
        evidence = state.evidence
        if takes is Takes.UNKNOWN and evidence.copy_failed_at is None:
            return "no session with it yet"
        if takes is Takes.UNKNOWN:
            return f"no copy was tried for a while, and the last one failed: {evidence.reason}"
        if evidence.is_cut or evidence.copy_failed_at is not None:
            return evidence.reason
        return state.breaker.reason or state.last_error or "it did not answer"

    def refusing_count(self) -> int:
        """How many peers answer, but accepted no copy when the last one was tried."""
        states = self.states.values()
        return sum(state.breaker.refused is not None or state.evidence.copy_failed_at is not None for state in states)

    def heartbeat_ages(self) -> dict[str, float]:
        """Seconds since each peer answered a poll or greeted this node, or since the start. Its commands in a session that it has do not
        count: it may be that only this node cannot reach it."""
        awake = self._clock.awake()
        return {server: awake - state.contact_awake for server, state in self.states.items()}

    def note_contact(self, server: ServerName) -> None:
        """The peer has answered a poll, or greeted this node."""
        if (state := self.states.get(server)) is not None:
            state.contact_awake = self._clock.awake()

    def silence(self, server: ServerName) -> float:
        """Seconds without a sign of life while this node ran and spoke to its peers; of a server that is no peer, since it does."""
        if self._is_paused:
            return 0.0
        state = self.states.get(server)
        return self._clock.ran() - (self._counted_ran if state is None else state.heard_ran)

    def pause(self) -> None:
        """This node is silent to its peers, so it hears nothing of them either: nothing follows from that."""
        self._is_paused = True

    def resume(self) -> None:
        """It speaks again: count as after a start."""
        self._is_paused = False
        self._counted_ran = ran = self._clock.ran()
        for state in self.states.values():
            state.heard_ran = ran
            state.unreachable_since = None if state.unreachable_since is None else ran
            state.wake.set()

    def is_reachable(self, server: ServerName) -> bool:
        """Whether nothing has failed since its last sign of life. True as well for a peer with which no contact was tried yet."""
        state = self.states.get(server)
        return state is not None and state.unreachable_since is None and not state.is_forgotten

    def is_forgotten(self, server: ServerName) -> bool:
        """Whether an administrator declared that it will not return, and it has not contacted this node since."""
        state = self.states.get(server)
        return state is not None and state.is_forgotten

    def forgotten_count(self) -> int:
        """The number of forgotten peers."""
        return sum(state.is_forgotten for state in self.states.values())

    def drains(self, server: ServerName) -> bool:
        """Whether it reports that it drains."""
        state = self.states.get(server)
        return state is not None and state.is_draining

    def unreachable_for(self, server: ServerName) -> float:
        """Seconds that this node ran since the first failure after the last sign of life; 0 while it answers."""
        state = self.states.get(server)
        if state is None or state.unreachable_since is None:
            return 0.0
        return self._clock.ran() - state.unreachable_since


def contradiction(me: PeerDatabase, peer: PeerDatabase, known: Iterable[PeerDatabase]) -> str:
    """Why a peer cannot be what it claims: no two nodes have the same name or the same queue. Empty if it can.

    A data directory copied to another machine, or a duplicate name, makes two nodes treat each other's messages as their own:
    the wrong one answers questions, and mail stalls on both. Neither can know which of them is the copy, so each refuses the
    other and logs the reason. `known` are the configured peers in the databases that they last reported.
    """
    if peer.server == me.server:
        return f"it calls itself {me.server}, as this node does"
    if peer.database == NO_DATABASE:
        return ""
    if peer.database == me.database:
        return f"it has this node's queue (database {me.database}): a data directory was copied"
    for other in known:
        if other.server != peer.server and other.database == peer.database:
            return f"it has the queue of {other.server} (database {other.database}): a data directory was copied"
    return ""
