"""Whether content is text, as SMTP has it: lines that end in CRLF. RFC 5321 2.3.8."""

from shadowrelay.model.values import dataclass


@dataclass(slots=True)
class LineEnds:
    """Whether each CR and LF of a content in blocks, split anywhere, is part of a CRLF.

    CRLFs are taken out and the rest is searched: `bytes.count` of one octet takes longer than all of it.
    """

    has_bare: bool = False
    ends_with_cr: bool = False  # a bare one, unless an LF follows

    def take(self, block: bytes) -> None:
        """The next block."""
        if not block or self.has_bare:
            return
        if self.ends_with_cr:
            if not block.startswith(b"\n"):
                self.has_bare = True
                return
            rest = block.replace(b"\r\n", b"")[1:]
        else:
            rest = block.replace(b"\r\n", b"")
        self.ends_with_cr = block.endswith(b"\r")
        self.has_bare = b"\n" in rest or rest.find(b"\r", 0, len(rest) - self.ends_with_cr) >= 0

    @property
    def are_right(self) -> bool:
        """Of all that was taken so far."""
        return not (self.has_bare or self.ends_with_cr)


def has_long_line(text: bytes, octets_max: int) -> bool:
    """Whether one of these whole lines exceeds `octets_max`, CRLF included. Checks once per `octets_max` octets, not once per line."""
    start, end = 0, len(text)
    while end - start > octets_max:
        found = text.rfind(b"\r\n", start, start + octets_max)
        if found < 0:
            return True
        start = found + 2
    return False
