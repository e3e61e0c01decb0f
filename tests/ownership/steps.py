"""Every step that the world can take from a state: what the nodes do, what the network loses, what breaks.

Mapping. A meeting of two nodes is one step (question and answer, offer and reply); with the budget `late` the answering
node has committed and the other does not hear it. Discard notifications wait for each pair of nodes and are heard, and
then acknowledged, in one step of their own. This module is
longer than others because every step of the world is told in one place. Every step names what happens as an operator would.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from shadowrelay.model.fate import NOT_SHARED
from shadowrelay.model.ownership import Choice, DiscardStatus, Role
from shadowrelay.ownership import rules
from shadowrelay.ownership.rules import Outcome
from tests.ownership.events import NOBODY, After, Events, Facts, Node, Tell
from tests.ownership.state import (
    ALL,
    CHOICES_MAX,
    OWNERS_MAX,
    PLACEMENTS_MAX,
    SERVERS,
    WIDTH,
    Attempt,
    Backup,
    Budget,
    ClientHeard,
    State,
    Told,
    database,
    lease_bit,
    pair_bit,
    put,
)

FAULTS = ("crash", "destroy", "cut", "part", "late", "hands", "back up", "put back")
Step = tuple[str, State]
NOBODY_HIGHER = (Outcome.YIELDED, Outcome.DONE, Outcome.WAIT)


class Steps:
    """The steps under one policy for `delivery_without_lease`, in a world of so many nodes and copies."""

    def __init__(self, policy: str, budget: Budget) -> None:
        self.delivers_without_lease = policy == "deliver"
        self.nodes = range(budget.nodes)
        self.pairs = tuple(combinations(self.nodes, 2))
        self.placements_max = PLACEMENTS_MAX + budget.wanted - 1
        self.events = Events(budget.wanted, has_witness=budget.has_witness)
        self.has_witness = budget.has_witness
        self.is_relayed = budget.is_relayed
        self.is_relayed_twice = budget.is_relayed_twice
        self.is_parted = budget.parts > 0
        self.has_disks = budget.disks > 0
        self.reconciles = budget.restores + budget.unnoticed > 0

    def of(self, s: State) -> Iterator[Step]:
        """Name and state after each step; names of faults begin with one of `FAULTS`."""
        if self._may_answer(s):
            # What else may come first may as well come next, when more is promised and more may happen. A 451 excuses everything.
            yield "250 to the client", s._replace(client=ClientHeard.ACKNOWLEDGED)
            return
        if self.is_relayed and s.client is ClientHeard.WAITS:
            yield from self._relay(s)
        elif self.is_relayed_twice:
            yield from self._relay_too(s)
        for n in self.nodes:
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
            yield from self._joined(s)
        else:
            if s.crashes:
                for a, b in self.pairs:
                    yield f"cut {(a, b)}", s._replace(cut=pair_bit(a, b), crashes=s.crashes - 1)
            if s.parts:
                yield "part all", s._replace(cut=sum(pair_bit(a, b) for a, b in self.pairs), parts=s.parts - 1)

    def _joined(self, s: State) -> Iterator[Step]:
        """All together; or, of nodes in parts, two parts."""
        yield "heal", s._replace(cut=0)
        if not self.is_parted:
            return
        parts = {frozenset(b for b in self.nodes if a == b or not s.cut & pair_bit(a, b)) for a in self.nodes}
        if len(parts) > 2:
            for one, other in combinations(sorted(map(sorted, parts)), 2):
                cut = s.cut & ~sum(pair_bit(a, b) for a in one for b in other)
                yield f"join {one} and {other}", s._replace(cut=cut)

    # looking
    def facts(self, s: State, n: int) -> Facts:
        return self.events.facts(s.claims[n])

    def node(self, s: State, n: int) -> Node:
        return Node(n, s.generation[n], s.claims[n], s.attempt[n] is not Attempt.IDLE)

    @staticmethod
    def reach(s: State, a: int, b: int) -> bool:
        return s.up[a] and s.up[b] and not s.cut & pair_bit(a, b)

    @staticmethod
    def lease(s: State, n: int, t: int) -> bool:
        return bool(s.leases & lease_bit(n, t))

    @staticmethod
    def _no_leases(s: State, n: int) -> int:
        """A lease does not survive the process: its clock does not. That a shadow server waits for its end only keeps it from acting."""
        return s.leases & ~(ALL << WIDTH * n)

    # committing
    def commit(self, s: State, n: int, after: After, leases: int | None = None, **changes: Any) -> State:
        """Node n commits: its claim, and what it has to tell."""
        told = s.told
        for tell in after.tell:
            told = self._queue(s, told, n, tell)
        leases = s.leases if leases is None else leases
        facts = self.events.facts(after.claim)
        if facts.role is Role.DELIVERED and any(of.statuses for of in told[n::WIDTH]):
            told = tuple(of.releases() if place % WIDTH == n else of for place, of in enumerate(told))
        mask = facts.lease_mask
        if s.waited and not facts.has_asked:
            changes["waited"] = s.waited & ~(1 << n)
        leases &= ~(ALL << WIDTH * n) | (mask << WIDTH * n)
        return s._replace(claims=put(s.claims, n, after.claim), told=told, leases=leases, **changes)

    def _queue(self, s: State, told: tuple[Told, ...], speaker: int, tell: Tell) -> tuple[Told, ...]:
        if tell.database != database(tell.server, s.generation[tell.server]):
            return told  # for a database that is gone: nobody will ask
        if self.facts(s, tell.server).role is Role.DELIVERED and tell.status is not DiscardStatus.RELEASED:
            return told  # it knows all that there is to know
        place = WIDTH * speaker + tell.server
        return put(told, place, told[place].with_news(tell.status))

    def _asked(self, s: State, o: int, asker: int, after: After, heard: After | None) -> State:
        """Node o has answered: who was put on its list by that, or yields to it, has a lease only if it heard the answer."""
        leases = s.leases
        if heard is not None and heard.outcome == Outcome.YIELDED:
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
        if mine.role is not Role.PRIMARY or (n == 0 and mine.ownership == 1 and self._waits(s)):
            return
        claim = self.events.claim_of(s.claims[n])
        in_the_way = rules.without_lease(claim, lambda copy: self._suffices(s, n, SERVERS.index(copy.server), copy.choice))
        without = [SERVERS.index(server) for server in in_the_way]
        started = put(s.attempt, n, Attempt.STARTED)
        if not without:
            yield f"{n}: starts", s._replace(attempt=started, excused=s.excused or bool(s.alone & 1 << n))
        elif self.delivers_without_lease and not any(self.reach(s, n, t) for t in without):
            yield f"{n}: starts without lease", s._replace(attempt=started, excused=True)

    def _suffices(self, s: State, n: int, t: int, choice: Choice) -> bool:
        """No lease is needed on a server that was unheard, while it is away."""
        return self.lease(s, n, t) or (choice is Choice.UNHEARD and not self.reach(s, n, t))

    # a primary
    def _primary(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        if self.events.is_older(self.node(s, n)):
            yield from self._older(s, n)
            return
        idle = s.attempt[n] is Attempt.IDLE
        for t in self.nodes:
            entry = mine.entries[t]
            if entry is None:
                continue
            if not self.reach(s, n, t):
                if entry.choice is Choice.CHOSEN:
                    yield f"{n}: gives up on {t}", self.commit(s, n, self.events.local("no_longer_chosen", s.claims[n], t))
            elif idle:
                yield from self._review(s, n, t)
        if not idle:
            return
        yield from self._starting(s, n, mine)
        if not mine.is_redundant and mine.role is Role.PRIMARY and mine.placement < self.placements_max:
            for t in self._different(s):
                yield from self._place(s, n, t, mine)
        if s.hands and s.client is ClientHeard.ACKNOWLEDGED and mine.heir is not None and mine.role is Role.PRIMARY:
            leases = s.leases & ~lease_bit(n, mine.heir)
            for event, why in (("handing_over", "says yours"), ("handed_over_by_drain", "drains, says yours")):
                handed = self.commit(s, n, self.events.local(event, s.claims[n]), leases, hands=s.hands - 1)
                yield f"hands: {n} {why} to {mine.heir}", handed
        if n == 0 and self._waits(s) and mine.ownership == 1:
            refused = self.commit(s, n, self.events.local("client_refused", s.claims[n]), client=ClientHeard.REFUSED, excused=True)
            yield "451 to the client", refused

    def _waits(self, s: State) -> bool:
        """Node 0 has not answered its client."""
        return s.client is ClientHeard.WAITS and not self.is_relayed

    def _may_answer(self, s: State) -> bool:
        mine = self.facts(s, 0)
        return self._waits(s) and s.up[0] and mine.is_redundant and mine.ownership == 1

    def _older(self, s: State, n: int) -> Iterator[Step]:
        """A claim of an older copy of the database of n: all nodes are asked before anything else."""
        me = self.node(s, n)
        left = [t for t in self.nodes if t != n and not s.asked_older & lease_bit(n, t)]
        if not left or (self.delivers_without_lease and not any(self.reach(s, n, t) for t in left)):
            asked_older = s.asked_older & ~(ALL << WIDTH * n)
            again = self.commit(
                s, n, self.events.claimed_again(me, self._unheard(left)), asked_older=asked_older, excused=s.excused or bool(left)
            )
            yield f"{n}: claims again" + (f", {left} cannot be asked" if left else ""), again
        for t in left:
            if not self.reach(s, n, t):
                continue
            asked, heard = self.events.review(me, self.node(s, t), False)
            if heard is None or heard.outcome == Outcome.OLDER_COPY:
                yield from self._renamed(s, t if heard is None else n)
                continue
            after = self.commit(self._asked(s, t, n, asked, heard), n, heard)
            if heard.outcome not in NOBODY_HIGHER:
                after = after._replace(asked_older=s.asked_older | lease_bit(n, t))
            if after != s:
                yield f"{n}: asks {t} about an older copy: {heard.outcome or 'nothing new'}", after
            if s.late:
                yield (
                    f"late: {n} asks {t} about an older copy, does not hear the answer",
                    self._asked(s, t, n, asked, None)._replace(late=s.late - 1),
                )

    def _different(self, s: State) -> list[int]:
        """The nodes without those that are like an earlier one so far: what begins with one of them need not be tried with the other."""
        seen: set[tuple[Any, ...]] = set()
        different = []
        for t in self.nodes:
            is_cut = any(s.cut & pair_bit(t, n) for n in self.nodes if n != t)
            if s.claims[t] == 0 and not is_cut and not any(s.leases & lease_bit(n, t) for n in self.nodes):
                entries = tuple(self.facts(s, n).entries[t] for n in self.nodes)
                told = tuple(s.told[WIDTH * t + n] for n in self.nodes), tuple(s.told[WIDTH * n + t] for n in self.nodes)
                is_backed_up = s.backup is not None and s.backup.node == t
                looks = (s.up[t], s.generation[t], entries, told, (self.is_relayed or self.has_witness) and t == 1, is_backed_up)
                if looks in seen and not any(entries):
                    continue
                seen.add(looks)
            different.append(t)
        return different

    def _place(self, s: State, n: int, t: int, mine: Facts) -> Iterator[Step]:
        if t == n or not self.reach(s, n, t):
            return
        me, server = self.node(s, n), self.node(s, t)
        is_apart = self.events.shared(n, t) is NOT_SHARED
        if not self.events.may_place(me, server, self.lease(s, n, t)):
            return
        if not is_apart and mine.entries[t] is not None and mine.entries[t].database == database(t, s.generation[t]):
            return  # a copy that does not count is there already
        listed, offered, heard = self.events.place(me, server)
        is_stored = offered.outcome == Outcome.STORED
        name = f"{n}: places on {t}" + ("" if is_stored else ", superseded")
        began = s.leases | lease_bit(n, t)
        sent = self.commit(s, n, listed, began)
        stored = self.commit(sent, t, offered, sent.leases | lease_bit(t, n) if heard.outcome == Outcome.YIELDED else None)
        if s.client is ClientHeard.WAITS and is_stored and is_apart and s.crashes and n == 0 and len(mine.chosen) + 1 == self.events.wanted:
            # the 250 does not wait for the commit of the choice, only for that of the message and the copy
            answered = stored._replace(
                client=ClientHeard.ACKNOWLEDGED, crashes=s.crashes - 1, up=put(s.up, n, False), leases=self._no_leases(stored, n)
            )
            yield f"crash {n}: after it placed on {t} and said 250, before it recorded the choice", answered
        yield name, self.commit(stored, n, heard)
        if s.late:
            yield f"late: {name}, not heard", self.commit(sent, t, offered)._replace(late=s.late - 1)
            yield f"late: {name}, not stored", sent._replace(late=s.late - 1)

    def _relay(self, s: State) -> Iterator[Step]:
        """Node 1 offers the message to node 0 by TRACK, until it has recorded that it keeps the shadow."""
        if not self.reach(s, 1, 0):
            return
        if s.claims[1]:
            yield "1: has it from another", s._replace(client=ClientHeard.ACKNOWLEDGED)
            return
        is_new = s.claims[0] == 0
        taken, kept = self.events.relay(self.node(s, 1), self.node(s, 0))
        leases = s.leases | lease_bit(0, 1)
        sent = self.commit(s, 0, taken, leases if is_new else None)
        name = "1: relays to 0" + ("" if is_new else ", again")
        is_listed = sent.claims[0] != s.claims[0]
        yield name, self.commit(sent._replace(leases=leases) if is_listed else sent, 1, kept, client=ClientHeard.ACKNOWLEDGED)
        if s.late and sent != s:
            yield f"late: {name}, not heard", sent._replace(late=s.late - 1)
        if s.crashes and sent != s:
            yield f"crash 1: {name}, not recorded", sent._replace(up=put(s.up, 1, False), crashes=s.crashes - 1)

    def _relay_too(self, s: State) -> Iterator[Step]:
        """Node 2 has taken over what node 1 has relayed to node 0, and offers it again."""
        if s.claims[2] or s.generation[2] or not s.claims[0] or not self.reach(s, 2, 0):
            return
        taken, kept = self.events.relay(self.node(s, 2), self.node(s, 0))
        sent = self.commit(s, 0, taken)
        is_listed = sent.claims[0] != s.claims[0]
        listed = sent._replace(leases=sent.leases | lease_bit(0, 2)) if is_listed else sent
        if kept.claim:
            yield "2: relays to 0, too", self.commit(listed, 2, kept)
        if s.late and sent != s:
            yield "late: 2: relays to 0, too, not heard", sent._replace(late=s.late - 1)

    def _review(self, s: State, n: int, t: int, asked_before: frozenset[int] = NOBODY) -> Iterator[Step]:
        """Primary n asks a server on its list, and then the one that this names. No server is asked twice in a round."""
        runs = self.lease(s, n, t)
        asked, heard = self.events.review(self.node(s, n), self.node(s, t), runs)
        if heard is None or heard.outcome == Outcome.OLDER_COPY:
            yield from self._renamed(s, t if heard is None else n)
            return
        name = f"{n}: reviews {t}: {heard.outcome or 'nothing new'}"
        said = self._asked(s, t, n, asked, heard)
        leases = said.leases | lease_bit(n, t) if asked.is_held_for_asker else said.leases
        after = self.commit(said, n, heard, leases)
        if heard.outcome == Outcome.EVERYBODY:
            yield from self._everybody(after, n, t)
        elif heard.outcome == Outcome.CHOOSE_AGAIN:
            yield from self._choose_again(after, n, t)
        else:
            yield name, after
            is_new = heard.other is not None and heard.other not in asked_before
            if heard.other is not None and is_new and self.facts(after, n).is_primary and self.reach(s, n, heard.other):
                further = self._review(after, n, heard.other, asked_before | {t})
                yield from ((f"{name}; {what}", then) for what, then in further if not what.startswith(FAULTS))
        if s.late:
            unheard = self._asked(s, t, n, asked, None)
            if unheard != s:
                yield f"late: {n} asks {t}, does not hear the answer", unheard._replace(late=s.late - 1)

    def _choose_again(self, s: State, n: int, t: int) -> Iterator[Step]:
        me = self.node(s, n)
        raised, asked, heard = self.events.choose_again(me, self.node(s, t), self.lease(s, n, t))
        if self.events.facts(raised.claim).placement > CHOICES_MAX:
            return
        if heard is None:
            return  # its database is an older copy, as the question before shows
        asking = self.commit(s, n, raised)
        said = self._asked(asking, t, n, asked, heard)
        leases = said.leases | lease_bit(n, t) if asked.is_held_for_asker else said.leases
        yield f"{n}: chooses {t} again", self.commit(said, n, heard, leases)
        if s.late:
            yield f"late: {n} chooses {t} again, not heard by {t}", asking._replace(late=s.late - 1)
            unheard = self._asked(asking, t, n, asked, None)
            yield f"late: {n} chooses {t} again, does not hear the answer", unheard._replace(late=s.late - 1)

    def _everybody(self, s: State, n: int, t: int) -> Iterator[Step]:
        """The copy on t is gone although its lease had ended: n asks all other nodes, one after the other."""
        name, claim_before, unheard_by_us = f"{n}: {t} holds nothing", s.claims[n], []
        for other in self.nodes:
            if other in (n, t):
                continue
            if not self.reach(s, n, other):
                if not self.delivers_without_lease:
                    if s.claims[n] != claim_before:
                        yield f"{name}, {other} cannot be asked yet", s
                    return
                name, s = f"{name}, {other} cannot be asked", s._replace(excused=True)
                unheard_by_us.append(other)
                continue
            asked, heard = self.events.review(self.node(s, n), self.node(s, other), self.lease(s, n, other))
            if heard is None or heard.outcome == Outcome.OLDER_COPY:
                yield from self._renamed(s, other if heard is None else n)
                return
            if s.late:
                unheard = self._asked(s, other, n, asked, None)
                yield f"late: {n} asks {other}, does not hear the answer", unheard._replace(late=s.late - 1)
            said = self._asked(s, other, n, asked, heard)
            leases = said.leases | lease_bit(n, other) if asked.is_held_for_asker else said.leases
            s = self.commit(said, n, heard, leases)
            if heard.outcome in NOBODY_HIGHER:
                yield f"{name}, {other} is asked: {heard.outcome}", s
                return
            name = f"{name}, {other} claims nothing more"
        yield name, self.commit(s, n, self.events.local("nobody_claims_more", s.claims[n], t, self._unheard(unheard_by_us)))

    def _unheard(self, nodes: list[int]) -> frozenset[int]:
        """Rule *unheard*. In other worlds no two holders of copies promote without meeting: the state would be the same but for an entry
        that is asked, and leaves the list. Where two previous hops keep a shadow, one cut is enough."""
        return frozenset(nodes) if self.is_parted or self.reconciles or self.is_relayed_twice else frozenset()

    # a shadow server
    def _silent(self, s: State, n: int, mine: Facts) -> bool:
        """The primary is lost to n: handed over, a new database, or out of reach after its lease on n has ended."""
        p = mine.primary
        if mine.handed or p is None:
            return True
        theirs = self.facts(s, p)
        same = database(p, s.generation[p]) == mine.database
        entry = theirs.entries[n] if theirs.is_primary else None
        # after a start, also on an older disk with a new id, n waits for the whole span: no lease outlasts that
        leased = entry is not None and self.lease(s, p, n)
        return not (same and (self.reach(s, n, p) or leased))

    def _shadow(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        p = mine.primary
        if not self._silent(s, n, mine):
            if mine.has_asked and p is not None and self.reach(s, n, p):
                yield f"{n}: its primary {p} lives", self.commit(s, n, self.events.lives(s.claims[n]))
            if p is not None and self.reach(s, n, p):
                yield from self._follow(s, n, p)
            if p is not None and self.reach(s, n, p) and self.reconciles:
                yield from self._reconcile(s, n, p)
            return
        others = [o for o in self.nodes if o != n and not (mine.handed and o == p)]
        reachable = frozenset(o for o in others if self.reach(s, n, o))
        me = self.node(s, n)
        unheard_by_us = self._unheard([o for o in others if o not in reachable])
        alone = self.events.alone(me, reachable, unheard_by_us)
        if alone.outcome == Outcome.PROMOTED:
            yield f"{n}: promotes", self._promoted(s, n, alone, mine, others)
        # A round may have begun when more could be reached than now: then this is not its last answer.
        rounds = [(o, hoped) for o in reachable for hoped in {reachable, frozenset(others)}]
        for o, hoped in rounds:
            asked, heard = self.events.answered(me, self.node(s, o), hoped, unheard_by_us)
            if heard is None or heard.outcome == Outcome.OLDER_COPY:
                yield from self._renamed(s, o if heard is None else n)
                continue
            if hoped != reachable and heard.outcome != Outcome.ASKED:
                continue
            said = self._asked(s, o, n, asked, heard)
            if heard.outcome == Outcome.PROMOTED:
                yield f"{n}: asks {o}, promotes", self._promoted(said, n, heard, mine, others)
            else:
                after = self.commit(said, n, heard)
                if heard.outcome == Outcome.WAIT and self.facts(after, n).has_asked:
                    after = after._replace(waited=after.waited | 1 << n)
                if after != s:
                    yield f"{n}: asks {o}: {heard.outcome}", after
            if s.late:
                unheard = self._asked(s, o, n, asked, None)
                if unheard != s:
                    yield f"late: {n} asks {o}, does not hear the answer", unheard._replace(late=s.late - 1)

    def _reconcile(self, s: State, n: int, p: int) -> Iterator[Step]:
        """The primary of n answers: n asks whether it still needs the copy, after a start of either and once a span."""
        asked, heard = self.events.reconcile(self.node(s, n), self.node(s, p))
        if heard is None:
            yield from self._renamed(s, p)
            return
        after = self.commit(self._asked(s, p, n, asked, heard), n, heard)
        if after != s:
            yield f"{n}: reconciles with {p}: {heard.outcome or 'nothing new'}", after

    def _meet(self, s: State, n: int, o: int) -> Iterator[Step]:
        """Node o promoted, and is not the primary of n: n asks it."""
        asked, heard = self.events.meet(self.node(s, n), self.node(s, o))
        if heard is None:
            yield from self._renamed(s, o)
            return
        said = self._asked(s, o, n, asked, heard)
        yield f"meets {o}: {heard.outcome or 'not now'}", self.commit(said, n, heard)

    def _follow(self, s: State, n: int, p: int) -> Iterator[Step]:
        """The primary of n has yielded: n asks the server to which it did, when it was told so or once a span."""
        for o in self.nodes:
            if o in (n, p) or not self.reach(s, n, o):
                continue
            met = self.events.follow(self.node(s, n), self.node(s, p), self.node(s, o))
            if met is None:
                continue
            asked, then_asked, heard = met
            said = self._asked(self._asked(s, p, n, asked, heard), o, n, then_asked, heard)
            after = self.commit(said, n, heard)
            if after != s:
                yield f"{n}: follows {p} to {o}: {heard.outcome or 'not now'}", after

    def _promoted(self, s: State, n: int, after: After, mine: Facts, others: list[int]) -> State:
        """A documented cause if somebody who could object cannot be reached: a second server has failed, or the primary died after a
        delivery that the shadow server had not heard of. A primary with a lower number cannot object: it must find out by itself."""
        excused = s.excused or any(
            self.facts(s, o).role in (Role.DELIVERED, Role.SHADOW) or self._claims_more(s, o, n, mine)
            for o in others
            if not self.reach(s, n, o)
        )
        return self.commit(s, n, after, excused=excused)

    def _claims_more(self, s: State, o: int, n: int, mine: Facts) -> bool:
        if not self.facts(s, o).is_primary or (o == mine.primary and mine.database == database(o, s.generation[o])):
            return False
        if self.is_parted or self.reconciles:
            return True  # it has taken the message over too, and is away: they meet when it returns
        return self.events.claim_of(s.claims[o]).number > self.events.claim_of(s.claims[n]).number

    # discard notifications
    def _hearing(self, s: State, n: int) -> Iterator[Step]:
        for p in self.nodes:
            place = WIDTH * p + n
            told = s.told[place]
            if not told.statuses or not self.reach(s, n, p):
                continue
            if told.heard < len(told.statuses):
                yield from self._hear(s, n, p, told)
            if told.heard:
                yield f"{n}: acknowledges to {p}", self._acknowledged(s, n, p)

    def _hear(self, s: State, n: int, p: int, told: Told) -> Iterator[Step]:
        news = told.statuses[told.heard :]
        after, asks, meets = s, False, False
        for status in news:
            heard = self.events.hear(after.claims[n], self.node(s, p), status)
            after = self.commit(after, n, heard)
            asks, meets = heard.outcome == Outcome.REVIEW, heard.outcome == Outcome.MEET
        after = after._replace(told=put(after.told, WIDTH * p + n, Told(told.statuses, len(told.statuses))))
        name = f"{n}: hears {', '.join(news)} from {p}"
        if s.late and DiscardStatus.RELEASED in told.statuses:
            yield f"late: {name}, not yet acknowledged", after._replace(late=s.late - 1)
        after = self._acknowledged(after, n, p)
        yield name, after
        if asks and after.attempt[n] is Attempt.IDLE:
            yield from ((f"{name}; {what}", then) for what, then in self._review(after, n, p) if not what.startswith(FAULTS))
        if meets:
            yield from ((f"{name}; {what}", then) for what, then in self._meet(after, n, p))

    def _acknowledged(self, s: State, n: int, p: int) -> State:
        told = s.told[WIDTH * p + n]
        s = s._replace(told=put(s.told, WIDTH * p + n, Told(told.statuses[told.heard :])))
        if DiscardStatus.RELEASED in told.statuses[: told.heard]:
            return self.commit(s, p, After(self.events.acknowledge(s.claims[p], self.node(s, n), self.lease(s, p, n)), (), Outcome.NOTHING))
        return s

    # what breaks
    def _leases_end(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        if not s.leases & ALL << WIDTH * n:
            return
        during_attempt = s.up[n] and s.attempt[n] is not Attempt.IDLE
        if during_attempt and not rules.may_end_data(0, 1):
            return  # the final dot was sent only because the lease outlasts its reply
        for t in self.nodes:
            if self.lease(s, n, t) and not self.reach(s, n, t):
                yield f"lease of {n} on {t} ends", s._replace(leases=s.leases & ~lease_bit(n, t))

    def _faults(self, s: State, n: int, mine: Facts) -> Iterator[Step]:
        unanswered = ClientHeard.UNANSWERED if n == 0 and self._waits(s) else s.client
        arrived = s.attempt[n] is Attempt.ARRIVED
        idle = put(s.attempt, n, Attempt.IDLE)
        if s.up[n] and s.crashes:
            # I4 (a): between the next hop's taking of the message and our record of it
            crashed = s._replace(
                up=put(s.up, n, False),
                attempt=idle,
                crashes=s.crashes - 1,
                excused=s.excused or arrived,
                client=unanswered,
                leases=self._no_leases(s, n),
            )
            yield f"crash {n}", crashed
        if not s.up[n]:
            yield f"restart {n}", s._replace(up=put(s.up, n, True), claims=put(s.claims, n, self.events.started(s.claims[n])))
        if s.restores or s.unnoticed:
            if s.backup is None and self._may_back_up(s, mine):
                yield f"back up {n}", s._replace(backup=Backup(n, s.claims[n], s.told[WIDTH * n : WIDTH * n + WIDTH], s.generation))
            elif s.backup is not None and s.backup.node == n:
                if s.restores:
                    yield f"put back {n}", self._put_back(s, n, mine, is_noticed=True)
                if s.unnoticed and (s.backup.claim, s.backup.told) != (s.claims[n], s.told[WIDTH * n :][:WIDTH]):
                    yield f"put back {n}, unnoticed", self._put_back(s, n, mine, is_noticed=False)
        if s.disks and not (self.has_witness and n == 1):
            destroyed = self._destroyed(s, n)
            if self.has_witness and n == 0:  # and all else on this machine, at the same instant
                destroyed = self._destroyed(destroyed, 1)
            yield f"destroy {n}", destroyed._replace(disks=s.disks - 1)

    def _destroyed(self, s: State, n: int) -> State:
        """I4 (a), (b). A poll and a round of questions take a moment."""
        mine = self.facts(s, n)
        unanswered = ClientHeard.UNANSWERED if n == 0 and self._waits(s) else s.client
        told = tuple(Told() if n in (place // WIDTH, place % WIDTH) else told for place, told in enumerate(s.told))
        is_in_limbo = self.is_relayed and s.client is ClientHeard.WAITS
        if n == 1 and is_in_limbo:
            unanswered = ClientHeard.UNANSWERED  # the message that it was to relay is another one's business
        # I4 (b): the disk of a next hop, whose copy on a third server is all that is known of what it took
        is_taken_unheard = n == 0 and is_in_limbo and any(s.claims[t] for t in self.nodes if t > 1)
        return s._replace(
            up=put(s.up, n, True),
            generation=put(s.generation, n, s.generation[n] + 1),
            claims=put(s.claims, n, 0),
            leases=self._no_leases(s, n),
            attempt=put(s.attempt, n, Attempt.IDLE),
            told=told,
            client=unanswered,
            excused=s.excused
            or s.attempt[n] is Attempt.ARRIVED
            or is_taken_unheard
            or self._is_unheard(s, n, mine)
            or (mine.role is Role.DELIVERED and self._is_news(s)),
        )

    def _is_unheard(self, s: State, n: int, mine: Facts) -> bool:
        """I4 (b): n alone knows of the delivery."""
        return mine.role is Role.DELIVERED and not any(self.facts(s, t).role is Role.DELIVERED for t in self.nodes if t != n)

    def _is_news(self, s: State) -> bool:
        """The delivery has not gone round yet: somebody is still to hear of it, or is in the middle of a round of questions, and does not
        wait for another server with earlier answers in hand."""
        is_unheard = any(DiscardStatus.DELIVERED in told.statuses[told.heard :] for told in s.told)
        return is_unheard or any(self.facts(s, t).has_asked and not s.waited & 1 << t for t in self.nodes)

    def _may_back_up(self, s: State, mine: Facts) -> bool:
        """What is backed up after the message has arrived has nothing to deliver. Together with a destroyed disk, the loss of a copy by a
        restore is a second failure: then only a primary is put back."""
        return not s.arrived and (not self.has_disks or (mine.is_primary and s.client is ClientHeard.ACKNOWLEDGED))

    def _put_back(self, s: State, n: int, mine: Facts, *, is_noticed: bool) -> State:
        """Node n runs on an older copy of its disk. If that is noticed, the database gets a new id."""
        assert s.backup is not None
        backup = s.backup
        was = self.events.facts(backup.claim)
        told = tuple(of if place % WIDTH != n else Told() if is_noticed else Told(of.statuses) for place, of in enumerate(s.told))
        own = tuple(
            Told(of.statuses) if t >= len(s.generation) or backup.generation[t] == s.generation[t] else Told()
            for t, of in enumerate(backup.told)
        )
        told = (*told[: WIDTH * n], *own, *told[WIDTH * n + WIDTH :])
        is_unheard = s.attempt[n] is Attempt.ARRIVED or self._is_unheard(s, n, mine)
        # I4 (c): the former primary was away for the span, and who was to tell it so has forgotten that
        is_unheard |= was.primary is not None and mine.role is not Role.SHADOW and self.facts(s, was.primary).role is Role.PRIMARY
        # docs/design.md 6.2 "Rolled back", limits: what it has unfinished without a listed server, or what has been delivered since; a
        # peer that knows of the delivery has heard a later position, and would notice
        is_late = not is_noticed and bool(s.arrived)
        is_alone = not is_noticed and was.is_primary and not was.lease_mask
        put_in_place = s._replace(
            up=put(s.up, n, True),
            claims=put(s.claims, n, self.events.started(backup.claim)),
            attempt=put(s.attempt, n, Attempt.IDLE),
            told=told,
            client=ClientHeard.UNANSWERED if n == 0 and self._waits(s) else s.client,
            excused=s.excused or is_unheard or is_late,
            alone=s.alone | is_alone << n,
            restores=s.restores - is_noticed,
            unnoticed=s.unnoticed - (not is_noticed),
            backup=None,
        )
        return self._started_again(put_in_place, n, is_renamed=is_noticed)

    def _started_again(self, s: State, n: int, *, is_renamed: bool) -> State:
        """Who was asking the others because n was lost asks all again: the incarnation of n is another one."""
        rounds_over = [key if self.facts(s, t).primary != n else self.events.lives(key).claim for t, key in enumerate(s.claims)]
        return s._replace(
            generation=put(s.generation, n, s.generation[n] + is_renamed),
            claims=put(tuple(rounds_over), n, s.claims[n]),
            leases=self._no_leases(s, n),
            asked_older=s.asked_older & ~(ALL << WIDTH * n),
        )

    def _renamed(self, s: State, n: int) -> Iterator[Step]:
        """A number shows n, between two attempts, that its database is an older copy: it starts again under a new id."""
        if s.attempt[n] is Attempt.IDLE and s.up[n]:
            told = tuple(of if place % WIDTH != n else Told() for place, of in enumerate(s.told))
            started = s._replace(told=told, claims=put(s.claims, n, self.events.started(s.claims[n])))
            yield f"{n}: finds that it is on an older copy", self._started_again(started, n, is_renamed=True)
