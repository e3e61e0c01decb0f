"""The header of a log file and its single lines: which fields there are, and what one line holds or why it is no row.

`layout_of` reads what the `#` lines say: the fields, their order, and who wrote the file. `cells_of` is slow and exact; `parse` calls it
for lines that are not plain. The reasons for which a line is no row, in the order in which they are checked: docs/sla.md, section 1.
"""

import csv
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from shadowrelay.protocol.tracking import FIELDS

# ---- the header

OURS = "shadowrelay"
REQUIRED = ("date-time", "event-id")  # without these a header names no rows


class Layout(NamedTuple):
    """Fields of the lines that follow. Shapes: `positions` by name; `format` as in the events."""

    fields_count: int
    positions: dict[str, int]
    format: str

    @property
    def is_own(self) -> bool:
        """Lines with a log-id that proves them whole, and escapes to be undone."""
        return self.format == OURS

    @property
    def has_own_order(self) -> bool:
        """As this program writes them: the log-id is the last field but one, and the line can be checked without being split."""
        return self.is_own and tuple(self.positions) == FIELDS and self.fields_count == len(FIELDS)


def layout_of(fields: str, software: str) -> Layout | None:
    """From what follows `#Fields:` and `#Software:`. None, when these are not the fields of a message tracking log."""
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

LINE_BYTES_MAX = 16 * 1024 * 1024  # a row of 10,000 recipients with long replies is 5 MB. Anything longer is no log
RECORD_LINES_MAX = 200  # lines of one quoted field: a subject has a few; more is a quote that nobody closed
LOG_ID_OCTETS = 36
TEXT_CHARACTERS_MAX = 500  # of a bad line in quarantine

csv.field_size_limit(LINE_BYTES_MAX)  # the module's own limit, 128 KiB a field, is less than a row of many recipients


class Reason(StrEnum):
    """Why a line is in quarantine."""

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
    """The fields of a line (or of the lines of one quoted record), or what is wrong with it."""
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
    """Does `log-id` stand for all that is before it? True where the layout has none."""
    position = layout.positions.get("log-id")
    if position is None:
        return True
    after = record.rsplit(b",", layout.fields_count - position)  # neither log-id nor what follows it is ever quoted
    return len(after[0]) < len(record) and is_log_id(cells[position].encode(), after[0] + b",")


def is_log_id(log_id: bytes, octets: bytes) -> bool:
    """Is it the one of these octets? The dashes are for people."""
    return log_id.translate(None, b"-") == blake2b(octets, digest_size=16).hexdigest().encode()


def row_id_key(server: str) -> bytes:
    """What makes the same line in the logs of two servers two rows."""
    name = server.encode("utf-8", "surrogateescape")
    return name if len(name) <= 64 else blake2b(name).digest()  # blake2b takes keys of at most 64 octets


def row_id(line: bytes, key: bytes) -> str:
    """Of a line without its end and its filling."""
    return blake2b(line, digest_size=16, key=key).hexdigest()


def shown(line: bytes) -> str:
    """As much of a bad line as goes into quarantine; octets that are no UTF-8 as U+FFFD."""
    return line[: TEXT_CHARACTERS_MAX * 4].decode("utf-8", "replace")[:TEXT_CHARACTERS_MAX]
