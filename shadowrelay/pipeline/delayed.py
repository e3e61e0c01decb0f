"""Delayed acknowledgement: the 250 waits until the message is safe elsewhere, up to a limit. docs/design.md 6.7.

A client that cannot keep a shadow itself, on a connector whose mail is not copied, is protected by its own queue: it keeps the message
until it has its 250. It gets that when every recipient is done here (delivered, returned, or relayed to a next hop whose shadow this node
keeps), when a copy exists, or when the time is over. The message is committed before the wait begins, so the answer is 250 whatever ends
the wait. A waiter is an entry here and a task: no content, no attempt, no lease.

A DSN or a journal report that results from the message is on this disk only as well, so the wait continues until it is done or copied.
"""

import asyncio
from collections.abc import Iterable

from shadowrelay.model.ids import MessageId
from shadowrelay.model.tracking import Acknowledged


class Delayed:
    """The acknowledgements that wait. `waiting` has them by message; while it is empty, `end` does nothing and need not be called."""

    def __init__(self) -> None:
        self.waiting: dict[MessageId, asyncio.Future[Acknowledged]] = {}
        self._generated: dict[MessageId, MessageId] = {}  # generated message that is not safe yet -> the message that caused it
        self._generated_counts: dict[MessageId, int] = {}  # by the message that caused them
        self._done: dict[MessageId, Acknowledged] = {}  # but for their generated messages
        self._is_released = False

    def __len__(self) -> int:
        return len(self.waiting)

    def expect(self, message_id: MessageId) -> None:
        """Before delivery begins: from now on `end` for this message counts."""
        self.waiting[message_id] = asyncio.get_running_loop().create_future()

    async def wait(self, message_id: MessageId, seconds: float) -> Acknowledged:
        """Wait for `end`, at most so long. `forget` must follow."""
        waiting = self.waiting[message_id]
        if self._is_released and not waiting.done():
            return Acknowledged.STOPPING
        await asyncio.wait((waiting,), timeout=seconds)
        return waiting.result() if waiting.done() else Acknowledged.BEST_EFFORT

    def forget(self, message_id: MessageId) -> None:
        """Nobody waits for this message any more."""
        self.waiting.pop(message_id, None)
        self._done.pop(message_id, None)
        if self._generated_counts.pop(message_id, 0):
            self._generated = {made: original for made, original in self._generated.items() if original != message_id}

    def caused(self, message_id: MessageId, generated: Iterable[MessageId]) -> None:
        """These generated messages come of the message, in a commit that follows."""
        if message_id in self.waiting:
            for new in set(generated).difference(self._generated):
                self._generated[new] = message_id
                self._generated_counts[message_id] = self._generated_counts.get(message_id, 0) + 1

    def end(self, message_id: MessageId, how: Acknowledged) -> None:
        """What the message waited for has happened. Messages that nobody waits for are most."""
        if self._generated:
            original = self._generated.pop(message_id, None)
            if original is not None:
                self._generated_ended(original, how)
            elif how in (Acknowledged.DONE, Acknowledged.REMOVED) and message_id in self._generated_counts:
                self._done[message_id] = how
                return
        waiting = self.waiting.get(message_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(how)

    def _generated_ended(self, original: MessageId, how: Acknowledged) -> None:
        left = self._generated_counts.pop(original, 0) - 1
        if left > 0:
            self._generated_counts[original] = left
        if not how.is_safe:
            self.end(original, how)
        elif left <= 0 and original in self._done:
            self.end(original, self._done[original])

    def release(self, *, is_stopping: bool) -> None:
        """This node stops taking mail, or takes it again: while it is stopping, no acknowledgement waits."""
        self._is_released = is_stopping
        if is_stopping:
            for message_id in tuple(self.waiting):
                self.end(message_id, Acknowledged.STOPPING)
