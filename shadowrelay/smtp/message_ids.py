"""Network message ids, drawn by whoever accepts a message. docs/protocol.md 3."""

import os
from collections import deque
from time import time_ns

from shadowrelay.model.ids import MessageId

IDS_DRAWN_AT_ONCE = 64  # a system call per id, which also releases the interpreter's lock, is too slow

_drawn: deque[str] = deque()  # hexadecimal digits, 32 per id; deque operations are atomic
os.register_at_fork(after_in_child=_drawn.clear)  # two processes must not use the same digits


def new_message_id() -> MessageId:
    """A network message id: a UUID of version 7 (RFC 9562 5.7). Its random part makes it unique in the boundary; the time in
    milliseconds before it places ids of the same time together in the database's index."""
    try:
        digits = _drawn.popleft()
    except IndexError:
        fresh = os.urandom(16 * IDS_DRAWN_AT_ONCE).hex()
        _drawn.extend([fresh[start : start + 32] for start in range(32, len(fresh), 32)])
        digits = fresh[:32]
    at = f"{time_ns() // 1_000_000:012x}"
    variant = "89ab"[int(digits[16], 16) & 3]
    return MessageId(f"{at[:8]}-{at[8:]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}")
