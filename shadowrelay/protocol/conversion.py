"""Writes a binary message (BINARYMIME) in lines, for servers that take nothing else: its binary parts in base64. RFC 3030 3, RFC 2045 6.

Whoever reads the message gets the same octets in each part: only the transfer encoding of a part that is not text in lines changes, and the
names of the encodings around it. A part that is text in lines stays as it is, and so does a message of which all is.

A message is never broken: what cannot be written in lines with the same meaning is not converted at all, and `NotConvertible` says why. A
signed part (multipart/signed) must not be changed; a part whose own encoding is broken, or a header that is no text, has no other form.

The content is never copied as a whole: a conversion is a list of pieces, so that a file of any size can be read as it is sent.
"""

import base64
import re
from collections.abc import Iterator
from email.message import Message
from typing import NamedTuple, Protocol

from shadowrelay.model.values import dataclass
from shadowrelay.protocol.line_ends import LineEnds, has_long_line

LINE_OCTETS_MAX = 1_000  # RFC 5321 4.5.3.1.6, with CRLF: a longer line may be broken on its way
HEADER_OCTETS_MAX = 256 * 1024  # of one part
DEPTH_MAX = 30
PARTS_MAX = 2_000
DELIMITERS_MAX = 20_000  # lines that begin like one, in one multipart
BLOCK_OCTETS = 1024 * 1024
LINE_INPUT, LINE_OUTPUT = 57, 76  # octets in a line of base64, and its characters. RFC 2045 6.8
ENCODED_AT_ONCE = LINE_INPUT * 4_096


class Octets(Protocol):
    """A content: octets in memory, or a file. Raises: OSError."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: slice, /) -> bytes: ...
    def find(self, wanted: bytes, start: int, end: int, /) -> int:
        """As `bytes.find`."""
        ...


_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)\n?")
_ENCODING = re.compile(r"\s*(?:\([^()]*\)\s*)*([!-'*-~]*)")
_REST_OF_DELIMITER = re.compile(rb"(--)?[ \t]*(?:\r\n|\Z)")
_ENCODABLE = frozenset({"", "7bit", "8bit", "binary"})


class NotConvertible(Exception):
    """The message has no form in lines with the same meaning; the text says why. `is_prohibited`: it must not be changed."""

    def __init__(self, why: str, *, is_prohibited: bool = False) -> None:
        super().__init__(why)
        self.is_prohibited = is_prohibited


class Span(NamedTuple):
    """Octets of the content, as they are or in base64."""

    start: int
    end: int
    is_encoded: bool = False

    @property
    def size(self) -> int:
        """Octets that go out."""
        octets = self.end - self.start
        if not self.is_encoded or not octets:
            return octets
        return 4 * -(-octets // 3) + 2 * (-(-octets // LINE_INPUT) - 1)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A message in lines, as pieces of the content and new text between them."""

    pieces: tuple[Span | bytes, ...]

    @property
    def size(self) -> int:
        """Octets that go out."""
        return sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in self.pieces)

    def blocks(self, content: Octets) -> Iterator[bytes]:
        """What goes out, of this content."""
        for piece in self.pieces:
            if isinstance(piece, bytes):
                yield piece
            elif piece.is_encoded:
                yield from _encoded(content, piece)
            else:
                for start in range(piece.start, piece.end, BLOCK_OCTETS):
                    yield bytes(content[start : min(start + BLOCK_OCTETS, piece.end)])


def _encoded(content: Octets, span: Span) -> Iterator[bytes]:
    """Lines of base64, without a CRLF behind the last one."""
    for start in range(span.start, span.end, ENCODED_AT_ONCE):
        end = min(start + ENCODED_AT_ONCE, span.end)
        lines = base64.encodebytes(content[start:end]).replace(b"\n", b"\r\n")
        yield lines if end < span.end else lines[:-2]


def converted(content: Octets) -> Conversion:
    """In lines of at most 1,000 octets. Raises: NotConvertible."""
    work = _Work(content)
    work.part(0, len(content), depth=0, is_message=True)
    return Conversion(tuple(work.pieces))


def is_in_lines(content: Octets, start: int, end: int) -> bool:
    """Whether these octets are text in lines, that any server passes on as it is; the last line may have no end."""
    line_ends, rest = LineEnds(), b""
    for place in range(start, end, BLOCK_OCTETS):
        block = bytes(content[place : min(place + BLOCK_OCTETS, end)])
        line_ends.take(block)
        if line_ends.has_bare or b"\0" in block:
            return False
        text = rest + block
        cut = text.rfind(b"\r\n") + 2
        text, rest = (text[:cut], text[cut:]) if cut > 1 else (b"", text)
        if len(rest) > LINE_OCTETS_MAX - 2 or has_long_line(text, LINE_OCTETS_MAX):
            return False
    return line_ends.are_right


@dataclass(slots=True)
class _Header:
    """Of a part: its fields as they are written, and what they say."""

    fields: list[tuple[str, bytes]]
    kind: str
    boundary: str
    encoding: str
    is_mime: bool

    def with_encoding(self, encoding: str, *, is_message: bool) -> bytes:
        """The header as octets, with this transfer encoding, and an empty line."""
        kept = [octets for name, octets in self.fields if name != "content-transfer-encoding"]
        added = b"Content-Transfer-Encoding: %s\r\n\r\n" % encoding.encode("ascii")
        return b"".join((*kept, added if self.is_mime or not is_message else b"MIME-Version: 1.0\r\n" + added))


