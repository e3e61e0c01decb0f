"""Parses a tracking log block by block into events, in bounded memory, and without errors for any content. docs/sla.md, 1.

Most lines are plain, and Arrow splits them together. A line of our own is plain if its log-id matches: then it is octet for octet what
`protocol.tracking` wrote. A line of another program is plain if it has no quote. All other lines are parsed singly by `lines.cells_of`.
An unfinished line or quoted field at the end of a block is parsed again with the next block.
"""

from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from typing import IO, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from shadowrelay.protocol.tracking import SCHEMA_VERSION
from shadowrelay.sla.columns import ARROW_EVENTS, Raw, events_of, without
from shadowrelay.sla.lines import (
    LINE_BYTES_MAX,
    LOG_ID_OCTETS,
    RECORD_LINES_MAX,
    Layout,
    Reason,
    cells_of,
    layout_of,
    row_id,
    row_id_key,
    shown,
)
from shadowrelay.sla.pieces import BOM, ROW_BEGINS, WHOLE, Bounded, Piece
from shadowrelay.sla.unpacked import Read, unpacked

BLOCK_BYTES = 4 * 1024 * 1024  # about 8,000 rows; about thirty times that in memory
_LAST = f",{SCHEMA_VERSION}".encode()
_TAIL_OCTETS = LOG_ID_OCTETS + len(_LAST)
_NO_ROW = frozenset((b"", b"#", b"\r", b" ", b"\xef"))  # first octets of lines that may not be rows


class BadLine(NamedTuple):
    """A line for quarantine."""

    number: int
    reason: Reason
    text: str


class Parsed(NamedTuple):
    """The result of one block: rows with the columns ARROW_EVENTS, and bad lines."""

    rows: pa.RecordBatch
    bad: list[BadLine]


