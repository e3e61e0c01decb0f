"""Finds the rows about one message in the files of the message tracking log. docs/reference.md "Trace a message".

No index: a line is searched for as it stands, a gigabyte in a second.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from shadowrelay.model.replies import WireError
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.protocol.tracking import parse_line

BLOCK_BYTES = 1024 * 1024  # half a millisecond: meanwhile no other thread runs
ROWS_MAX = 1_000


def rows_about(text: str, files: Iterable[Path]) -> list[TrackingEvent]:
    """The first `ROWS_MAX` rows in these files that have this text: of an id of a message its own, and those of others that refer to it.
    Raises: OSError."""
    found: list[TrackingEvent] = []
    for path in files:
        try:
            found += [event for line in _lines_with(path, text.encode()) if (event := _parsed(line))]
        except FileNotFoundError:  # retention deleted it meanwhile
            continue
        if len(found) >= ROWS_MAX:
            break
    return found[:ROWS_MAX]


def _lines_with(path: Path, needle: bytes) -> Iterator[bytes]:
    """Whole lines; the last one may still be written."""
    with path.open("rb") as file:
        rest = b""
        while block := file.read(BLOCK_BYTES):
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            at = block.find(needle, 0, end)
            while at >= 0:
                begins, ends = block.rfind(b"\n", 0, at) + 1, block.index(b"\n", at) + 1
                yield block[begins:ends]
                at = block.find(needle, ends, end)


def _parsed(line: bytes) -> TrackingEvent | None:
    """`None` for a torn line, or one of a later version."""
    try:
        return parse_line(line)
    except WireError:
        return None
