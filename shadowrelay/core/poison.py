"""What becomes of a message whose content was being handled when a process of this node died. docs/design.md 6.9.

`deaths_count` counts only such deaths: not those of a process that had been asked to stop, not those of the machine, and not
those that came while the message waited for a lease, a session, or the reply to its final dot. One death may be chance. After
two the message is a suspect, and suspects go one at a time. The next death settles it.
"""

from enum import StrEnum

from shadowrelay.model.ownership import Choice, Claim, Role
from shadowrelay.model.queue import StoredMessage

SUSPECT_DEATHS = 2
POISON_DEATHS = 3
CORRUPT = "corrupt"  # stands in the reason of every row and content that could not be read
CORRUPT_ROW = "corrupt row"
KILLED = "died"  # stands in the reason of every poison message, and in no other


class Course(StrEnum):
    """What to do with a message that is due."""

    GO = "go"
    ALONE = "alone"  # while no other suspect is tried
    SET_ASIDE = "set aside"


def course_of(deaths_count: int) -> Course:
    """The rule of the module's docstring."""
    if deaths_count >= POISON_DEATHS:
        return Course.SET_ASIDE
    return Course.ALONE if deaths_count >= SUSPECT_DEATHS else Course.GO


def reason_of(deaths_count: int) -> str:
    """Why a poison message is set aside."""
    return f"the node {KILLED} {deaths_count} times while it handled this content"


def is_handed_over(reason: str, *, is_promoted: bool) -> bool:
    """Whether a message set aside for `reason` is to be taken over by its shadow server.

    A corrupt one always: the shadow server has a good copy. A poison one only by the server that had it first: if the message
    kills the second server too, it stays there, set aside. It would go round for ever otherwise, and kill every server in turn.
    """
    return CORRUPT in reason or (KILLED in reason and not is_promoted)


def handed_to(claim: Claim) -> str:
    """The server that was told to take the message over; empty if none was."""
    chosen = claim.chosen()
    return chosen.server if chosen is not None and chosen.choice is Choice.HANDED_OVER else ""


def no_release(stored: StoredMessage) -> str:
    """Why an administrator cannot put this message back into delivery; empty if it is possible."""
    if refusal := no_removal(stored):
        return refusal
    if not stored.claim.is_primary:
        return f"it is a copy held for {stored.claim.primary}, which delivers the message itself"
    return "its row in the queue database cannot be read" if CORRUPT_ROW in stored.set_aside_reason else ""


def no_removal(stored: StoredMessage) -> str:
    """Why an administrator cannot remove this message; empty if it is possible."""
    if stored.claim.role is not Role.SET_ASIDE:
        return f"it is not set aside: its role is {stored.claim.role}"
    if server := handed_to(stored.claim):
        return f"it was handed over to {server}: ask that node, or `peers forget {server}` if its queue is destroyed for good"
    return ""
