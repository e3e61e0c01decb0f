"""The events of ownership as the ring needs them: two nodes meet, each commits what its own function says.

Every method takes claims as keys and plain numbers, calls nothing but ownership, and is remembered: the functions
are pure. The answering node always commits before the asker hears.
"""

from functools import cache
from typing import NamedTuple

from shadowrelay.model.fate import NOT_SHARED, Shared
from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Role,
    StatusQuestion,
    StatusState,
    Transition,
)
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome
from shadowrelay.pipeline.relay import FIRST_RANK
from tests.ownership.state import ONE_MACHINE, SERVERS, WIDTH, Claims, owner, party

MESSAGE = MessageId("the-message")
FIRST = frozenset({1})


class Tell(NamedTuple):
    """A notification: to which node, in which database, what."""

    server: int
    database: DatabaseId
    status: DiscardStatus


class After(NamedTuple):
    """One node's claim after an event. `other`: the node that may be a primary, too, by the answer."""

    claim: int
    tell: tuple[Tell, ...]
    outcome: str
    listed_asker: bool = False
    is_held_for_asker: bool = False
    other: int | None = None


class Listed(NamedTuple):
    """A primary's entry of one server, or what a shadow message says of its primary, in small numbers."""

    database: DatabaseId
    choice: Choice


class Node(NamedTuple):
    """One node as an event sees it."""

    node: int
    generation: int
    claim: int
    in_attempt: bool = False


class Facts(NamedTuple):
    """What the steps look at in a claim."""

    role: Role | None
    is_primary: bool
    is_open: bool  # claims or holds it
    ownership: int
    placement: int
    entries: tuple[Listed | None, ...]  # of each node
    chosen: frozenset[int]
    heir: int | None  # who would be told `yours`
    is_redundant: bool
    primary: int | None
    database: DatabaseId
    has_asked: bool
    handed: bool
    lease_mask: int  # place t: t is on a primary's list
    unheard_mask: int = 0  # place t: t is on it as unheard


NOBODY: frozenset[int] = frozenset()


def _servers(nodes: frozenset[int]) -> frozenset[ServerName]:
    return frozenset([SERVERS[node] for node in nodes])


def after_start(claim: Claim) -> Claim:
    """As `store.opening` does: a `yours` that an earlier process heard does not count. Nor do the answers in a round of questions of that
    process: the first answer begins a new one."""
    return replace(claim, handed=False, asked=frozenset())


NOTHING_KNOWN = Facts(None, False, False, 0, 0, (None,) * WIDTH, frozenset(), None, False, None, DatabaseId(""), False, False, 0)


