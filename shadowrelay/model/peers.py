"""What nodes tell each other of themselves in every session."""

from datetime import timedelta

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope, Ordinals
from shadowrelay.model.ownership import CopyNumber, DiscardEvent
from shadowrelay.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest position that one node has seen of another's database: incarnation, its beginning, position."""

    incarnation: int
    began: int
    position: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One opening of a peer's database. A restored older copy may repeat `number`, but not `began` as well."""

    database: DatabaseId
    number: int
    began: int


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The arguments of XSHADOW. `seen` is what the speaker has seen of the listener's database, if anything."""

    server: ServerName
    boundary: BoundaryName
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    span: timedelta
    seen: Seen | None = None

    @property
    def whole_incarnation(self) -> Incarnation:
        """The incarnation with all that tells it from others."""
        return Incarnation(self.database, self.incarnation, self.began)


@dataclass(frozen=True, slots=True)
class CopyOffer:
    """A shadow copy on its way: number, envelope, the recipients already done, the content."""

    number: CopyNumber
    envelope: Envelope
    done: Ordinals
    content: Content


@dataclass(frozen=True, slots=True)
class DiscardReply:
    """The answer to one XQDISCARD: events in ascending sequence, and how many remain."""

    events: tuple[DiscardEvent, ...]
    remaining: int
