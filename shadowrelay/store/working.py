"""Whose content is being handled at this moment, so that a message that kills the node is found out (docs/design.md 6.9).

A message is marked only while its content is parsed or written out, and never while it waits for anything: the mark is set
and cleared again before the event loop runs on. So the mark that a dead process left names the message that it died on.

This must outlive the process but not the power, so it is a small file written in place and never synced: what a dead
process wrote is still in the kernel. A commit for each attempt would cost as much as the attempt. Two deaths count for
nothing, and the first slot of the file, its header, tells them apart:

* a death after the process was asked to stop: somebody lost patience and killed it, whatever it was doing;
* a death of the machine, known by another boot id. What an unsynced file says after a loss of power may be minutes old or half
  written, so it must not blame anybody. The price: a message that takes the whole machine down is not found out here.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shadowrelay.model.ids import MessageId
from shadowrelay.model.values import dataclass

SLOT_BYTES = 40  # a UUID has 36
SLOTS_COUNT_MAX = 64  # one is used at a time; more at once are not watched
FILE_BYTES_MAX = SLOT_BYTES * 16_385  # as large as older versions made it
EMPTY = bytes(SLOT_BYTES)
STOPPING = b"S"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNKNOWN_BOOT = "unknown"  # not Linux: every death counts as one of the process
SURVIVED_COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Deaths:
    """What the last process was handling when it died. `excuse`: why that is no reason to suspect it; empty if it is."""

    message_ids: tuple[MessageId, ...]
    excuse: str = ""


def read_boot_id() -> str:
    """Of the running kernel; the same in all containers of a machine."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()[: SLOT_BYTES - len(STOPPING)]
    except (OSError, ValueError):
        return UNKNOWN_BOOT


class WorkingFile:
    """Raises: OSError from `open` only. Not being able to mark is no reason not to deliver."""

    def __init__(self, path: Path, boot_id: Callable[[], str] = read_boot_id) -> None:
        self._path = path
        self._boot_id = boot_id
        self._boot = b""
        self._descriptor = -1
        self.handling: Callable[[MessageId], Handling] = partial(Handling, self)
        self.slots: dict[MessageId, int] = {}
        self.free = list(range(SLOTS_COUNT_MAX, 0, -1))
        self.survived: set[MessageId] = set()

    def open(self) -> Deaths:
        """The marks that the last process left. They stay until `begin`."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = self._boot_id().encode("ascii", "replace")
        data = os.pread(self._descriptor, FILE_BYTES_MAX, 0)
        slots = (data[start : start + SLOT_BYTES].rstrip(b"\0") for start in range(SLOT_BYTES, len(data), SLOT_BYTES))
        message_ids = tuple(dict.fromkeys(MessageId(slot.decode("ascii", "replace")) for slot in slots if slot))
        header = data[:SLOT_BYTES]
        if header[: -len(STOPPING)].rstrip(b"\0") != self._boot:
            return Deaths(message_ids, "the machine was started since, or the file is an older version's")
        return Deaths(message_ids, "it had been asked to stop" if header.endswith(STOPPING) else "")

    def begin(self) -> None:
        """Nothing is being handled. All slots are written, so that a mark needs no room on a full disk."""
        self.write(0, self._header(b"\0") + EMPTY * SLOTS_COUNT_MAX)
        os.ftruncate(self._descriptor, SLOT_BYTES * (1 + SLOTS_COUNT_MAX))

    def stopping(self) -> None:
        """From now on a death is nobody's fault."""
        if self._descriptor >= 0:
            self.write(0, self._header(STOPPING))

    def _header(self, state: bytes) -> bytes:
        return self._boot.ljust(SLOT_BYTES - len(state), b"\0") + state

    def has_survived(self, message_id: MessageId) -> bool:
        """Whether its content was handled since this was last asked."""
        if message_id not in self.survived:
            return False
        self.survived.discard(message_id)
        return True

    def write(self, slot: int, data: bytes) -> None:
        """Raises nothing: the mark is a help, not a promise."""
        try:  # noqa: SIM105 - it runs four times a message
            os.pwrite(self._descriptor, data, slot * SLOT_BYTES)
        except OSError:
            pass

    def close(self, *, is_clean: bool) -> None:
        if self._descriptor >= 0:
            if is_clean:
                self.begin()
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class Handling:
    """Marks a message as long as the `with` lasts: a step that handles its content and waits for nothing. The mark goes also
    when the step ends with an exception: the process lives."""

    __slots__ = ("_file", "_message_id")

    def __init__(self, file: WorkingFile, message_id: MessageId) -> None:
        self._file, self._message_id = file, message_id

    def __enter__(self) -> None:
        file, text = self._file, self._message_id.encode("ascii", "replace")
        if self._message_id not in file.slots and len(text) <= SLOT_BYTES and file.free:
            slot = file.slots[self._message_id] = file.free.pop()
            file.write(slot, text.ljust(SLOT_BYTES, b"\0"))

    def __exit__(self, *_: object) -> None:
        file = self._file
        slot = file.slots.pop(self._message_id, None)
        if slot is not None:
            file.free.append(slot)
            file.write(slot, EMPTY)
        if len(file.survived) >= SURVIVED_COUNT_MAX:
            file.survived.clear()
        file.survived.add(self._message_id)
