"""Every step that the world can take from a state: what the nodes do, what the network loses, what breaks.

Mapping. A meeting of two nodes is one step (question and answer, offer and reply); with the budget `late` the answering
node has committed and the other does not hear it. Discard notifications wait for each pair of nodes and are heard, and
then acknowledged, in one step of their own. This module is
longer than others because every step of the world is told in one place. Every step names what happens as an operator would.
"""

from collections.abc import Iterator
from typing import Any

from shadowrelay.model.ownership import Choice, DiscardStatus, Role
from shadowrelay.ownership import leases, rules
from shadowrelay.ownership.rules import Note
from tests.ownership.events import After, Events, Facts, Node, Tell
from tests.ownership.state import (
    CHOICES_MAX,
    NODES,
    OWNERS_MAX,
    PLACEMENTS_MAX,
    SERVERS,
    Attempt,
    Client,
    State,
    Told,
    database,
    lease_bit,
    put,
)

FAULTS = ("crash", "destroy", "cut", "late", "hands")
Step = tuple[str, State]
NOBODY_HIGHER = (Note.YIELDED, Note.DONE, Note.WAIT)


class Steps:
    """The steps under one policy for `delivery_without_lease`."""

    def __init__(self, policy: str) -> None:
        self.delivers_without_lease = policy == "deliver"
        self.events = Events()

    def of(self, s: State) -> Iterator[Step]:
        """Name and state after each step; names of faults begin with one of `FAULTS`."""
        for n in NODES:
            mine = self.facts(s, n)
            if s.up[n]:
                yield from self._attempt(s, n)
                if mine.is_primary:
                    yield from self._primary(s, n, mine)
                elif mine.role is Role.SHADOW and mine.ownership < OWNERS_MAX:
                    yield from self._shadow(s, n, mine)
                yield from self._hearing(s, n)
            yield from self._leases_end(s, n, mine)
            yield from self._faults(s, n, mine)
        if s.cut:
            yield "heal", s._replace(cut=())
        elif s.crashes:
            for pair in ((0, 1), (1, 2), (0, 2)):
                yield f"cut {pair}", s._replace(cut=pair, crashes=s.crashes - 1)

    # looking
    def facts(self, s: State, n: int) -> Facts:
        return self.events.facts(s.claims[n])

    def node(self, s: State, n: int) -> Node:
        return Node(n, s.generation[n], s.claims[n], s.attempt[n] is not Attempt.IDLE)

    @staticmethod
    def reach(s: State, a: int, b: int) -> bool:
        return s.up[a] and s.up[b] and not (a in s.cut and b in s.cut)

    @staticmethod
    def lease(s: State, n: int, t: int) -> bool:
        return bool(s.leases & lease_bit(n, t))

    # committing
    def commit(self, s: State, n: int, after: After, leases: int | None = None, **changes: Any) -> State:
        """Node n commits: its claim, and what it has to tell."""
        told = s.told
        for tell in after.tell:
            told = self._queue(s, told, n, tell)
        leases = s.leases if leases is None else leases
        mask = self.events.facts(after.claim).lease_mask
        leases &= ~(7 << 3 * n) | (mask << 3 * n)
        return s._replace(claims=put(s.claims, n, after.claim), told=told, leases=leases, **changes)

    def _queue(self, s: State, told: tuple[Told, ...], speaker: int, tell: Tell) -> tuple[Told, ...]:
        if tell.database != database(tell.server, s.generation[tell.server]):
            return told  # for a database that is gone: nobody will ask
        if self.facts(s, tell.server).role is Role.DELIVERED and tell.status is not DiscardStatus.RELEASED:
            return told  # it knows all that there is to know
        place = 3 * speaker + tell.server
        return put(told, place, Told((*told[place].statuses, tell.status), told[place].heard))

    def _asked(self, s: State, o: int, asker: int, after: After, heard: After | None) -> State:
        """Node o has answered: who was put on its list by that, or yields to it, has a lease only if it heard the answer."""
        leases = s.leases
        if heard is not None and heard.note == Note.YIELDED:
            leases |= lease_bit(o, asker)
        elif after.listed_asker:
            leases = leases | lease_bit(o, asker) if heard else leases & ~lease_bit(o, asker)
        return self.commit(s, o, after, leases)

    # attempts
    def _attempt(self, s: State, n: int) -> Iterator[Step]:
        if s.attempt[n] is Attempt.STARTED:
            yield f"{n}: arrives", s._replace(attempt=put(s.attempt, n, Attempt.ARRIVED), arrived=s.arrived + 1)
        elif s.attempt[n] is Attempt.ARRIVED:
            yield f"{n}: records", self.commit(s, n, self.events.local("recorded", s.claims[n]), attempt=put(s.attempt, n, Attempt.IDLE))

    def _starting(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        if mine.role is not Role.PRIMARY or (n == 0 and mine.ownership == 1 and s.client is Client.WAITS):
            return
        claim = self.events.claim_of(s.claims[n])
        in_the_way = rules.without_lease(claim, lambda copy: self.lease(s, n, SERVERS.index(copy.server)))
        without = [SERVERS.index(server) for server in in_the_way]
        started = put(s.attempt, n, Attempt.STARTED)
        if not without:
            yield f"{n}: starts", s._replace(attempt=started)
        elif self.delivers_without_lease and not any(self.reach(s, n, t) for t in without):
            yield f"{n}: starts without lease", s._replace(attempt=started, excused=True)

    # a primary
    def _primary(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        idle = s.attempt[n] is Attempt.IDLE
        for t in NODES:
            entry = mine.entries[t]
            if entry is None:
                continue
            if not self.reach(s, n, t):
                if entry.choice is Choice.CHOSEN:
                    yield f"{n}: gives up on {t}", self.commit(s, n, self.events.local("gave_up", s.claims[n], t))
            elif idle:
                yield from self._review(s, n, t)
        if not idle:
            return
        yield from self._starting(s, n, mine)
        if mine.chosen is None and mine.role is Role.PRIMARY and mine.placement < PLACEMENTS_MAX:
            for t in NODES[:2] if self._may_swap(s) else NODES:
                yield from self._place(s, n, t)
        if s.hands and s.client is Client.ACKNOWLEDGED and mine.chosen is not None and mine.role is Role.PRIMARY:
            leases = s.leases & ~lease_bit(n, mine.chosen)
            handed = self.commit(s, n, self.events.local("handing_over", s.claims[n]), leases, hands=s.hands - 1)
            yield f"hands: {n} says yours to {mine.chosen}", handed
        if n == 0 and s.client is Client.WAITS and mine.ownership == 1:
            if mine.chosen is not None:
                yield "250 to the client", s._replace(client=Client.ACKNOWLEDGED)
            else:
                refused = self.commit(s, n, self.events.local("refused", s.claims[n]), client=Client.REFUSED, excused=True)
                yield "451 to the client", refused

    @staticmethod
    def _may_swap(s: State) -> bool:
        """Nodes 1 and 2 are alike so far: what begins with one of them need not be tried with the other."""
        return s.claims[1:] == (0, 0) and s.up[1] == s.up[2] and s.generation[1] == s.generation[2] and s.cut != (0, 1) and s.cut != (0, 2)

    def _place(self, s: State, n: int, t: int) -> Iterator[Step]:
        if t == n or not self.reach(s, n, t):
            return
        me, server = self.node(s, n), self.node(s, t)
        if not self.events.may_place(me, server, self.lease(s, n, t)):
            return
        listed, offered, heard = self.events.place(me, server)
        is_stored = offered.note == Note.STORED
        name = f"{n}: places on {t}" + ("" if is_stored else ", superseded")
        began = s.leases | lease_bit(n, t)
        sent = self.commit(s, n, listed, began)
        stored = self.commit(sent, t, offered, sent.leases | lease_bit(t, n) if heard.note == Note.YIELDED else None)
        if s.client is Client.WAITS and is_stored and s.crashes and n == 0:
            # the 250 does not wait for the commit of the choice, only for that of the message and the copy
            answered = stored._replace(client=Client.ACKNOWLEDGED, crashes=s.crashes - 1, up=put(s.up, n, False))
            yield f"crash {n}: after it placed on {t} and said 250, before it recorded the choice", answered
        yield name, self.commit(stored, n, heard)
        if s.late:
            yield f"late: {name}, not heard", self.commit(sent, t, offered)._replace(late=s.late - 1)
            yield f"late: {name}, not stored", sent._replace(late=s.late - 1)

    def _review(self, s: State, n: int, t: int) -> Iterator[Step]:
        """Primary n asks a server on its list."""
        runs = self.lease(s, n, t)
        asked, heard = self.events.review(self.node(s, n), self.node(s, t), runs)
        name = f"{n}: reviews {t}: {heard.note or 'nothing new'}"
        said = self._asked(s, t, n, asked, heard)
        leases = said.leases | lease_bit(n, t) if asked.is_held_for_asker else said.leases
        after = self.commit(said, n, heard, leases)
        if heard.note == Note.EVERYBODY:
            yield from self._everybody(after, n, t)
        elif heard.note == Note.CHOOSE_AGAIN:
            yield from self._choose_again(after, n, t)
        else:
            yield name, after
        if s.late:
            unheard = self._asked(s, t, n, asked, None)
            if unheard != s:
                yield f"late: {n} asks {t}, does not hear the answer", unheard._replace(late=s.late - 1)

    def _choose_again(self, s: State, n: int, t: int) -> Iterator[Step]:
        me = self.node(s, n)
        raised, asked, heard = self.events.choose_again(me, self.node(s, t), self.lease(s, n, t))
        if self.events.facts(raised.claim).placement > CHOICES_MAX:
            return
        asking = self.commit(s, n, raised)
        said = self._asked(asking, t, n, asked, heard)
        leases = said.leases | lease_bit(n, t) if asked.is_held_for_asker else said.leases
        yield f"{n}: chooses {t} again", self.commit(said, n, heard, leases)
        if s.late:
            yield f"late: {n} chooses {t} again, not heard by {t}", asking._replace(late=s.late - 1)
            unheard = self._asked(asking, t, n, asked, None)
            yield f"late: {n} chooses {t} again, does not hear the answer", unheard._replace(late=s.late - 1)

    def _everybody(self, s: State, n: int, t: int) -> Iterator[Step]:
        """The copy on t is gone although its lease had ended: n asks the other node."""
        other = next(node for node in NODES if node not in (n, t))
        if not self.reach(s, n, other):
            if self.delivers_without_lease:
                gone = self.commit(s, n, self.events.local("nobody_claims_more", s.claims[n], t), excused=True)
                yield f"{n}: {t} holds nothing, {other} cannot be asked", gone
            return
        asked, heard = self.events.review(self.node(s, n), self.node(s, other), self.lease(s, n, other))
        said = self._asked(s, other, n, asked, heard)
        leases = said.leases | lease_bit(n, other) if asked.is_held_for_asker else said.leases
        after = self.commit(said, n, heard, leases)
        if heard.note not in NOBODY_HIGHER:
            after = self.commit(after, n, self.events.local("nobody_claims_more", after.claims[n], t))
            yield f"{n}: {t} holds nothing, {other} claims nothing more", after
        else:
            yield f"{n}: {t} holds nothing, {other} is asked: {heard.note}", after
        if s.late:
            yield f"late: {n} asks {other}, does not hear the answer", self._asked(s, other, n, asked, None)._replace(late=s.late - 1)

    # a shadow server
    def _silent(self, s: State, n: int, mine: Facts) -> bool:
        """The primary is lost to n: handed over, a new database, or out of reach after its lease on n has ended."""
        p = mine.primary
        if mine.handed or p is None:
            return True
        theirs = self.facts(s, p)
        same = database(p, s.generation[p]) == mine.database
        entry = theirs.entries[n] if theirs.is_primary else None
        leased = entry is not None and entry.database == database(n, s.generation[n]) and self.lease(s, p, n)
        return not (same and (self.reach(s, n, p) or leased))

    def _shadow(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        p = mine.primary
        if not self._silent(s, n, mine):
            if mine.has_asked and p is not None and self.reach(s, n, p):
                yield f"{n}: its primary {p} lives", self.commit(s, n, self.events.lives(s.claims[n]))
            return
        others = [o for o in NODES if o != n and not (mine.handed and o == p)]
        reachable = frozenset(o for o in others if self.reach(s, n, o))
        me = self.node(s, n)
        alone = self.events.alone(me, reachable)
        if alone.note == Note.PROMOTED:
            yield f"{n}: promotes", self._promoted(s, n, alone, mine, others)
        # A round may have begun when more could be reached than now: then this is not its last answer.
        rounds = [(o, hoped) for o in reachable for hoped in {reachable, frozenset(others)}]
        for o, hoped in rounds:
            asked, heard = self.events.answered(me, self.node(s, o), hoped)
            if hoped != reachable and heard.note != Note.ASKED:
                continue
            said = self._asked(s, o, n, asked, heard)
            if heard.note == Note.PROMOTED:
                yield f"{n}: asks {o}, promotes", self._promoted(said, n, heard, mine, others)
            else:
                after = self.commit(said, n, heard)
                if after != s:
                    yield f"{n}: asks {o}: {heard.note}", after
            if s.late:
                unheard = self._asked(s, o, n, asked, None)
                if unheard != s:
                    yield f"late: {n} asks {o}, does not hear the answer", unheard._replace(late=s.late - 1)

    def _promoted(self, s: State, n: int, after: After, mine: Facts, others: list[int]) -> State:
        """A documented cause if somebody who could object cannot be reached: a second server has failed, or the
        primary died after a delivery that the shadow server had not heard of."""
        excused = s.excused or any(
            theirs.role in (Role.DELIVERED, Role.SHADOW)
            or (theirs.is_primary and not (o == mine.primary and mine.database == database(o, s.generation[o])))
            for o in others
            if not self.reach(s, n, o)
            for theirs in (self.facts(s, o),)
        )
        return self.commit(s, n, after, excused=excused)

    # discard notifications
    def _hearing(self, s: State, n: int) -> Iterator[Step]:
        for p in NODES:
            place = 3 * p + n
            told = s.told[place]
            if not told.statuses or not self.reach(s, n, p):
                continue
            if told.heard < len(told.statuses):
                yield from self._hear(s, n, p, told)
            if told.heard:
                yield f"{n}: acknowledges to {p}", self._acknowledged(s, n, p)

    def _hear(self, s: State, n: int, p: int, told: Told) -> Iterator[Step]:
        news = told.statuses[told.heard :]
        after, asks = s, False
        for status in news:
            heard = self.events.hear(after.claims[n], self.node(s, p), status)
            after = self.commit(after, n, heard)
            asks = heard.note == Note.REVIEW
        after = after._replace(told=put(after.told, 3 * p + n, Told(told.statuses, len(told.statuses))))
        name = f"{n}: hears {', '.join(news)} from {p}"
        if s.late and DiscardStatus.RELEASED in told.statuses:
            yield f"late: {name}, not yet acknowledged", after._replace(late=s.late - 1)
        after = self._acknowledged(after, n, p)
        yield name, after
        if asks and after.attempt[n] is Attempt.IDLE:
            yield from ((f"{name}; {what}", then) for what, then in self._review(after, n, p) if not what.startswith(FAULTS))

    def _acknowledged(self, s: State, n: int, p: int) -> State:
        told = s.told[3 * p + n]
        s = s._replace(told=put(s.told, 3 * p + n, Told(told.statuses[told.heard :])))
        if DiscardStatus.RELEASED in told.statuses[: told.heard]:
            return self.commit(s, p, After(self.events.acknowledge(s.claims[p], self.node(s, n), self.lease(s, p, n)), (), Note.NOTHING))
        return s

    # what breaks
    def _leases_end(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        if not s.leases & 7 << 3 * n:
            return
        during_attempt = s.up[n] and s.attempt[n] is not Attempt.IDLE
        if during_attempt and not leases.may_end_data(0, 1):
            return  # the final dot was sent only because the lease outlasts its reply
        for t in NODES:
            if self.lease(s, n, t) and not self.reach(s, n, t):
                yield f"lease of {n} on {t} ends", s._replace(leases=s.leases & ~lease_bit(n, t))

    def _faults(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        unanswered = Client.UNANSWERED if n == 0 and s.client is Client.WAITS else s.client
        arrived = s.attempt[n] is Attempt.ARRIVED
        idle = put(s.attempt, n, Attempt.IDLE)
        if s.up[n] and s.crashes:
            # I4 (a): between the next hop's taking of the message and our record of it
            crashed = s._replace(
                up=put(s.up, n, False), attempt=idle, crashes=s.crashes - 1, excused=s.excused or arrived, client=unanswered
            )  # fmt: skip
            yield f"crash {n}", crashed
        if not s.up[n]:
            # a lease does not survive the process: its clock does not
            yield f"restart {n}", s._replace(up=put(s.up, n, True), leases=s.leases & ~(7 << 3 * n))
        if s.disks:
            told = tuple(Told() if n in (place // 3, place % 3) else told for place, told in enumerate(s.told))
            destroyed = s._replace(
                up=put(s.up, n, True),
                generation=put(s.generation, n, s.generation[n] + 1),
                claims=put(s.claims, n, 0),
                leases=s.leases & ~(7 << 3 * n),
                attempt=idle,
                told=told,
                client=unanswered,
                excused=s.excused or arrived or mine.role is Role.DELIVERED,  # I4 (a), (b)
                disks=s.disks - 1,
            )
            yield f"destroy {n}", destroyed