class LogFile:
    """One file. Iterate once; the counts are valid after the iteration has ended or failed.

    `bytes` counts what was read from the stream, packed or not.
    Raises: what `stream.read` raises, OSError for a damaged archive, and nothing else.
    """

    def __init__(self, stream: IO[bytes], server: str, name: str, *, piece: Piece = WHOLE, block_bytes: int = BLOCK_BYTES) -> None:
        self.bytes = self.rows = self.quarantined = 0
        self.lines = piece.lines
        self.format = ""
        self.version = ""
        self.first_at: datetime | None = None
        self.last_at: datetime | None = None
        self._stream: IO[bytes] | Bounded = stream if piece.octets is None else Bounded(stream, piece.octets)
        self._is_followed = piece.octets is not None
        self._read: Read = self._counted
        self._may_be_packed = piece == WHOLE
        self._key = row_id_key(server)
        self._name = name
        self._block_bytes = block_bytes
        self._software = ""
        self._layout: Layout | None = None
        self._plain: list[tuple[int, bytes]] = []
        self._split: list[tuple[int, bytes, list[str]]] = []
        self._bad: list[BadLine] = []
        self._parts: list[pa.RecordBatch] = []
        for comment in piece.comments:
            if not _hides_rows(comment):
                self._take_comment(comment)

    def __iter__(self) -> Iterator[Parsed]:
        if self._may_be_packed:
            self._read = unpacked(self._counted)
        rest = b""
        while block := self._read(self._block_bytes):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            taken = self._take(lines, is_end=False)
            rest = b"\n".join([*lines[taken:], rest])
            yield from self._given()
            if len(rest) > LINE_BYTES_MAX and b"\n" not in rest:
                self._skip_line(rest)
                rest = self._after_long_line()
        lines = rest.split(b"\n")
        last = lines.pop()
        self._take(lines, is_end=True)
        if last:
            self.lines += 1
            if last.startswith((b"#", BOM + b"#")):
                if _hides_rows(last):
                    self._add_bad(self.lines, Reason.LINE_END, last)
            elif last.strip(b" \r\n"):
                self._add_bad(self.lines, Reason.TORN, last)
        yield from self._given()

    def _counted(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.bytes += len(block)
        return block

    def _skip_line(self, start: bytes) -> None:
        self.lines += 1
        self._add_bad(self.lines, Reason.CSV if self._layout else Reason.NO_HEADER, start)

    def _after_long_line(self) -> bytes:
        """The rest of the block after the line that is being skipped."""
        while block := self._read(self._block_bytes):
            _, end, rest = block.partition(b"\n")
            if end:
                return rest
        return b""

    def _take(self, lines: list[bytes], is_end: bool) -> int:
        """Process rows, comments and bad lines; returns how many lines were consumed: fewer if a quoted field continues."""
        before, index = self.lines, 0
        while index < len(lines):
            self.lines = before + index + 1  # the number of this line
            line = lines[index]
            if line[:1] in _NO_ROW:
                if line.startswith(BOM):
                    line = lines[index] = line[len(BOM) :]
                if line.startswith(b"#"):
                    self._take_comment(line)
                if line.startswith(b"#") or not line.strip(b" \r"):
                    index += 1
                    continue
            if self._layout is None:
                self._add_bad(self.lines, Reason.NO_HEADER, line)
                index += 1
            elif self._layout.has_own_order:
                index = self._take_own(lines, index, before, self._layout)
            else:
                taken = self._take_one(lines, index, is_end, self._layout)
                if not taken:
                    break
                index += taken
        self.lines = before + index
        self._flush()
        return index

    def _take_comment(self, line: bytes) -> None:
        if _hides_rows(line):
            self._add_bad(self.lines, Reason.LINE_END, line)
            return
        word, _, rest = line.decode("utf-8", "replace").partition(":")
        match word.lower():
            case "#software":
                self._software = rest.strip()
            case "#version":
                self.version = self.version or rest.strip()
            case "#fields":
                self._flush()
                self._layout = layout_of(rest, self._software)
                self.format = (self._layout.format if self._layout else "") or self.format

    def _take_own(self, lines: list[bytes], index: int, before: int, layout: Layout) -> int:
        """Process our own lines up to the next comment or empty line; returns the index after them. The hot loop."""
        for position in range(index, len(lines)):
            line = lines[position]
            if position > index and line[:1] in _NO_ROW:
                return position
            line = line.rstrip(b" \r")
            octets = line[:-_TAIL_OCTETS]
            digest = blake2b(octets, digest_size=16).hexdigest().encode()
            if line.endswith(_LAST) and digest == line[-_TAIL_OCTETS : -len(_LAST)].translate(None, b"-") and b"\r" not in line:
                self._plain.append((before + position + 1, line))
            else:
                self._judge(before + position + 1, line, layout)
        return len(lines)

    def _take_one(self, lines: list[bytes], index: int, is_end: bool, layout: Layout) -> int:
        """Process one row, possibly of several lines; returns how many, or 0 if its end is in the next block."""
        line = lines[index].removesuffix(b"\r")
        if layout.is_own:
            self._judge(self.lines, line.rstrip(b" "), layout)
            return 1
        if b'"' not in line:
            if line.count(b",") != layout.fields_count - 1 or b"\r" in line:
                self._judge(self.lines, line, layout)
            else:
                self._plain.append((self.lines, line))
            return 1
        quotes, after = line.count(b'"'), index + 1
        limit = min(len(lines), index + RECORD_LINES_MAX)
        while quotes % 2 and after < limit and not _begins_row(lines[after], layout):
            quotes += lines[after].count(b'"')
            after += 1
        is_open = quotes % 2 == 1
        is_cut = is_open and after == len(lines) and after < index + RECORD_LINES_MAX
        if is_cut and not is_end:
            return 0
        is_cut = is_cut and not self._is_followed  # else a row begins here
        if after > index + 1 and not is_open:
            record = b"\n".join(lines[index:after]).removesuffix(b"\r")
            cells = cells_of(record, layout)
            if not isinstance(cells, Reason):
                self._split.append((self.lines, record, cells))
                return after - index
        # an unclosed quote, or one closed by a later stray quote: only its own line is lost
        if is_cut:
            self._add_bad(self.lines, Reason.TORN, line)
        else:
            self._judge(self.lines, line, layout)
        return 1

    def _judge(self, number: int, line: bytes, layout: Layout) -> None:
        cells = cells_of(line, layout)
        if isinstance(cells, Reason):
            self._add_bad(number, cells, line)
        else:
            self._split.append((number, line, cells))

    def _flush(self) -> None:
        """Convert the collected lines under the current header."""
        if self._layout is not None and self._plain:
            columns = _split_together([line for _, line in self._plain], self._layout)
            if columns is None:  # invalid UTF-8, or a matching log-id on an invalid line
                for number, line in self._plain:
                    self._judge(number, line, self._layout)
            else:
                self._convert([number for number, _ in self._plain], [line for _, line in self._plain], columns, self._layout)
        if self._layout is not None and self._split:
            numbers, records, rows = zip(*self._split, strict=True)
            self._convert(list(numbers), list(records), [pa.array(cells, pa.string()) for cells in zip(*rows, strict=True)], self._layout)
        self._plain, self._split = [], []

    def _convert(self, numbers: list[int], lines: list[bytes], columns: list[pa.Array], layout: Layout) -> None:
        key = self._key if layout.is_own else b""  # a row of Exchange names its server: it is the same in whatever directory
        row_ids = pa.array([row_id(line, key) for line in lines], pa.string())
        has_escapes = layout.is_own and any(b"\\u" in line for line in lines)
        batch, bad = events_of(Raw(columns, pa.array(numbers, pa.int64()), row_ids, has_escapes), layout, self._name)
        for position, reason in bad.items():
            self._add_bad(numbers[position], reason, lines[position])
        self._parts.append(without(batch, bad))

    def _add_bad(self, number: int, reason: Reason, line: bytes) -> None:
        self._bad.append(BadLine(number, reason, shown(line)))

    def _given(self) -> Iterator[Parsed]:
        """Yield the collected results, once."""
        parts, bad = self._parts, self._bad
        self._parts, self._bad = [], []
        self.quarantined += len(bad)
        if not parts and not bad:
            return
        rows = pa.Table.from_batches(parts, ARROW_EVENTS).combine_chunks().to_batches()
        batch = rows[0] if rows else pa.RecordBatch.from_pylist([], ARROW_EVENTS)
        if batch.num_rows:
            self.rows += batch.num_rows
            span = pc.min_max(batch.column("at")).as_py()
            self.first_at = min(filter(None, (self.first_at, span["min"])))
            self.last_at = max(filter(None, (self.last_at, span["max"])))
        yield Parsed(batch, sorted(bad))


def _hides_rows(comment: bytes) -> bool:
    """As in a log whose lines end with CR only: a comment that contains further lines."""
    return b"\r" in comment.rstrip(b" \r")


def _begins_row(line: bytes, layout: Layout) -> bool:
    """Quoted fields do not continue with an instant and a comma: if a line begins so, the quote before it was a stray one."""
    return ROW_BEGINS.match(line) is not None and layout.positions["date-time"] == 0


def _owned(data: bytes) -> pa.Buffer:
    """A copy that no object of Python owns: a thread of Arrow reads it, and may release it last (`parquet_files`)."""
    copy = pa.BufferOutputStream()
    copy.write(data)
    return copy.getvalue()


def _split_together(lines: list[bytes], layout: Layout) -> list[pa.Array] | None:
    """Columns of plain lines; None if any line is not plain and all must be parsed singly."""
    names = [str(position) for position in range(layout.fields_count)]
    data = b"\n".join(lines)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(_owned(data)),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            parse_options=arrow_csv.ParseOptions(
                delimiter=",",
                quote_char='"' if layout.is_own else False,
                double_quote=True,
                newlines_in_values=False,
                ignore_empty_lines=False,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False, check_utf8=True
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(lines):
        return None
    return [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns]
