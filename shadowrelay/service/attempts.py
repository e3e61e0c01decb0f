"""Which messages are being delivered at this moment, and which claims ended meanwhile.

A claim may end only between two attempts (DESIGN 6.2 "again", "meet"). Attempts begin in the event loop and claims end in
the writer's thread; one lock decides which came first. Between that decision and the end of its commit, and in a read that
began before that, the message still looks like ours: until a read begins after the commit, no attempt begins.
"""

import threading
from collections.abc import Iterable

from shadowrelay.model.ids import MessageId


class Attempts:
    """The running attempts, those that ended since the last read, and the claims that end. Whoever calls `end_claim` calls
    `settle` when its commit is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[MessageId] = set()
        self._called_off: set[MessageId] = set()
        self._ended: set[MessageId] = set()
        self._settled: set[MessageId] = set()

    def begin(self, message_id: MessageId) -> bool:
        """Start an attempt; False if one runs already, or an attempt or the claim may have ended since it was read."""
        with self._lock:
            if message_id in self._running or message_id in self._ended:
                return False
            self._running.add(message_id)
            return True

    def call_off(self, message_id: MessageId) -> None:
        """Every recipient is done, as another node says: a running attempt shall not end its data."""
        with self._lock:
            if message_id in self._running:
                self._called_off.add(message_id)

    def is_called_off(self, message_id: MessageId) -> bool:
        return message_id in self._called_off  # both on the event loop; it is asked for every message

    def end(self, message_id: MessageId) -> None:
        """The attempt is over, and recorded. A read that began before that still shows the message as due."""
        with self._lock:
            if message_id in self._running:
                self._running.remove(message_id)
                self._called_off.discard(message_id)
                self._ended.add(message_id)
                self._settled.add(message_id)

    def end_claim(self, message_id: MessageId) -> bool:
        """Called in the transaction that would end a claim: False if an attempt runs, so that it must not."""
        with self._lock:
            if message_id in self._running:
                return False
            self._ended.add(message_id)
            self._settled.discard(message_id)
            return True

    def settle(self, message_ids: Iterable[MessageId]) -> None:
        """The transaction is over, committed or not: what is read from now on counts."""
        with self._lock:
            self._settled.update(self._ended.intersection(message_ids))

    def reading(self) -> None:
        """Call right before claims are read for new attempts: they are as settled by now."""
        with self._lock:
            self._ended -= self._settled
            self._settled.clear()

    def is_running(self, message_id: MessageId) -> bool:
        with self._lock:
            return message_id in self._running

    def __len__(self) -> int:
        return len(self._running)
