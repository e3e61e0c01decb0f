"""An attempt on one fork: what is known of it from its place in memory to its recorded outcome. docs/design.md 5."""

from collections.abc import Mapping
from dataclasses import field

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content, Ordinals
from shadowrelay.model.queue import ForkRetry, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, DeliveryError
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import dataclass
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.leases import AttemptLease


@dataclass(slots=True, eq=False)
class ForkAttempt:
    """`retry` is the fork's row in its queue. `is_aging`: only its notices and its expiry are looked at, nothing is sent.

    Shapes: `in_hand` has the recipients of all forks of the message that are loaded, by next hop. `content`: None until it is read.
    `in_flight`: relayed by TRACK, and the outcome is not recorded yet. `failure`: why the next hop gave no answer; None: it did.
    """

    context: Context
    stored: StoredMessage
    fork: Fork
    retry: ForkRetry | None
    content: Content | None
    lease: AttemptLease
    in_hand: Mapping[str, Ordinals]
    is_aging: bool = False
    has_session: bool = False
    in_flight: list[MessageId] = field(default_factory=list)
    failure: DeliveryError | None = None

    async def read_content(self) -> Content:
        """Called when a session is open, so that a slow next hop keeps nothing in memory. Raises: ContentCorrupt, LedgerUnavailable."""
        self.has_session = True
        if self.content is None:
            if self.stored.place is None:
                raise ContentCorrupt("it is gone")
            self.content = await self.context.read_content(self.stored.place)
        return self.content

    @property
    def others(self) -> set[str]:
        """The next hops of the message's other forks that are in hand."""
        return self.in_hand.keys() - {self.fork.destination.key}
