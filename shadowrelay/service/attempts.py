"""Which forks are being delivered at this moment, and which claims ended meanwhile.

A claim may end only between two attempts (docs/design.md 6.2 "again", "meet"). Attempts begin on the event loop and claims end in
the writer's thread; one lock decides which came first. Between that decision and the end of its commit, and in a read that
began before that, the message still looks like ours: no attempt begins until a read begins after the commit. The same holds
for a fork whose attempt has just ended: an older read still shows it as due.
"""

import threading
from collections.abc import Iterable

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import NO_ORDINALS, Ordinals

ACCEPT = ""  # stands for the next hop while a message is being accepted

Fork = tuple[MessageId, str]


class Attempts:
    """The running attempts, those that ended since the last read, and the claims that end. Whoever calls `end_claim` calls
    `settle` when its commit is over.

    A fork that waits for a session of its next hop is `waiting`: that hinders nobody. What changes its message meanwhile makes it
    stale, and a stale one must be read again instead of being started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[MessageId, set[str]] = {}
        self._waiting: dict[MessageId, set[str]] = {}
        self._stale: set[Fork] = set()
        self._called_off: dict[MessageId, Ordinals] = {}  # what others have done of messages that run here
        self._changed: set[MessageId] = set()
        self._changed_in_acceptance: set[MessageId] = set()
        self._ended_forks: set[Fork] = set()
        self._ended_claims: set[MessageId] = set()
        self._settled_claims: set[MessageId] = set()

    def begin(self, message_id: MessageId) -> bool:
        """Nothing else may be attempted on this message until `end`, nor may its claim end; False if an attempt runs, or an
        attempt or the claim may have ended since it was read."""
        with self._lock:
            if message_id in self._running or message_id in self._ended_claims or (message_id, ACCEPT) in self._ended_forks:
                return False
            if message_id in self._waiting:
                self._make_stale(message_id)
            self._running[message_id] = {ACCEPT}
            return True

    def wait(self, message_id: MessageId, next_hop: str) -> bool:
        """This fork, as it was just read, waits for a session; False if it waits or runs already, or it or the claim may have
        ended or changed since it was read. Whoever accepts the message knows its claim."""
        with self._lock:
            if message_id in self._changed and ACCEPT not in self._running.get(message_id, ()):
                return False
            if message_id in self._ended_claims or (message_id, next_hop) in self._ended_forks:
                return False
            if next_hop in self._running.get(message_id, ()) or next_hop in self._waiting.get(message_id, ()):
                return False
            self._waiting.setdefault(message_id, set()).add(next_hop)
            return True

    def start(self, message_id: MessageId, next_hop: str) -> bool:
        """The fork that waits runs now; False if it is stale, or the whole message is taken: read it again."""
        with self._lock:
            if (message_id, next_hop) in self._stale or ACCEPT in self._running.get(message_id, ()):
                return False
            self._stop_waiting(message_id, next_hop)
            self._running.setdefault(message_id, set()).add(next_hop)
            return True

    def end(self, message_id: MessageId, next_hop: str = ACCEPT) -> None:
        """The attempt is over, and recorded, or it was never started. A read that began before that still shows the fork as due."""
        with self._lock:
            if message_id in self._waiting:
                self._stop_waiting(message_id, next_hop)
            self._ended_forks.add((message_id, next_hop))
            if next_hop == ACCEPT:
                self._changed_in_acceptance.discard(message_id)
            running = self._running.get(message_id)
            if running is not None:
                running.discard(next_hop)
                if not running:
                    del self._running[message_id]
                    self._called_off.pop(message_id, None)

    def call_off(self, message_id: MessageId, done: Ordinals) -> None:
        """These recipients are done, as another node reports: a running attempt on no others must not end its data, and who waits
        with what the claim was has to read it again. Called before that is committed: an attempt could end its data right after."""
        with self._lock:
            self._note_changed(message_id)
            if message_id in self._running:
                self._called_off[message_id] = self._called_off.get(message_id, NO_ORDINALS) | done

    def is_called_off(self, message_id: MessageId, ordinals: Ordinals) -> bool:
        """The attempt on these recipients is."""
        done = self._called_off.get(message_id)  # both on the event loop; it is asked for every message
        return done is not None and ordinals <= done

    def changed(self, message_id: MessageId) -> None:
        """The claim changed: whoever waits with what it was, or reads it at this moment, has to read it again. Call it when the
        change is committed; where it must be known sooner, then too."""
        with self._lock:
            self._note_changed(message_id)

    def has_changed(self, message_id: MessageId) -> bool:
        """The claim changed since its acceptance began, which is not over: whoever accepts it does not know the claim any more."""
        return message_id in self._changed_in_acceptance

    def _note_changed(self, message_id: MessageId) -> None:
        self._make_stale(message_id)
        self._changed.add(message_id)
        if ACCEPT in self._running.get(message_id, ()):
            self._changed_in_acceptance.add(message_id)

    def end_claim(self, message_id: MessageId) -> bool:
        """Called in the transaction that would end a claim: False if an attempt runs, so that it must not."""
        with self._lock:
            if message_id in self._running:
                return False
            self._make_stale(message_id)
            self._ended_claims.add(message_id)
            self._settled_claims.discard(message_id)
            return True

    def settle(self, message_ids: Iterable[MessageId]) -> None:
        """The transaction is over, committed or not: what is read from now on counts."""
        with self._lock:
            self._settled_claims.update(self._ended_claims.intersection(message_ids))

    def reading(self) -> None:
        """Call right before claims are read for new attempts: they are as settled by now. One reader at a time."""
        with self._lock:
            self._changed.clear()
            self._ended_forks.clear()
            self._ended_claims -= self._settled_claims
            self._settled_claims.clear()

    def is_running(self, message_id: MessageId) -> bool:
        """It is being accepted or delivered, or waits for a session."""
        with self._lock:
            return message_id in self._running or message_id in self._waiting

    def _make_stale(self, message_id: MessageId) -> None:
        self._stale.update((message_id, next_hop) for next_hop in self._waiting.get(message_id, ()))

    def _stop_waiting(self, message_id: MessageId, next_hop: str) -> None:
        waiting = self._waiting.get(message_id)
        if waiting is not None:
            waiting.discard(next_hop)
            self._stale.discard((message_id, next_hop))
            if not waiting:
                del self._waiting[message_id]

    def __len__(self) -> int:
        return len(self._running)
