"""What a client may have sent to another node first: copies held here, until it is known what becomes of them. docs/design.md 6.5.

Kept in memory only, and bounded: what is not found here is delivered.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Envelope, Ordinals
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import StoredMessage
from shadowrelay.rules.delivery import duplicate_keys

KEYS_MAX = 32_768  # about 5 MB
FRESH_MAX = 2_048  # messages of two seconds, 1 MB; the keys of others are computed again
AWAITED_MAX = timedelta(minutes=5)  # a node that restarts is back by then; nobody waits longer for mail that could be delivered
OPEN = (Role.SHADOW, Role.PRIMARY)


class Repeats:
    """`on_ended` is called with the id of a message that waits, when the one that it waits for has ended here."""

    def __init__(self) -> None:
        self.on_ended: Callable[[MessageId], None] = lambda message_id: None
        self._held: dict[bytes, MessageId] = {}  # by recipient's key: the latest copy with it
        self._fresh: dict[MessageId, Mapping[int, bytes]] = {}  # the keys of copies of which a discard may come soon
        # by what they wait for: who, and since when the last one does; the latest is last
        self.waiting: dict[MessageId, tuple[datetime, set[MessageId]]] = {}  # changed only here

    def note_held(self, envelope: Envelope) -> None:
        """This node stored a copy of the message."""
        held, fresh = self._held, self._fresh
        keys = fresh[envelope.message_id] = duplicate_keys(envelope, frozenset(range(1, len(envelope.recipients) + 1)))
        if len(fresh) > FRESH_MAX:
            del fresh[next(iter(fresh))]
        for key in keys.values():
            held.pop(key, None)  # the newest are last
            held[key] = envelope.message_id
        while len(held) > KEYS_MAX:
            del held[next(iter(held))]

    def keys_of(self, envelope: Envelope) -> Mapping[int, bytes]:
        """The key of each recipient of a copy that is discarded."""
        keys = self._fresh.pop(envelope.message_id, None)
        return duplicate_keys(envelope, frozenset(range(1, len(envelope.recipients) + 1))) if keys is None else keys

    def held(self, stored: StoredMessage, keys: Mapping[int, bytes], ordinals: Ordinals, now: datetime) -> set[MessageId]:
        """Copies that may be the same message as `stored`, for one of these recipients; none once it has waited for long enough."""
        if not self._held or not timedelta(0) <= now - stored.envelope.arrived_at < AWAITED_MAX:
            return set()
        found = {self._held[key] for ordinal, key in keys.items() if key in self._held and ordinal in ordinals}
        return found - {stored.envelope.message_id}

    def wait(self, stored: StoredMessage, first: MessageId, now: datetime) -> None:
        """`stored` waits for the end of `first`."""
        while self.waiting and now - self.waiting[oldest := next(iter(self.waiting))][0] >= AWAITED_MAX:
            del self.waiting[oldest]
        _, waiting = self.waiting.pop(first, (now, set()))
        waiting.add(stored.envelope.message_id)
        self.waiting[first] = now, waiting

    def ended(self, message_id: MessageId) -> None:
        """Something became of the message, of which this node held a copy."""
        if (entry := self.waiting.pop(message_id, None)) is not None:
            for waiting in entry[1]:
                self.on_ended(waiting)


def first_of(stored: StoredMessage, keys: Mapping[int, bytes], copies: Collection[StoredMessage]) -> StoredMessage | None:
    """The copy whose fate decides whether `stored` is delivered: the same message for one of its recipients, open, and the earlier one. Of
    two messages, each with a copy at the other node, both nodes choose the same one, so that they do not wait for each other."""
    wanted = set(keys.values())
    for copy in copies:
        envelope = copy.envelope
        is_earlier = (envelope.arrived_at, envelope.message_id) < (stored.envelope.arrived_at, stored.envelope.message_id)
        if copy.claim.role not in OPEN or not is_earlier:
            continue
        undone = frozenset(range(1, len(envelope.recipients) + 1)) - copy.claim.done
        if not wanted.isdisjoint(duplicate_keys(envelope, undone).values()):
            return copy
    return None
