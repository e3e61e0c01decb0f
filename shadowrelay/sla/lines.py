"""Parses the header of a log file, and single lines: their fields, or the reason why a line is not a row. docs/sla.md, section 1.

`layout_of` parses the `#` lines: the fields, their order, and the program that wrote the file. `cells_of` is slow and exact; `parse` calls
it for lines that are not plain. `Reason` lists why lines are quarantined, in the order in which docs/sla.md checks them.
"""

import csv
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from shadowrelay.protocol.tracking import FIELDS

# ---- the header

OURS = "shadowrelay"
REQUIRED = ("date-time", "event-id")  # a header without these is invalid


class Layout(NamedTuple):
    """The fields of the following lines. Shapes: `positions` by name; `format` as in the events."""

    fields_count: int
    positions: dict[str, int]
    format: str

    @property
    def is_own(self) -> bool:
        """Written by this program: lines have a log-id that proves them whole, and escapes."""
        return self.format == OURS

    @property
    def has_own_order(self) -> bool:
        """Fields in this program's order: the log-id is the last field but one, so a line can be checked without splitting it."""
        return self.is_own and tuple(self.positions) == FIELDS and self.fields_count == len(FIELDS)


def layout_of(fields: str, software: str) -> Layout | None:
    """From the texts after `#Fields:` and `#Software:`. None if these are not the fields of a message tracking log."""
    names = [name.strip().lower() for name in fields.split(",")]
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, position)
    if not all(name in positions for name in REQUIRED):
        return None
    if software.strip().lower() == OURS:
        written_by = OURS
    elif "network-message-id" not in positions:
        written_by = "exchange2010"
    else:
        written_by = "exchange2016" if "log-id" in positions else "exchange2013"
    return Layout(len(names), positions, written_by)


# ---- lines

LINE_BYTES_MAX = 16 * 1024 * 1024  # a row of 10,000 recipients with long replies is 5 MB. Anything longer is not a log line
RECORD_LINES_MAX = 200  # lines of one quoted field: a subject has a few; more means an unclosed quote
LOG_ID_OCTETS = 36
TEXT_CHARACTERS_MAX = 500  # of a bad line in quarantine

csv.field_size_limit(LINE_BYTES_MAX)  # the module's default, 128 KiB per field, is too small for a row of many recipients


class Reason(StrEnum):
    """Why a line is quarantined."""

    TORN = "torn"
    NO_HEADER = "no header"
    LINE_END = "line end"
    ENCODING = "encoding"
    CSV = "csv"
    FIELDS = "fields"
    DATE_TIME = "date-time"
    NUMBER = "number"
    CUSTOM_DATA = "custom-data"
    UNREADABLE = "unreadable file"


def cells_of(record: bytes, layout: Layout) -> list[str] | Reason:
    """The fields of a line (or of the lines of one quoted record), or the reason why it is invalid."""
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.ENCODING
    try:
        rows = list(csv.reader((text,), strict=True))
    except csv.Error:
        return Reason.CSV
    if len(rows) != 1:
        return Reason.CSV
    cells = rows[0]
    if len(cells) != layout.fields_count:
        return Reason.FIELDS
    if layout.is_own and not _is_whole(record, cells, layout):
        return Reason.TORN
    return cells


def _is_whole(record: bytes, cells: list[str], layout: Layout) -> bool:
    """Whether `log-id` matches everything before it. True if the layout has none."""
    position = layout.positions.get("log-id")
    if position is None:
        return True
    after = record.rsplit(b",", layout.fields_count - position)  # neither log-id nor the fields after it are ever quoted
    return len(after[0]) < len(record) and is_log_id(cells[position].encode(), after[0] + b",")


def is_log_id(log_id: bytes, octets: bytes) -> bool:
    """Whether it is the log-id of these octets. The dashes are ignored."""
    return log_id.translate(None, b"-") == blake2b(octets, digest_size=16).hexdigest().encode()


def row_id_key(server: str) -> bytes:
    """A key that makes identical lines of two servers different rows."""
    name = server.encode("utf-8", "surrogateescape")
    return name if len(name) <= 64 else blake2b(name).digest()  # blake2b takes keys of at most 64 octets


def row_id(line: bytes, key: bytes) -> str:
    """The id of a line, without its line end and padding."""
    return blake2b(line, digest_size=16, key=key).hexdigest()


def shown(line: bytes) -> str:
    """The part of a bad line that is quarantined; octets that are not UTF-8 as U+FFFD."""
    return line[: TEXT_CHARACTERS_MAX * 4].decode("utf-8", "replace")[:TEXT_CHARACTERS_MAX]
