"""Who holds which copy of a message under which number: the values that `shadowrelay.ownership` decides on.

One node has at most one `Claim` to a message. What it says of it to others is a `StatusAnswer`.
"""

from enum import IntEnum, StrEnum

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.values import dataclass

RANK_MAX = 2**31 - 1  # ownership and placement, on the wire 10 digits. One a second for 68 years


@dataclass(frozen=True, slots=True, order=True)
class CopyNumber:
    """The rank of a copy or claim: 1 at the first primary and one more at each promotion, one more at each
    placement or choice, then the database id of the primary that gave both. No two primaries give the same."""

    ownership: int
    placement: int
    database: DatabaseId


class Role(StrEnum):
    """What a node is to a message. Stored; do not rename."""

    PRIMARY = "primary"
    SHADOW = "shadow"
    DELIVERED = "delivered"  # every recipient is done, by this node or as it heard
    RELEASED = "released"  # this node's copy or claim is needed no more
    SET_ASIDE = "set-aside"  # poison or corrupt: still a claim, but no attempt is made


class Choice(IntEnum):
    """How a primary sees a server that it sent a copy to. Stored; do not renumber."""

    LISTED = 0
    CHOSEN = 1
    HANDED_OVER = 2  # told `yours`
    DISMISSED = 3  # told `released`; leaves the list when it has acknowledged that
    RECALLED = 4  # told `released`, then yielded to us before it had heard that; listed again when it has acknowledged

    @property
    def awaits_acknowledgement(self) -> bool:
        """A `released` is under way: it must not be given another copy or number, which that `released` would then end."""
        return self in (Choice.DISMISSED, Choice.RECALLED)


@dataclass(frozen=True, slots=True)
class Copy:
    """An entry of a primary's list: this server may hold a copy.

    `database` is `NO_DATABASE` until a session with the server has shown it.
    """

    server: ServerName
    database: DatabaseId
    choice: Choice = Choice.LISTED


@dataclass(frozen=True, slots=True)
class Claim:
    """What one node is to one message.

    Shapes: `primary` and `database` name the primary server of a shadow message and are empty for other roles;
    `asked` holds the servers that have answered in the present round before a promotion; `copies` is a primary's
    list, one entry a server; `handed` is a shadow message that its primary said `yours` of.
    """

    role: Role
    number: CopyNumber
    recipients_count: int
    done: Ordinals = NO_ORDINALS
    primary: ServerName = NO_SERVER
    database: DatabaseId = NO_DATABASE
    asked: frozenset[ServerName] = frozenset()
    handed: bool = False
    copies: tuple[Copy, ...] = ()

    @property
    def is_done(self) -> bool:
        """Every recipient is done."""
        return len(self.done) >= self.recipients_count

    def chosen(self) -> Copy | None:
        """The chosen shadow server's entry, handed over or not."""
        for copy in self.copies:
            if copy.choice is Choice.CHOSEN or copy.choice is Choice.HANDED_OVER:
                return copy
        return None

    @property
    def is_primary(self) -> bool:
        """This node claims to be responsible; a message set aside is still claimed, but not what was a shadow message."""
        return self.role is Role.PRIMARY or (self.role is Role.SET_ASIDE and not self.primary)

    def copy_on(self, server: ServerName) -> Copy | None:
        """The list's entry of one server."""
        for copy in self.copies:
            if copy.server == server:
                return copy
        return None


class StatusState(StrEnum):
    """First words of an answer to XQDISCARD STATUS."""

    PRIMARY = "primary"  # active <number> primary
    SHADOW = "shadow"  # active <number> shadow <primary> <its database id> [promoting]
    DELIVERED = "delivered"
    RELEASED = "released"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """What a node says of a message; `number` is `None` for delivered and unknown."""

    state: StatusState
    number: CopyNumber | None = None
    primary: ServerName = NO_SERVER
    database: DatabaseId = NO_DATABASE
    promoting: bool = False
    done: Ordinals = NO_ORDINALS


@dataclass(frozen=True, slots=True)
class StatusQuestion:
    """One message of an XQDISCARD STATUS, with the number of the asker's own copy or claim."""

    message_id: MessageId
    number: CopyNumber


class DiscardStatus(StrEnum):
    """What a discard notification says. Stored and sent; do not rename."""

    DELIVERED = "delivered"
    PROMOTED = "promoted"
    RELEASED = "released"
    YOURS = "yours"


@dataclass(frozen=True, slots=True)
class DiscardEvent:
    """One line of an XQDISCARD reply; empty `ordinals` with DELIVERED means all recipients."""

    sequence: int
    message_id: MessageId
    status: DiscardStatus
    ordinals: Ordinals = NO_ORDINALS


@dataclass(frozen=True, slots=True)
class Notification:
    """A discard notification to be queued, in the commit that makes it true."""

    server: ServerName
    database: DatabaseId
    status: DiscardStatus
    ordinals: Ordinals = NO_ORDINALS


@dataclass(frozen=True, slots=True)
class Transition:
    """The claim after an event, what has to be told to whom in the same commit, and what to say of it.

    `before` is `None` where the node knew nothing; `after` equals `before` where nothing changed.
    """

    before: Claim | None
    after: Claim | None
    tell: tuple[Notification, ...] = ()
    answer: StatusAnswer | None = None
    note: str = ""

    @property
    def changed(self) -> bool:
        """There is something to commit."""
        return self.before != self.after or bool(self.tell)
