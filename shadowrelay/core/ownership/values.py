"""Values of this package: what a transition means, and a node in its present database."""

from enum import StrEnum

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.values import dataclass


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
