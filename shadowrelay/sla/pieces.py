"""Cuts a large log into pieces that several processes parse at the same time, with the same rows as the whole. docs/sla.md, section 1.

Only logs of our own are cut, because a line of theirs that begins with `#` is never part of a quoted field. A log is cut where a line
begins with an instant. Each piece finds its two ends by itself, from the octets at which it was told to begin and end. What the parser has
to know from before them are the comments, which have the names of the fields, and the number of lines: a scan finds both, as fast as the
disk reads.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from shadowrelay.sla.lines import LINE_BYTES_MAX
from shadowrelay.sla.logs import Source
from shadowrelay.sla.storage import is_local, located

PIECE_BYTES_MIN = 32 * 1024 * 1024  # about two thirds of a second: less is not worth a scan
BOM = b"\xef\xbb\xbf"
ROW_BEGINS = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}Z,")
_COMMENTS = (b"\n#", b"\n" + BOM + b"#")
_SCAN_BYTES = 1024 * 1024
_HEADER_BYTES = 4096
_IS_OWN = re.compile(rb"(?:\xef\xbb\xbf)?#software: *shadowrelay *\r?\n", re.IGNORECASE)


class Piece(NamedTuple):
    """What `LogFile` has to know. `octets`: its length, None for the rest of the file; `lines`: before it, and `comments` of these."""

    begin: int = 0
    octets: int | None = None
    lines: int = 0
    comments: tuple[bytes, ...] = ()


WHOLE = Piece()


def in_pieces(sources: Iterable[Source], count: int) -> list[Source]:
    """The same logs, large ones in at most `count` pieces each. None of a store, which would send what is before a piece once more."""
    return [piece for source in sources for piece in _pieces_of(source, count)]


def _pieces_of(source: Source, count: int) -> Iterator[Source]:
    pieces = min((source.size or 0) // PIECE_BYTES_MIN, count)
    if pieces < 2 or not _may_be_cut(source):
        yield source
        return
    assert source.size is not None
    octets = source.size // pieces
    for number in range(pieces):
        end = None if number == pieces - 1 else (number + 1) * octets  # a log that grows is read as far as it goes
        yield source._replace(size=octets, piece=number, begin=number * octets, end=end)


def _may_be_cut(source: Source) -> bool:
    files, path = located(source.path)
    if not is_local(files):
        return False
    try:
        with files.open(path, "rb") as stream:
            return _IS_OWN.match(stream.read(_HEADER_BYTES)) is not None
    except OSError:  # the worker that reads it says so
        return False


def piece_of(stream: IO[bytes], source: Source) -> Piece:
    """Find its ends, and scan what is before it; `stream` is at its beginning afterwards."""
    if source.is_whole:
        return WHOLE
    end = None if source.end is None else _row_from(stream, source.end)
    begin = _row_from(stream, source.begin) if source.begin else 0
    if begin is None:
        begin = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    lines, comments = _before(stream, begin)
    stream.seek(begin)
    return Piece(begin, None if end is None else end - begin, lines, comments)


def _row_from(stream: IO[bytes], place: int) -> int | None:
    """Where the first row begins at or after `place`; None if there is none."""
    stream.seek(place - 1)
    while (line := stream.readline(_SCAN_BYTES)) and not line.endswith(b"\n"):
        pass
    while True:
        place = stream.tell()
        line = stream.readline(_SCAN_BYTES)
        if not line:
            return None
        if ROW_BEGINS.match(line):
            return place
        while line and not line.endswith(b"\n"):
            line = stream.readline(_SCAN_BYTES)


def _before(stream: IO[bytes], octets: int) -> tuple[int, tuple[bytes, ...]]:
    """The number of lines, and those that begin with `#`, in so many octets from here. Shapes: they end with a whole line."""
    lines, comments, rest = 0, list[bytes](), b"\n"
    while octets and (block := stream.read(min(_SCAN_BYTES, octets))):
        octets -= len(block)
        lines += block.count(b"\n")
        block = rest + block
        end = block.rfind(b"\n")
        for place in _comments_in(block[: end + 1]):
            comments.append(block[place : block.index(b"\n", place)])
        rest = block[end:]
        if not rest.startswith(_COMMENTS):
            rest = rest[: len(_COMMENTS[-1])]  # enough to see that it is none: a line may be as long as the log
        elif len(rest) > LINE_BYTES_MAX:
            rest = b"\n-"  # no comment: the parser calls such a line bad
    return lines, tuple(comments)


def _comments_in(block: bytes) -> list[int]:
    """Where they begin, without their byte order mark. Shapes: `block` begins and ends with the end of a line."""
    places = []
    for mark in _COMMENTS:
        place = block.find(mark)
        while place >= 0:
            places.append(place + len(mark) - 1)
            place = block.find(mark, place + 1)
    return sorted(places)


class Bounded:
    """The next `octets` of a stream."""

    def __init__(self, stream: IO[bytes], octets: int) -> None:
        self._stream = stream
        self._left = octets

    def read(self, size: int) -> bytes:
        block = self._stream.read(min(size, self._left))
        self._left -= len(block)
        return block


def of_logs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row of `files` for each log, from one for each piece. The lines of a piece are counted from the beginning of the log."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: int(row["lines"])):
        key = row["server"], row["file"]
        log = found.get(key)
        found[key] = row if log is None else _joined(log, row)
    return list(found.values())


def _joined(first: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    sums = {name: first[name] + later[name] for name in ("bytes", "rows", "quarantined")}
    last = {name: later[name] or first[name] for name in ("lines", "format")}
    span = {
        "first_at": min((at for at in (first["first_at"], later["first_at"]) if at), default=None),
        "last_at": max((at for at in (first["last_at"], later["last_at"]) if at), default=None),
    }
    return first | sums | last | span | {"version": first["version"] or later["version"]}