class _Work:
    """The conversion of one content."""

    def __init__(self, content: Octets) -> None:
        self._content = content
        self._parts_count = 0
        self.pieces: list[Span | bytes] = []

    def part(self, start: int, end: int, *, depth: int, is_message: bool = False, is_digest: bool = False) -> None:
        """Add the pieces of a part, or of a message."""
        content = self._content
        if is_in_lines(content, start, end):
            self.pieces.append(Span(start, end))
            return
        self._parts_count += 1
        if depth > DEPTH_MAX or self._parts_count > PARTS_MAX:
            raise NotConvertible("it has too many parts")
        body = self._end_of_header(start, end)
        header = self._header(start, body, is_digest=is_digest)
        if header.kind == "multipart/signed":
            raise NotConvertible("a part that is signed is binary", is_prohibited=True)
        is_multipart = header.kind.startswith("multipart/")
        if header.encoding not in _ENCODABLE:
            raise NotConvertible(f"a part is not in the encoding that it says: {header.encoding[:40]}")
        if is_multipart and header.boundary:
            self.pieces.append(header.with_encoding("8bit", is_message=is_message))
            self._multipart(body, end, header.boundary, depth, is_digest=header.kind == "multipart/digest")
        elif header.kind in ("message/rfc822", "message/global"):
            self.pieces.append(header.with_encoding("8bit", is_message=is_message))
            self.part(body, end, depth=depth + 1, is_message=True)
        elif is_multipart or header.kind.startswith("message/"):
            raise NotConvertible(f"a part is binary that must not be encoded: {header.kind[:40]}")
        else:
            self.pieces.append(header.with_encoding("base64", is_message=is_message))
            self.pieces.append(Span(body, end, is_encoded=True))

    def _end_of_header(self, start: int, end: int) -> int:
        """Where the body begins, behind the empty line."""
        if self._content[start : start + 2] == b"\r\n":
            return start + 2
        found = self._content.find(b"\r\n\r\n", start, min(end, start + HEADER_OCTETS_MAX))
        if found < 0:
            raise NotConvertible("a header has no end")
        return found + 4

    def _header(self, start: int, body: int, *, is_digest: bool) -> _Header:
        octets = bytes(self._content[start : body - 2])
        if not is_in_lines(octets, 0, len(octets)):
            raise NotConvertible("a header is binary")
        fields, at = [], 0
        while at < len(octets):
            found = _FIELD.match(octets, at)
            if found is None:
                raise NotConvertible("a header has a line that is no field")
            fields.append((found[1].decode("ascii").lower(), found[0]))
            at = found.end()
        said = {name: field.partition(b":")[2].replace(b"\r\n", b"").decode("latin-1").strip() for name, field in reversed(fields)}
        parsed: Message = Message()
        parsed["Content-Type"] = said.get("content-type") or ("message/rfc822" if is_digest else "text/plain")
        encoding = _ENCODING.match(said.get("content-transfer-encoding", ""))
        assert encoding is not None
        return _Header(fields, parsed.get_content_type(), parsed.get_boundary("") or "", encoding[1].lower(), "mime-version" in said)

    def _multipart(self, start: int, end: int, boundary: str, depth: int, *, is_digest: bool) -> None:
        """Its parts, each converted; its delimiters as they are. What stands around the parts must be text."""
        begin = start
        is_before, is_over = True, False
        for delimiter in _delimiters(boundary, self._content, start, end):
            if is_before or is_over:
                self._text(begin, delimiter.start)
            else:
                self.part(begin, delimiter.start, depth=depth + 1, is_digest=is_digest)
            self.pieces.append(Span(delimiter.start, delimiter.end))
            begin, is_before = delimiter.end, False
            is_over = is_over or delimiter.is_last
        if is_before:
            raise NotConvertible("a multipart has no parts")
        if is_over:
            self._text(begin, end)
        else:
            self.part(begin, end, depth=depth + 1, is_digest=is_digest)

    def _text(self, start: int, end: int) -> None:
        if not is_in_lines(self._content, start, end):
            raise NotConvertible("what stands around the parts of a multipart is binary")
        self.pieces.append(Span(start, end))


class _Delimiter(NamedTuple):
    """A delimiter line of a multipart body, with the CRLF before it, which belongs to it; behind an empty part it is used up already."""

    start: int
    end: int
    is_last: bool


def _delimiters(boundary: str, content: Octets, start: int, end: int) -> Iterator[_Delimiter]:
    """RFC 2046 5.1.1"""
    begin = b"\r\n--" + boundary.encode("latin-1", "replace")
    at = start
    search, count = at - 2, 0  # the CRLF before may end the header, or the delimiter before
    while (found := content.find(begin, search, end)) >= 0:
        count += 1
        if count > DELIMITERS_MAX:
            raise NotConvertible("it has too many parts")
        rest = content[found + len(begin) : min(found + len(begin) + LINE_OCTETS_MAX, end)]
        line = _REST_OF_DELIMITER.match(rest)
        if line is None or (line.end() == len(rest) and not rest.endswith(b"\n") and found + len(begin) + len(rest) < end):
            search = found + 2
            continue
        yield _Delimiter(max(found, at), found + len(begin) + line.end(), line[1] is not None)
        at = found + len(begin) + line.end()
        search = at - 2
