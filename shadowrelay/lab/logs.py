"""The nodes' tracking logs, as the lab reads them: rows as dicts by field name, in the order of the files."""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

Row = dict[str, str]


def rows(directory: Path) -> Iterator[Row]:
    """All rows of one node. A line that is not whole yet has no place here: files are read when the node has ended."""
    for path in sorted(directory.glob("MSGTRK*.LOG"), key=_file_order):
        with path.open(newline="", encoding="utf-8") as file:
            fields: list[str] = []
            for row in csv.reader(file):
                if row and row[0].startswith("#Fields: "):
                    fields = [row[0].removeprefix("#Fields: "), *row[1:]]
                elif row and not row[0].startswith("#"):
                    yield dict(zip(fields, row, strict=False))


def instant(row: Row) -> float:
    """Its date-time. Units: time.time."""
    return datetime.fromisoformat(row["date-time"]).timestamp()


def recipients(row: Row) -> list[str]:
    """Of the row, in its order."""
    return row["recipient-address"].split(";") if row["recipient-address"] else []


def _file_order(path: Path) -> tuple[str, int]:
    hour, _, number = path.stem.partition("-")
    return hour, int(number or 0)
