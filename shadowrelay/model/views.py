"""What an operator is shown of a node: the answers of `ports.AdminView` that are not in the words of the queue already."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName, SiteName
from shadowrelay.model.values import dataclass


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer as this node sees it now.

    Units: `lease` is what is left of it; `None` where none was ever given, zero where it has ended.
    """

    name: ServerName
    site: SiteName
    boundary: BoundaryName
    address: str
    database: DatabaseId
    heard_at: datetime | None
    is_reachable: bool
    lease: timedelta | None
    breaker: str  # closed, open, half-open, refusing
    held_for_count: int  # shadow messages that we keep for it
    held_by_count: int  # our unfinished messages that it may hold a copy of
    is_forgotten: bool = False
    refusal: str = ""  # what it said when it refused copies, while it is refusing
    conflict: str = ""  # why it is refused: its name or database is another node's


@dataclass(frozen=True, slots=True)
class NodeView:
    """This node as it is now. `settings` holds the effective values, durations and sizes as an operator writes them."""

    name: ServerName
    site: SiteName
    boundary: BoundaryName
    version: str
    started_at: datetime
    state: str  # starting, running, draining
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    settings: Mapping[str, object]
