"""Failures of one message that become known together, for one DSN. docs/design.md 5.

A fork of which every recipient failed waits briefly with its outcome while other forks of its message are in hand; who ends last, or waits
no longer, commits all of them. A crash meanwhile costs nothing but another attempt: nothing of them was delivered.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Ordinals
from shadowrelay.model.replies import Reply

JOIN_SECONDS = 1.0  # a place in the queue of the next hop is taken meanwhile


@dataclass(slots=True, eq=False)
class Failures:
    """Of one fork: the reply and the server by recipient. `is_committed`: whether the commit of another fork had them."""

    next_hop: str
    failed: Mapping[int, Reply]
    expired: Ordinals
    server: str
    is_committed: "asyncio.Future[bool]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class JointFailures:
    """`others`, everywhere: the next hops of the message's other forks that are in hand."""

    def __init__(self) -> None:
        self.waiting: dict[MessageId, list[Failures]] = {}  # changed only here

    def is_last(self, message_id: MessageId, others: Collection[str]) -> bool:
        """Whether none of them may end yet: those that are in hand wait here."""
        waiting = {one.next_hop for one in self.waiting.get(message_id, ())}
        return waiting.issuperset(others)

    async def wait(self, message_id: MessageId, failures: Failures) -> bool:
        """Wait for the end of other forks. True: committed by one of them. False: the caller commits it, with what `take` gives."""
        self.waiting.setdefault(message_id, []).append(failures)
        try:
            return await asyncio.wait_for(asyncio.shield(failures.is_committed), JOIN_SECONDS)
        except TimeoutError:
            return not self._remove(message_id, failures) and await failures.is_committed  # being committed: however long that takes
        finally:
            self._remove(message_id, failures)

    def take(self, message_id: MessageId) -> list[Failures]:
        """What waits. The caller commits it, and calls `end`."""
        return self.waiting.pop(message_id, [])

    def end(self, taken: Collection[Failures], *, is_committed: bool) -> None:
        """What was taken is committed, or each of them does so itself."""
        for failures in taken:
            if not failures.is_committed.done():
                failures.is_committed.set_result(is_committed)

    def _remove(self, message_id: MessageId, failures: Failures) -> bool:
        waiting = self.waiting.get(message_id, [])
        if failures not in waiting:
            return False
        waiting.remove(failures)
        if not waiting:
            del self.waiting[message_id]
        return True
