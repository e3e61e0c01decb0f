"""The rules of docs/design.md 6.2 by their names, each one function. The other modules of this package call them by module
(`rules.outranks`), so that a test can replace one and show what is then lost or doubled.

lease `without_lease`, dot `core.fencing.may_end_data`, higher `outranks`, placement `number_after`, ask `may_promote`
and `waits`, wait `asked_after_waiting`, again `begins_again`, list `listed_before_sending`, keep `may_release`,
everybody `needs_everybody`, meet `ends_before`.
"""

from collections.abc import Callable, Collection

from shadowrelay.core.ownership.values import Party
from shadowrelay.model.errors import IllegalTransition
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import RANK_MAX, Claim, Copy, CopyNumber, StatusAnswer, StatusState


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
