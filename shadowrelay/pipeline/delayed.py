"""Delayed acknowledgement: the 250 waits until the message is safe elsewhere, up to a limit. docs/design.md 6.7.

A client that cannot keep a shadow itself, on a connector whose mail is not copied, is protected by its own queue: it keeps the message
until it has its 250. It gets that when every recipient is done here (delivered, returned, or relayed to a next hop whose shadow this node
keeps), when a copy exists, or when the time is over. The message is committed before the wait begins, so the answer is 250 whatever ends
the wait. A waiter is an entry here and a task: no content, no attempt, no lease.
"""

import asyncio

from shadowrelay.model.ids import MessageId
from shadowrelay.model.tracking import Acknowledged


class Delayed:
    """The acknowledgements that wait, by message."""

    def __init__(self) -> None:
        self._waiting: dict[MessageId, asyncio.Future[Acknowledged]] = {}
        self._is_released = False

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, message_id: MessageId) -> None:
        """Before delivery begins: from now on `end` for this message counts."""
        self._waiting[message_id] = asyncio.get_running_loop().create_future()

    async def wait(self, message_id: MessageId, seconds: float) -> Acknowledged:
        """Wait for `end`, at most so long. `forget` must follow."""
        waiting = self._waiting[message_id]
        if self._is_released and not waiting.done():
            return Acknowledged.STOPPING
        await asyncio.wait((waiting,), timeout=seconds)
        return waiting.result() if waiting.done() else Acknowledged.BEST_EFFORT

    def forget(self, message_id: MessageId) -> None:
        """Nobody waits for this message any more."""
        self._waiting.pop(message_id, None)

    def end(self, message_id: MessageId, how: Acknowledged) -> None:
        """What the message waited for has happened. Messages that nobody waits for are most."""
        waiting = self._waiting.get(message_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(how)

    def release(self, *, is_stopping: bool) -> None:
        """This node stops taking mail, or takes it again: while it is stopping, no acknowledgement waits."""
        self._is_released = is_stopping
        if is_stopping:
            for message_id in tuple(self._waiting):
                self.end(message_id, Acknowledged.STOPPING)
