"""The flights of the messages in memory (`rules.flight`), and the order of what happens to them. docs/design.md 6.2.

Events come from the event loop and, where a claim ends in a long transaction, from the ledger's thread: one lock decides which came first.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec

from shadowrelay.model.ids import MessageId
from shadowrelay.rules import flight
from shadowrelay.rules.flight import NO_FLIGHT, ClaimEnd, Flight

P = ParamSpec("P")


class Flights(dict[MessageId, Flight]):
    """By message; of a message that is not in memory, `NO_FLIGHT`. Changed by `happens` and `begin_read` only. Whoever says `end_claim`
    must say `settle_claim` when that transaction is over."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._since_read: set[MessageId] = set()  # flights that the next read changes

    def __missing__(self, message_id: MessageId) -> Flight:
        return NO_FLIGHT

    def happens(
        self, message_id: MessageId, event: Callable[Concatenate[Flight, P], flight.Answer], /, *arguments: P.args, **named: P.kwargs
    ) -> bool:
        """Apply an event of `rules.flight`; whether it may be. Raises: IllegalTransition; nothing has changed then."""
        with self._lock:
            before = self.get(message_id, NO_FLIGHT)
            after, may = event(before, *arguments, **named)
            if after is not before:
                if after == NO_FLIGHT:
                    self.pop(message_id, None)
                else:
                    self[message_id] = after
                    if after.ended or after.is_released or after.is_changed or after.claim_end is not ClaimEnd.NO:
                        self._since_read.add(message_id)
            return may

    def begin_read(self) -> None:
        """Say it right before claims are read for new attempts: the read includes everything settled so far. One reader at a time."""
        with self._lock:
            of_read, self._since_read = self._since_read, set()
            for message_id in of_read:
                before = self.get(message_id, NO_FLIGHT)
                if not before.forks and not before.is_reserved and not before.is_copying and before.claim_end is ClaimEnd.NO:
                    self.pop(message_id, None)  # nearly every one: what is delivered leaves no more than what a read clears
                    continue
                after, _ = flight.begin_read(before)
                if after == NO_FLIGHT:
                    self.pop(message_id, None)
                    continue
                self[message_id] = after
                if after.claim_end is not ClaimEnd.NO:
                    self._since_read.add(message_id)

    def copying(self, message_ids: Iterable[MessageId]) -> set[MessageId]:
        """Those of which a copy is being made, or its outcome is not recorded yet."""
        return {message_id for message_id in message_ids if message_id in self and self[message_id].is_copying}

    def busy_count(self) -> int:
        """Messages that are being accepted or delivered."""
        return sum(each.is_reserved or bool(each.running_count) for each in tuple(self.values()))
