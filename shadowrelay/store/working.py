"""Which messages are being worked on, so that a message that kills the node is found out (DESIGN 6.9).

This must outlive the process but not the power, so it is a small file written in place and never synced: what a
dead process wrote is still in the kernel. A commit for each attempt would cost as much as the attempt.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shadowrelay.model.ids import MessageId

SLOT_BYTES = 40  # a UUID has 36
SLOTS_COUNT_MAX = 16_384  # 640 KiB; more at once are not watched
EMPTY = bytes(SLOT_BYTES)


class WorkingFile:
    """Raises: OSError from `open` only; while running, not being able to note it is no reason not to deliver."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._slots: dict[MessageId, int] = {}
        self._free: list[int] = []
        self._slots_count = 0

    def open(self) -> tuple[MessageId, ...]:
        """What was being worked on when the last process died. They stay noted until `begin`."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = os.pread(self._descriptor, SLOT_BYTES * SLOTS_COUNT_MAX, 0)
        slots = (data[start : start + SLOT_BYTES].rstrip(b"\0") for start in range(0, len(data), SLOT_BYTES))
        return tuple({MessageId(slot.decode("ascii", "replace")) for slot in slots if slot})

    def begin(self) -> None:
        """Nothing is being worked on."""
        os.ftruncate(self._descriptor, 0)

    def note(self, message_ids: Iterable[MessageId]) -> None:
        for message_id in message_ids:
            text = message_id.encode("ascii", "replace")
            if message_id in self._slots or len(text) > SLOT_BYTES:
                continue
            if self._free:
                slot = self._free.pop()
            elif self._slots_count < SLOTS_COUNT_MAX:
                slot = self._slots_count
                self._slots_count += 1
            else:
                return
            self._slots[message_id] = slot
            self._write(slot, text.ljust(SLOT_BYTES, b"\0"))

    def clear(self, message_id: MessageId) -> None:
        slot = self._slots.pop(message_id, None)
        if slot is not None:
            self._free.append(slot)
            self._write(slot, EMPTY)

    def _write(self, slot: int, data: bytes) -> None:
        with suppress(OSError):  # a full disk: the note is a help, not a promise
            os.pwrite(self._descriptor, data, slot * SLOT_BYTES)

    def close(self, *, is_clean: bool) -> None:
        if self._descriptor >= 0:
            if is_clean:
                self.begin()
            os.close(self._descriptor)
            self._descriptor = -1
