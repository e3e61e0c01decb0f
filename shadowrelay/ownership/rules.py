"""The named rules of docs/design.md 6.2, one function each, and the values and steps that events share.

The other modules of this package call the rules through the module (`rules.outranks`), so that a test can replace one rule and show
which messages are lost or duplicated without it.

lease `without_lease`, dot `ownership.leases.may_end_data`, higher `outranks`, placement `number_after`, ask `may_promote`
and `waits`, wait `asked_after_waiting`, again `begins_again`, list `listed_before_sending`, keep `may_release`,
everybody `needs_everybody`, meet `ends_before`.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from shadowrelay.model.ids import NO_SERVER, DatabaseId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import (
    RANK_MAX,
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import dataclass, replace


class Note(StrEnum):
    """Outcome of a transition for the service that requested it."""

    NOTHING = ""
    CHOSEN = "chosen"  # the server is now the chosen shadow server
    CHOOSE_AGAIN = "choose again"  # it holds a copy under an older number: ask it under the next one
    DISMISSED = "dismissed"  # it was sent `released`
    DROPPED = "dropped"  # removed from the list: it holds nothing, and cannot have promoted
    EVERYBODY = "everybody"  # it holds nothing, but its lease had ended: ask every node
    YIELDED = "yielded"  # another node's claim is higher
    DONE = "done"  # every recipient is done
    WAIT = "wait"  # another node acts first; ask again soon
    PROMOTED = "promoted"
    ASKED = "asked"  # one more server has answered
    LIVES = "lives"  # the primary server answered after all
    STORED = "stored"
    SUPERSEDED = "superseded"
    REFUSED = "refused"  # a copy whose number leaves no room for a promotion
    RELEASED = "released"
    HANDED = "handed"
    REVIEW = "review"  # another server took this message over: ask it


@dataclass(frozen=True, slots=True)
class Party:
    """A node together with its current database."""

    server: ServerName
    database: DatabaseId


NOBODY: frozenset[ServerName] = frozenset()


def known(claim: Claim | None) -> Claim:
    if claim is None:
        raise IllegalTransition("there is no such message")
    return claim


def claimed(claim: Claim | None) -> Claim:
    claim = known(claim)
    if claim.role is not Role.PRIMARY:
        raise IllegalTransition(f"not the primary of this message, but {claim.role}")
    return claim


def everyone(claim: Claim) -> Ordinals:
    return frozenset(range(1, claim.recipients_count + 1))


def with_done(claim: Claim, ordinals: Ordinals) -> Claim:
    """The claim with these ordinals done too. A peer may send any ordinals; those beyond the message's recipients are ignored."""
    if ordinals <= claim.done:
        return claim
    return replace(claim, done=claim.done | (ordinals & everyone(claim)))


def notify(copies: Iterable[Copy], status: DiscardStatus, ordinals: Ordinals = NO_ORDINALS) -> tuple[Notification, ...]:
    return tuple([Notification(copy.server, copy.database, status, ordinals) for copy in copies])


def swap(copies: tuple[Copy, ...], new: Copy) -> tuple[Copy, ...]:
    return tuple(new if copy.server == new.server else copy for copy in copies)


