"""What a log file's `#` lines say about its rows: which fields, in which order, and who wrote them. docs/sla.md, section 1."""

from typing import NamedTuple

from shadowrelay.wire.tracking import FIELDS

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
