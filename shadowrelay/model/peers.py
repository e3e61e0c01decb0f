"""What nodes exchange in their sessions: identities, copies and discard replies. docs/protocol.md 5, 6, 9."""

from datetime import timedelta
from enum import StrEnum

from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope, Ordinals
from shadowrelay.model.ownership import CopyNumber, DiscardEvent
from shadowrelay.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest position that one node has seen of another's database: incarnation, the position at which it began, position."""

    incarnation: int
    began: int
    position: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One opening of a peer's database. A restored older copy may repeat `number`, but not `number` and `began` together."""

    database: DatabaseId
    number: int
    began: int


class Alive(StrEnum):
    """What is known of a process, when another one has its server's name."""

    ANSWERS = "answers"
    ENDED = "ended"  # its session has ended, and at its address another one answers, or nobody listens
    SILENT = "may still run"  # there is no answer, and nothing says that it has ended


NO_INCARNATION = Incarnation(NO_DATABASE, 0, 0)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The arguments of XSHADOW. `seen` is what the sender has seen of the receiver's database `seen_of`; `former` is the id of the sender's
    database before it was found to be an older copy. `is_draining`: do not place copies on the sender, nor hand messages over to it.
    `track`: the silence after which the sender takes back what it relayed by TRACK; None if it is not sent, and then it is the span.
    `common`: names and values, as on the wire, of further settings that should be the same on all nodes. `machine` and `domains`: what the
    sender may be lost with, see `model.fate`; empty if it does not say, as `version`, that of its program."""

    server: ServerName
    boundary: BoundaryName
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    span: timedelta
    seen: Seen | None = None
    seen_of: DatabaseId = NO_DATABASE
    former: DatabaseId = NO_DATABASE
    is_draining: bool = False
    common: tuple[tuple[str, str], ...] = ()
    track: timedelta | None = None
    machine: str = ""
    domains: tuple[str, ...] = ()
    version: str = ""

    @property
    def whole_incarnation(self) -> Incarnation:
        """The incarnation with the fields that distinguish it from all others."""
        return Incarnation(self.database, self.incarnation, self.began)


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A shadow copy to be sent: number, envelope, ordinals already done, content."""

    number: CopyNumber
    envelope: Envelope
    done: Ordinals
    content: Content


@dataclass(frozen=True, slots=True)
class DiscardReply:
    """The reply to one XQDISCARD: events in ascending sequence, and how many remain."""

    events: tuple[DiscardEvent, ...]
    remaining: int
