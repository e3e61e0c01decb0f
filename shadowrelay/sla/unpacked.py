"""Logs as people collect them: packed with gzip, or in UTF-16 as Windows' shells write copies. docs/sla.md, section 1.

The first octets say which. The parser then reads plain UTF-8, and the same lines have the same row ids in whatever form they came.
"""

import codecs
import gzip
import zlib
from collections.abc import Callable
from typing import Any, cast

Read = Callable[[int], bytes]
GZIP = b"\x1f\x8b"
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def unpacked(read: Read) -> Read:
    """Reads what `read` reads, as UTF-8. Raises: what `read` raises; OSError for a damaged archive."""
    head = _first(read)
    read = _Again(head, read).read
    if head.startswith(GZIP):
        inner = _gunzip(read)
        head = _first(inner)
        read = _Again(head, inner).read
    encoding = _encoding(head)
    return read if encoding is None else _utf8(read, encoding)


def _first(read: Read) -> bytes:
    head = b""
    while len(head) < 4 and (block := read(4 - len(head))):
        head += block
    return head


def _encoding(head: bytes) -> str | None:
    """UTF-16 by its mark, or by two characters that are ASCII: a log begins with `#Software` or a year. One NUL is damage in plain text."""
    if len(head) == 4 and head[0] and head[2] and not head[1] and not head[3]:
        return "utf-16-le"
    if len(head) == 4 and head[1] and head[3] and not head[0] and not head[2]:
        return "utf-16-be"
    return _UTF16.get(head[:2])


class _Again:
    """The first octets once more, then the rest."""

    def __init__(self, head: bytes, read: Read) -> None:
        self._head = head
        self._read = read

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._read(size)
        block, self._head = self._head[:size], self._head[size:]
        return block


def _gunzip(read: Read) -> Read:
    packed = type("Packed", (), {"read": staticmethod(read)})()
    file = gzip.GzipFile(fileobj=cast(Any, packed), mode="rb")

    def plain(size: int) -> bytes:
        try:
            return file.read(size)
        except (EOFError, zlib.error) as exc:
            raise OSError(f"a torn or damaged .gz file: {exc}") from exc

    return plain


def _utf8(read: Read, encoding: str) -> Read:
    # what is no character goes on as octets that are no UTF-8: such a line is quarantined, as in any other log
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")

    def plain(size: int) -> bytes:
        while block := read(size):
            if text := decoder.decode(block):
                return text.encode("utf-8", "surrogatepass")
        return b""

    return plain