class Events:
    """All events over one table of claims. Make a new one after a rule was replaced: what was remembered is wrong then. `wanted` is how
    many copies each node wants; `has_witness`: nodes 0 and 1 share a fate."""

    def __init__(self, wanted: int = 1, *, has_witness: bool = False) -> None:
        self.wanted, self._has_witness = wanted, has_witness
        self.claims = Claims()
        for name in (
            "facts",
            "may_place",
            "place",
            "review",
            "choose_again",
            "answered",
            "alone",
            "lives",
            "hear",
            "follow",
            "acknowledge",
            "local",
            "is_older",
            "claimed_again",
            "relay",
            "reconcile",
            "meet",
            "started",
        ):
            setattr(self, name, cache(getattr(self, "_" + name)))

    def claim_of(self, key: int) -> Claim:
        claim = self.claims[key]
        assert claim is not None
        return claim

    def _facts(self, key: int) -> Facts:
        claim = self.claims[key]
        if claim is None:
            return NOTHING_KNOWN
        copies = [claim.copy_on(server) for server in SERVERS]
        heir = rules.heir(claim) if claim.is_primary else None
        return Facts(
            claim.role,
            claim.is_primary,
            claim.is_primary or claim.role is Role.SHADOW,
            claim.number.ownership,
            claim.number.placement,
            tuple(None if copy is None else Listed(copy.database, copy.choice) for copy in copies),
            frozenset(node for node, copy in enumerate(copies) if claim.is_primary and copy is not None and claim.is_chosen(copy.server)),
            None if heir is None else SERVERS.index(heir.server),
            claim.is_primary and not claim.missing_count,
            SERVERS.index(claim.primary) if claim.role is Role.SHADOW else None,
            claim.database,
            bool(claim.asked),
            claim.handed,
            sum(1 << node for node, copy in enumerate(copies) if copy is not None) if claim.is_primary else 0,
            sum(1 << node for node, copy in enumerate(copies) if copy is not None and copy.choice is Choice.UNHEARD),
        )

    def shared(self, one: int, other: int) -> Shared:
        """What two nodes share of their fates."""
        return Shared(is_own=True) if self._has_witness and ONE_MACHINE == {one, other} else NOT_SHARED

    def _after(self, transition: Transition) -> After:
        tell = tuple(Tell(SERVERS.index(told.server), told.database, told.status) for told in transition.tell)
        return After(self.claims.key(transition.after), tell, transition.outcome)

    def _answer(self, asked: Node, asker: Node, number_of: Claim, number=None) -> tuple[Transition, After]:
        """`asked` commits what the question does to it, and answers."""
        before, me = self.claims[asked.claim], party(asker.node, asker.generation)
        number = claims.question_number(number_of, SERVERS[asked.node]) if number is None else number
        answer = claims.answer_question(
            before, party(asked.node, asked.generation), me, number, owner(number.database), asked.in_attempt
        )  # fmt: skip
        after = self._after(answer)
        said = answer.answer
        if said is None:
            assert answer.outcome == Outcome.OLDER_COPY
            return answer, after
        held = not said.promoting and said.state is StatusState.SHADOW and said.primary == me.server and said.database == me.database
        listed = (
            before is not None and before.is_primary and answer.after is not None and answer.after.is_primary and before != answer.after
        )
        return answer, after._replace(listed_asker=listed, is_held_for_asker=held)

    # primary and server
    def _may_place(self, me: Node, server: Node, lease_runs: bool) -> bool:
        return claims.may_place_on(self.claim_of(me.claim), party(server.node, server.generation), lease_runs)

    def _place(self, me: Node, server: Node) -> tuple[After, After, After]:
        """The primary after listing the server, the server after the offer, the primary after its reply."""
        mine, theirs = party(me.node, me.generation), party(server.node, server.generation)
        listed = claims.placing(self.claim_of(me.claim), mine, theirs)
        assert listed.after is not None
        number = listed.after.number
        offer = claims.hold(self.claims[server.claim], theirs, mine, number, 1, NO_ORDINALS)
        if offer.outcome == Outcome.STORED:
            heard: Transition | None = claims.placed(listed.after, number, theirs, self.shared(me.node, server.node))
        else:
            assert offer.answer is not None
            heard = claims.apply_answer(listed.after, mine, theirs, offer.answer)
        before = self._after(listed)
        return before, self._after(offer), before if heard is None else self._after(heard)

    def _review(self, me: Node, server: Node, lease_runs: bool, plain: bool = False) -> tuple[After, After | None]:
        """The server after the question, the primary after the answer; `None` if it gets none, because the server's database is an older
        copy. `plain`: with the number of the claim itself."""
        claim, mine, theirs = self.claim_of(me.claim), party(me.node, me.generation), party(server.node, server.generation)
        answer, asked = self._answer(server, me, claim, claim.number if plain else None)
        if answer.answer is None:
            return asked, None
        heard = self._after(claims.review(claim, mine, theirs, answer.answer, lease_runs, shared=self.shared(me.node, server.node)))
        other = rules.yielded_to(answer.answer, theirs, mine)
        return asked, heard._replace(other=SERVERS.index(other)) if other else heard

    def _choose_again(self, me: Node, server: Node, lease_runs: bool) -> tuple[After, After, After | None]:
        """The primary with the next number, the server after the question, the primary after the answer."""
        mine = party(me.node, me.generation)
        raised = self._after(claims.choosing_again(self.claim_of(me.claim), mine, SERVERS[server.node]))
        asked, heard = self._review(me._replace(claim=raised.claim), server, lease_runs, True)
        return raised, asked, heard

    # previous hop and next hop
    def _relay(self, me: Node, server: Node) -> tuple[After, After]:
        """The next hop after the offer, the previous hop after the reply."""
        mine, theirs = party(me.node, me.generation), party(server.node, server.generation)
        rank = CopyNumber(*FIRST_RANK, mine.database)
        before = self.claims[server.claim]
        if before is None:
            taken = self._after(Transition(None, claims.relayed_claim(theirs, mine, rank, 1, self.wanted)))
        else:
            offered_again = claims.relayed_again(before, theirs, mine)
            taken = self._after(offered_again)
            assert offered_again.answer is not None
            if offered_again.answer.state in (StatusState.DELIVERED, StatusState.RELEASED):
                return taken, After(me.claim, (), Outcome.DONE)
            if offered_again.answer.state is StatusState.PRIMARY:
                assert offered_again.answer.number is not None
                rank = offered_again.answer.number
        return taken, self._after(Transition(None, claims.kept_claim(theirs, rank, 1)))

    # shadow server
    def _answered(self, me: Node, other: Node, reachable: frozenset[int], unheard: frozenset[int]) -> tuple[After, After | None]:
        """The other after the question, the shadow server after the answer, if it gets one."""
        claim, mine, theirs = self.claim_of(me.claim), party(me.node, me.generation), party(other.node, other.generation)
        answer, asked = self._answer(other, me, claim)
        if answer.answer is None:
            return asked, None
        return asked, self._after(claims.answered(claim, mine, theirs, answer.answer, _servers(reachable), self.wanted, _servers(unheard)))

    def _alone(self, me: Node, reachable: frozenset[int], unheard: frozenset[int]) -> After:
        return self._after(
            claims.nobody_left_to_ask(
                self.claim_of(me.claim), party(me.node, me.generation), _servers(reachable), self.wanted, _servers(unheard)
            )
        )

    def _reconcile(self, me: Node, primary_node: Node) -> tuple[After, After | None]:
        """The primary after the question, the shadow server after the answer. The incarnation that sent the copy is taken for a later one:
        here a copy is unknown only to a primary that runs on an older disk."""
        claim, mine, theirs = self.claim_of(me.claim), party(me.node, me.generation), party(primary_node.node, primary_node.generation)
        answer, asked = self._answer(primary_node, me, claim)
        if answer.answer is None:
            return asked, None
        question = StatusQuestion(MESSAGE, claim.number)
        return asked, self._after(claims.reconciled(claim, mine, theirs, question, answer.answer, from_sender=False))

    def _meet(self, me: Node, other: Node) -> tuple[After, After | None]:
        """The other, which is not the primary of the shadow server and promoted, after its question; the shadow server after the answer."""
        claim = self.claim_of(me.claim)
        answer, asked = self._answer(other, me, claim)
        if answer.answer is None:
            return asked, None
        return asked, self._after(claims.met(claim, party(other.node, other.generation), answer.answer))

    def _started(self, claim: int) -> int:
        """What the process that starts makes of what is on its disk."""
        return claim if self.claims[claim] is None else self.claims.key(after_start(self.claim_of(claim)))

    def _lives(self, claim: int) -> After:
        return self._after(claims.new_round(self.claim_of(claim)))

    def _follow(self, me: Node, primary_node: Node, other: Node) -> tuple[After, After, After] | None:
        """The primary after the question, the other after the question, the shadow server after both answers; `None` where the primary
        has not yielded to the other."""
        claim = self.claim_of(me.claim)
        first, asked = self._answer(primary_node, me, claim)
        if first.answer is None:
            return None
        theirs, mine = party(primary_node.node, primary_node.generation), party(me.node, me.generation)
        if rules.yielded_to(first.answer, theirs, mine) != SERVERS[other.node]:
            return None
        second, then_asked = self._answer(other, me, claim)
        if second.answer is None:
            return None
        return asked, then_asked, self._after(claims.followed(claim, party(other.node, other.generation), second.answer))

    # notifications
    def _hear(self, claim: int, speaker: Node, status: DiscardStatus) -> After:
        return self._after(claims.heard(self.claims[claim], party(speaker.node, speaker.generation), DiscardEvent(1, MESSAGE, status)))

    def _acknowledge(self, claim: int, asker: Node, lease_runs: bool) -> int:
        """As `Ledger.forget_acknowledged`: a `released` that goes takes the server off the list."""
        before = self.claims[claim]
        if before is None:
            return claim
        return self.claims.key(claims.released_acknowledged(before, party(asker.node, asker.generation), lease_runs).after)

    # an older copy of the database
    def _is_older(self, me: Node) -> bool:
        claim = self.claims[me.claim]
        return claim is not None and rules.is_of_older_copy(claim, party(me.node, me.generation))

    def _claimed_again(self, me: Node, unheard: frozenset[int]) -> After:
        return self._after(claims.claimed_again(self.claim_of(me.claim), party(me.node, me.generation), _servers(unheard)))

    # one node
    def _local(self, name: str, claim: int, server: int = 0, unheard: frozenset[int] = NOBODY) -> After:
        """`no_longer_chosen`, `client_refused`, `handing_over`, `handed_over_by_drain`, `nobody_claims_more`, `recorded`."""
        before = self.claim_of(claim)
        if name == "no_longer_chosen":
            return self._after(claims.no_longer_chosen(before, SERVERS[server]))
        if name == "client_refused":
            return self._after(claims.client_refused(before))
        if name == "handing_over":
            return self._after(claims.handing_over(before))
        if name == "handed_over_by_drain":
            return self._after(claims.handed_over_by_drain(before))
        if name == "nobody_claims_more":
            return self._after(claims.nobody_claims_more(before, SERVERS[server], _servers(unheard)))
        return self._after(claims.recorded(before, FIRST))