def with_database(claim: Claim, peer: Party, copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    entry = claim.copy_on(peer.server)
    return copies if entry is None else swap(copies, replace(entry, database=peer.database))


def without_server(claim: Claim, server: ServerName) -> Claim:
    return relisted(claim, server, tuple(copy for copy in claim.copies if copy.server != server))


def relisted(claim: Claim, server: ServerName, copies: tuple[Copy, ...]) -> Claim:
    """The claim with `copies`, in which the entry of `server` is gone or new. If the message had been handed over to that server,
    the hand-over has failed and this node claims the message again (docs/design.md 6.2 "Hand-over")."""
    entry = claim.copy_on(server)
    handed_over = entry is not None and entry.choice is Choice.HANDED_OVER
    role = Role.PRIMARY if handed_over and claim.role is Role.SET_ASIDE else claim.role
    return replace(claim, role=role, copies=copies)


def unchosen(claim: Claim) -> Claim:
    """The claim without a chosen server: its entry becomes an ordinary one. A hand-over stays in force."""
    copies = tuple(replace(copy, choice=Choice.LISTED) if copy.choice is Choice.CHOSEN else copy for copy in claim.copies)
    return replace(claim, copies=copies)


def choose(before: Claim, claim: Claim, server: Party, note: Note) -> Transition:
    """Make `server` the chosen one. The others stay on the list until they have been asked what they hold."""
    chosen = Copy(server.server, server.database, Choice.CHOSEN)
    others = [copy for copy in claim.copies if copy.server != server.server]
    listed = [copy if copy.choice.awaits_acknowledgement else replace(copy, choice=Choice.LISTED) for copy in others] if others else ()
    return Transition(before, replace(claim, copies=(chosen, *listed)), note=note)


def let_go(claim: Claim, primary: ServerName = NO_SERVER) -> tuple[tuple[Copy, ...], tuple[Notification, ...]]:
    """A primary's claim ends: notify every server that may hold a copy, except the new `primary`.

    Notified servers stay with the claim until they acknowledge: if this node became primary again before that, the old
    `released` would discard a copy placed there.
    """
    waiting = [copy for copy in claim.copies if copy.choice.awaits_acknowledgement]
    others = [copy for copy in claim.copies if not copy.choice.awaits_acknowledgement and copy.server != primary]
    dismissed = (replace(copy, choice=Choice.DISMISSED) for copy in others)
    return (*waiting, *dismissed), notify(others, DiscardStatus.RELEASED)


def become_shadow(before: Claim, claim: Claim, primary: Party) -> Transition:
    """Yield to `primary`, keeping a number of our own, because no two copies may have the same. The new primary assigns another
    number when it chooses this copy."""
    copies, tell = let_go(before, primary.server)
    number = own_number(before)
    after = replace(
        claim, role=Role.SHADOW, number=number, primary=primary.server, database=primary.database, asked=NOBODY, handed=False, copies=copies
    )
    return Transition(before, after, tell, note=Note.YIELDED)


def own_number(claim: Claim) -> CopyNumber:
    """The number under which a claim becomes a shadow message. A primary's own number was also given to its chosen server, so it
    continues below all numbers that it assigned."""
    return replace(claim.number, placement=0) if claim.is_primary else claim.number


def all_done(before: Claim, claim: Claim) -> Transition:
    """Every recipient is done: notify every server that may hold a copy. For a shadow message whose recipients this node delivered
    before it yielded, that includes its primary."""
    tell = notify(before.copies, DiscardStatus.DELIVERED)
    after = replace(claim, role=Role.DELIVERED, asked=NOBODY, handed=False, copies=())
    return Transition(before, after, tell, note=Note.DONE)


def outranks(number: CopyNumber, other: CopyNumber) -> bool:
    """Rule *higher*: a claim yields only to a higher number."""
    return number > other


def number_after(claim: Claim, me: Party) -> CopyNumber:
    """Rule *placement*: each placement or choice gets a higher number than the one before.

    Raises: IllegalTransition if the placements are used up.
    """
    if claim.number.placement >= RANK_MAX:
        raise IllegalTransition("its placements are used up")
    return CopyNumber(claim.number.ownership, claim.number.placement + 1, me.database)


def can_be_followed(number: CopyNumber) -> bool:
    """The number leaves room for a promotion and its placements. Numbers rise by one, so no correct primary comes near the limit."""
    return number.ownership < RANK_MAX and number.placement < RANK_MAX


def without_lease(claim: Claim, runs: Callable[[Copy], bool]) -> tuple[ServerName, ...]:
    """Rule *lease*: an attempt may start only while the lease runs on every server that may hold a copy.

    Shapes: the servers without a lease; empty means that the attempt may start.
    """
    return tuple([copy.server for copy in claim.copies if not runs(copy)])


def may_promote(claim: Claim, reachable: Collection[ServerName]) -> bool:
    """Rule *ask*: before it promotes, a shadow server asks every reachable node."""
    return claim.asked.issuperset(reachable)


def waits(answer: StatusAnswer, claim: Claim, me: Party) -> bool:
    """Rule *ask*, second part: wait while another node holds a copy with a higher number, because that node promotes first. The same
    applies to a node to which this node, as its primary, sent `yours`."""
    return (
        answer.state is StatusState.SHADOW
        and (answer.primary != me.server or (answer.promoting and answer.database == me.database))
        and answer.number is not None
        and outranks(answer.number, claim.number)
    )


def asked_after_waiting(claim: Claim) -> frozenset[ServerName]:
    """Rule *wait*: after waiting for a higher number, all nodes are asked again."""
    return frozenset()


def begins_again(question: CopyNumber, claim: Claim) -> bool:
    """Rule *again*: a question under a higher number makes a shadow server with a lower one ask all nodes again, and a
    lower primary yield. Rule *meet* is the same between two primaries."""
    return outranks(question, claim.number)


def listed_before_sending(claim: Claim, copy: Copy) -> tuple[Copy, ...]:
    """Rule *list*: a server is on the list before it is sent a copy, and stays there until it acknowledges `released`."""
    return (*(other for other in claim.copies if other.server != copy.server), copy)


def may_release(claim: Claim, server: ServerName) -> bool:
    """Rule *keep*: a server is sent `released` only after another copy is confirmed."""
    chosen = claim.chosen()
    return chosen is not None and chosen.server != server


def needs_everybody(lease_runs: bool) -> bool:
    """Rule *everybody*: if a server's lease has ended and it no longer holds the copy, all nodes are asked."""
    return not lease_runs


def ends_before(answer: StatusAnswer, claim: Claim) -> bool:
    """Rule *meet*: of two primaries, the one with the lower number yields first, and the higher one waits for that."""
    return answer.state is StatusState.PRIMARY and answer.number is not None and not outranks(answer.number, claim.number)
