"""What this process knows of each peer at the moment: when it was heard, in which database, whether it answers."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shadowrelay.core import breaker as circuit
from shadowrelay.core.ownership.values import Party
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.queue import PeerRow
from shadowrelay.model.settings import Peer
from shadowrelay.ports import Clock


@dataclass(slots=True)
class PeerState:
    """One peer. `heard_ran` is in `Clock.ran`: silence counts only while this node itself ran."""

    peer: Peer
    heard_ran: float
    database: DatabaseId = NO_DATABASE
    incarnation: int = 0
    heard_awake: float | None = None
    breaker: circuit.Breaker = field(default_factory=circuit.closed)
    copies_in_flight: int = 0
    unreachable_since: float | None = None  # `Clock.ran`: who was suspended has not been refused
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def party(self) -> Party:
        return Party(self.peer.name, self.database)


class PeerBook:
    """All configured peers of this boundary. Callbacks tell the services of a new database and of a return."""

    def __init__(self, peers: Iterable[Peer], clock: Clock, heartbeat_seconds: float) -> None:
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self.states = {peer.name: PeerState(peer, clock.ran()) for peer in peers}
        self.on_new_database: list[Callable[[ServerName, DatabaseId, DatabaseId], None]] = []
        self.on_new_incarnation: list[Callable[[ServerName], None]] = []
        self.on_return: list[Callable[[ServerName, float], None]] = []

    def remember(self, rows: Iterable[PeerRow]) -> None:
        """What the ledger knows from before: another database than this one is a new one."""
        for row in rows:
            if row.server in self.states:
                self.states[row.server].database = row.database

    def __contains__(self, server: ServerName) -> bool:
        return server in self.states

    def party(self, server: ServerName) -> Party:
        """The peer in the database that it showed last."""
        state = self.states.get(server)
        return Party(server, NO_DATABASE) if state is None else state.party

    def identified(self, identity: PeerIdentity) -> None:
        """A session has shown who the peer is. Any session closes the circuit breaker."""
        state = self.states.get(identity.server)
        if state is None:
            return
        before, was_incarnation = state.database, state.incarnation
        state.database, state.incarnation = identity.database, identity.incarnation
        self.heard(identity.server, identity.database)
        if before not in (NO_DATABASE, identity.database):
            for tell_database in self.on_new_database:
                tell_database(identity.server, before, identity.database)
        elif was_incarnation != identity.incarnation:
            for tell_incarnation in self.on_new_incarnation:
                tell_incarnation(identity.server)

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """Proof of life, in either direction."""
        state = self.states.get(server)
        if state is None:
            return
        state.heard_ran = self._clock.ran()
        state.heard_awake = self._clock.awake()
        state.breaker = circuit.after_success(state.breaker)
        if state.unreachable_since is not None:
            seconds = self._clock.ran() - state.unreachable_since
            state.unreachable_since = None
            for tell in self.on_return:
                tell(server, seconds)

    def failed(self, server: ServerName, *, was_refused: bool = False) -> None:
        """No session, or no answer in time."""
        state = self.states.get(server)
        if state is None:
            return
        now = self._clock.awake()
        state.breaker = circuit.after_failure(state.breaker, now, self._heartbeat_seconds, was_refused=was_refused)
        if state.unreachable_since is None:
            state.unreachable_since = self._clock.ran()

    def may_try(self, server: ServerName) -> bool:
        """The circuit breaker lets a copy through."""
        state = self.states.get(server)
        return state is not None and circuit.may_try(state.breaker, self._clock.awake())

    def silence(self, server: ServerName) -> float:
        """Seconds without proof of life while this node ran."""
        state = self.states.get(server)
        return 0.0 if state is None else self._clock.ran() - state.heard_ran

    def unreachable_for(self, server: ServerName) -> float:
        """Seconds that this node ran since the first failure after the last sign of life; 0 while it answers."""
        state = self.states.get(server)
        if state is None or state.unreachable_since is None:
            return 0.0
        return self._clock.ran() - state.unreachable_since
