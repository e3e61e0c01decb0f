"""Values for ownership: claims, copies, numbers, status answers and discard notifications. docs/design.md 6.2.

A node has at most one `Claim` to a message, and reports it to other nodes as a `StatusAnswer`. `shadowrelay.ownership` decides.
"""

from collections.abc import Callable
from enum import IntEnum, StrEnum

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.values import dataclass

RANK_MAX = 2**31 - 1  # ownership and placement: 10 digits on the wire; lasts 68 years at one promotion a second


@dataclass(frozen=True, slots=True, order=True)
class CopyNumber:
    """The rank of a copy or claim: `ownership` is 1 at the first primary and rises with each promotion, `placement` rises with each
    placement or choice, `database` is that of the primary that assigned both. No two primaries assign the same. docs/protocol.md 7."""

    ownership: int
    placement: int
    database: DatabaseId


class Role(StrEnum):
    """A node's role for a message. Stored; do not rename."""

    PRIMARY = "primary"
    SHADOW = "shadow"
    DELIVERED = "delivered"  # every recipient is done, by this node or as another node reported
    RELEASED = "released"  # this node's copy or claim is no longer needed
    SET_ASIDE = "set-aside"  # poison or corrupt: still claimed, but not attempted
    HANDED_OVER = "handed-over"  # this node drains or redirects, and sent `yours`: still claimed, but not attempted


class Choice(IntEnum):
    """State of an entry in a primary's list of copies. Stored; do not renumber."""

    LISTED = 0
    CHOSEN = 1
    HANDED_OVER = 2  # was sent `yours`
    DISMISSED = 3  # was sent `released`; leaves the list when it acknowledges that
    RECALLED = 4  # was sent `released`, then yielded to us before it received that; becomes LISTED when it acknowledges
    UNHEARD = 5  # did not answer when all nodes were asked: it is asked when it answers again, and no lease is needed before that

    @property
    def awaits_acknowledgement(self) -> bool:
        """A `released` is in flight: give this server no new copy or number, because that `released` would discard it."""
        return self in (Choice.DISMISSED, Choice.RECALLED)


@dataclass(frozen=True, slots=True)
class Copy:
    """An entry of a primary's list: this server may hold a copy.

    `database` is `NO_DATABASE` until a session with the server has shown it. `placement` is that of the last number which the claim gave
    to this server, 0 if none. A claim that wants one copy leaves it at 0: the copy that counts has the number of the claim.
    """

    server: ServerName
    database: DatabaseId
    choice: Choice = Choice.LISTED
    placement: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node records about its own part in a message.

    Shapes: `primary` and `database` name the primary server of a shadow message, or the server that delivered the message instead of
    this one, and are otherwise empty;
    `asked` holds the servers that have answered in the current round of questions before a promotion; `copies` is a primary's
    list, one entry per server; `handed` is true for a shadow message for which its primary sent `yours`; `wanted` is how many
    servers a primary chooses (`shadow_copies` of its settings when it accepted the message or took it over). `is_kept` (`TRACK`): this
    node relayed the message to its primary server and kept it as the shadow; it stays true after a takeover, see docs/design.md 6.7.
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
    wanted: int = 1
    is_kept: bool = False

    @property
    def is_done(self) -> bool:
        """Every recipient is done."""
        return len(self.done) >= self.recipients_count

    def chosen(self) -> Copy | None:
        """The entry of the chosen shadow server, handed over or not; of several, the one that takes over first."""
        first = None
        for copy in self.copies:
            if copy.choice is Choice.HANDED_OVER:
                return copy
            if copy.choice is Choice.CHOSEN and (first is None or copy.placement > first.placement):
                first = copy
        return first

    def is_chosen(self, server: ServerName) -> bool:
        """Whether this server is a chosen one, handed over or not."""
        entry = self.copy_on(server)
        return entry is not None and (entry.choice is Choice.CHOSEN or entry.choice is Choice.HANDED_OVER)

    @property
    def missing_count(self) -> int:
        """How many servers are still to be chosen; 0: it is as redundant as wanted."""
        missing = self.wanted
        for copy in self.copies:
            if copy.choice is Choice.CHOSEN or copy.choice is Choice.HANDED_OVER:
                missing -= 1
        return missing if missing > 0 else 0

    @property
    def is_primary(self) -> bool:
        """This node claims responsibility. A primary message that was set aside or handed over still counts; a shadow message that
        was set aside does not."""
        return self.role is Role.PRIMARY or self.role is Role.HANDED_OVER or (self.role is Role.SET_ASIDE and not self.primary)

    def copy_on(self, server: ServerName) -> Copy | None:
        """The list entry of one server."""
        for copy in self.copies:
            if copy.server == server:
                return copy
        return None


class StatusState(StrEnum):
    """First words of an answer to XQDISCARD STATUS. docs/protocol.md 10."""

    PRIMARY = "primary"  # active <number> primary
    SHADOW = "shadow"  # active <number> shadow <primary> <its database id> [promoting]
    DELIVERED = "delivered"
    RELEASED = "released"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """What a node reports about a message; `number` is `None` for delivered and unknown."""

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
    """The kinds of discard notification. Stored and sent; do not rename. docs/protocol.md 9."""

    DELIVERED = "delivered"
    PROMOTED = "promoted"
    RELEASED = "released"
    YOURS = "yours"
    FORKS = "forks"  # information only


@dataclass(frozen=True, slots=True)
class DiscardEvent:
    """One line of an XQDISCARD reply; empty `ordinals` with DELIVERED means all recipients. FORKS has ordinals and a next hop.
    `is_reached`: see `Notification`, and that was a short time ago."""

    sequence: int
    message_id: MessageId
    status: DiscardStatus
    ordinals: Ordinals = NO_ORDINALS
    next_hop: str = ""
    is_reached: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A discard notification to queue in the same commit as the change that it reports. `is_reached`, of DELIVERED: a next hop took the
    message for each of these recipients, and that is recorded to recognise it when it is sent again. docs/design.md 6.5."""

    server: ServerName
    database: DatabaseId
    status: DiscardStatus
    ordinals: Ordinals = NO_ORDINALS
    is_reached: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """The result of an event: the claim before and after it, notifications to queue in the same commit, answer and outcome.

    `before` is `None` where the node did not know the message; `after` equals `before` where nothing changed.
    """

    before: Claim | None
    after: Claim | None
    tell: tuple[Notification, ...] = ()
    answer: StatusAnswer | None = None
    outcome: str = ""

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self.before != self.after or bool(self.tell)


Decide = Callable[[MessageId, Claim | None], Transition]
"""A pure decision of `shadowrelay.ownership`, run inside the transaction on the claim as stored there."""
