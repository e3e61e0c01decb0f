"""Which messages are being delivered at this moment, and which claims ended meanwhile.

A claim may end only between two attempts (DESIGN 6.2 "again", "meet"). Attempts begin in the event loop and claims end in
the writer's thread; one lock decides which came first.
"""

import threading

from shadowrelay.model.ids import MessageId


class Attempts:
    """The set of running attempts, and of claims that ended and must not be attempted until loaded again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[MessageId] = set()
        self._ended: set[MessageId] = set()

    def begin(self, message_id: MessageId) -> bool:
        """Start an attempt; False if one runs already, or the claim has ended since it was read."""
        with self._lock:
            if message_id in self._running or message_id in self._ended:
                return False
            self._running.add(message_id)
            return True

    def end(self, message_id: MessageId) -> None:
        """The attempt is over, and recorded."""
        with self._lock:
            self._running.discard(message_id)

    def end_claim(self, message_id: MessageId) -> bool:
        """Called in the transaction that would end a claim: False if an attempt runs, so that it must not."""
        with self._lock:
            if message_id in self._running:
                return False
            self._ended.add(message_id)
            return True

    def reinstate(self, message_id: MessageId) -> None:
        """Call before the claim is read again: what is read then counts."""
        with self._lock:
            self._ended.discard(message_id)

    def is_running(self, message_id: MessageId) -> bool:
        with self._lock:
            return message_id in self._running

    def __len__(self) -> int:
        return len(self._running)
