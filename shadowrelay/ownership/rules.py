"""The rules of docs/design.md 6.2 by their names, each one function, with the values and the small steps that events share.

The other modules of this package call the rules by module (`rules.outranks`), so that a test can replace one and show what is then
lost or doubled.

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
    """What a transition means to the service that asked for it."""

    NOTHING = ""
    CHOSEN = "chosen"  # the server holds the copy that counts
    CHOOSE_AGAIN = "choose again"  # it holds a copy under an older number: give it the next one
    DISMISSED = "dismissed"  # told `released`
    DROPPED = "dropped"  # off the list: it holds nothing, and cannot have promoted
    EVERYBODY = "everybody"  # it holds nothing, but its lease had ended: ask every node
    YIELDED = "yielded"  # somebody else's claim is higher
    DONE = "done"  # every recipient is done
    WAIT = "wait"  # somebody else moves first; ask again soon
    PROMOTED = "promoted"
    ASKED = "asked"  # one more server has answered
    LIVES = "lives"  # the primary server answered after all
    STORED = "stored"
    SUPERSEDED = "superseded"
    REFUSED = "refused"  # a copy with a number that leaves no room for a promotion
    RELEASED = "released"
    HANDED = "handed"
    REVIEW = "review"  # somebody took this message over: ask it


@dataclass(frozen=True, slots=True)
class Party:
    """A node in its present database."""

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
    """The claim that knows these done too. Ordinals that the message does not have say nothing: a peer may send any."""
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
    """The claim with `copies`, in which the entry of `server` is gone or new. If it had been handed over there, that came
    to nothing: this node claims the message again (docs/design.md 6.2 "Hand-over")."""
    entry = claim.copy_on(server)
    handed_over = entry is not None and entry.choice is Choice.HANDED_OVER
    role = Role.PRIMARY if handed_over and claim.role is Role.SET_ASIDE else claim.role
    return replace(claim, role=role, copies=copies)


def unchosen(claim: Claim) -> Claim:
    """Nobody is chosen: the chosen one's entry is like any other's. A message handed over stays so."""
    copies = tuple(replace(copy, choice=Choice.LISTED) if copy.choice is Choice.CHOSEN else copy for copy in claim.copies)
    return replace(claim, copies=copies)


def choose(before: Claim, claim: Claim, server: Party, note: Note) -> Transition:
    """`server` is the chosen one now. The others stay on the list: what they hold is seen when they are asked."""
    chosen = Copy(server.server, server.database, Choice.CHOSEN)
    others = [copy for copy in claim.copies if copy.server != server.server]
    listed = [copy if copy.choice.awaits_acknowledgement else replace(copy, choice=Choice.LISTED) for copy in others] if others else ()
    return Transition(before, replace(claim, copies=(chosen, *listed)), note=note)


def let_go(claim: Claim, primary: ServerName = NO_SERVER) -> tuple[tuple[Copy, ...], tuple[Notification, ...]]:
    """A primary's claim ends: whoever may hold a copy is told, but not the one who is `primary` now.

    Those told stay with the claim until they have acknowledged: if this node is primary again before that, a copy
    placed there would be ended by the old `released`.
    """
    waiting = [copy for copy in claim.copies if copy.choice.awaits_acknowledgement]
    others = [copy for copy in claim.copies if not copy.choice.awaits_acknowledgement and copy.server != primary]
    dismissed = (replace(copy, choice=Choice.DISMISSED) for copy in others)
    return (*waiting, *dismissed), notify(others, DiscardStatus.RELEASED)


def become_shadow(before: Claim, claim: Claim, primary: Party) -> Transition:
    """Yield to `primary`, with a number of our own: no two copies may have the same. Whoever we now shadow gives us a
    new one when it chooses us."""
    copies, tell = let_go(before, primary.server)
    number = own_number(before)
    after = replace(
        claim, role=Role.SHADOW, number=number, primary=primary.server, database=primary.database, asked=NOBODY, handed=False, copies=copies
    )
    return Transition(before, after, tell, note=Note.YIELDED)


def own_number(claim: Claim) -> CopyNumber:
    """The number with which a claim goes on as a shadow message. A primary's own was given to its chosen server too, so
    that it goes on below all that it gave."""
    return replace(claim.number, placement=0) if claim.is_primary else claim.number


def all_done(before: Claim, claim: Claim) -> Transition:
    """Every recipient is done: whoever may hold a copy is told, and the primary if this was a shadow message that
    we delivered ourselves before we yielded."""
    tell = notify(before.copies, DiscardStatus.DELIVERED)
    after = replace(claim, role=Role.DELIVERED, asked=NOBODY, handed=False, copies=())
    return Transition(before, after, tell, note=Note.DONE)


def outranks(number: CopyNumber, other: CopyNumber) -> bool:
    """Rule *higher*: a claim yields only to a higher number."""
    return number > other


def number_after(claim: Claim, me: Party) -> CopyNumber:
    """Rule *placement*: each placement or choice gets a higher number than the one before.

    Raises: IllegalTransition where there is none left.
    """
    if claim.number.placement >= RANK_MAX:
        raise IllegalTransition("its placements are used up")
    return CopyNumber(claim.number.ownership, claim.number.placement + 1, me.database)


def can_be_followed(number: CopyNumber) -> bool:
    """There is room for the number of a promotion, and for its placements. No honest primary comes near: numbers rise by one."""
    return number.ownership < RANK_MAX and number.placement < RANK_MAX


def without_lease(claim: Claim, runs: Callable[[Copy], bool]) -> tuple[ServerName, ...]:
    """Rule *lease*: an attempt may start only while the lease runs on every server that may hold a copy.

    Shapes: the servers that stand in the way; empty means go.
    """
    return tuple([copy.server for copy in claim.copies if not runs(copy)])


def may_promote(claim: Claim, reachable: Collection[ServerName]) -> bool:
    """Rule *ask*: before it promotes, a shadow server asks every node that it can reach."""
    return claim.asked.issuperset(reachable)


def waits(answer: StatusAnswer, claim: Claim, me: Party) -> bool:
    """Rule *ask*, its second half: while another holds a copy with a higher number, that one comes first. So does one
    that we said `yours` to when we were its primary."""
    return (
        answer.state is StatusState.SHADOW
        and (answer.primary != me.server or (answer.promoting and answer.database == me.database))
        and answer.number is not None
        and outranks(answer.number, claim.number)
    )


def asked_after_waiting(claim: Claim) -> frozenset[ServerName]:
    """Rule *wait*: who has waited for a higher number asks everybody again."""
    return frozenset()


def begins_again(question: CopyNumber, claim: Claim) -> bool:
    """Rule *again*: a question from the holder of a higher number makes a lower one ask everybody again, and a
    lower primary end. Rule *meet* is the same between two primaries."""
    return outranks(question, claim.number)


def listed_before_sending(claim: Claim, copy: Copy) -> tuple[Copy, ...]:
    """Rule *list*: a server that is sent a copy is on the list first, and stays until it has heard `released`."""
    return (*(other for other in claim.copies if other.server != copy.server), copy)


def may_release(claim: Claim, server: ServerName) -> bool:
    """Rule *keep*: nobody is told `released` before another copy is confirmed."""
    chosen = claim.chosen()
    return chosen is not None and chosen.server != server


def needs_everybody(lease_runs: bool) -> bool:
    """Rule *everybody*: where a lease has ended and the server no longer holds the copy, everybody is asked."""
    return not lease_runs


def ends_before(answer: StatusAnswer, claim: Claim) -> bool:
    """Rule *meet*: the lower of two primaries ends first, and the higher waits for that."""
    return answer.state is StatusState.PRIMARY and answer.number is not None and not outranks(answer.number, claim.number)
