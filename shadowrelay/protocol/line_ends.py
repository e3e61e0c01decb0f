"""Whether content is text, as SMTP has it: lines that end in CRLF. RFC 5321 2.3.8."""

from dataclasses import field
from functools import partial
from io import IncrementalNewlineDecoder

from shadowrelay.model.values import dataclass

CRLF_ONLY = (None, "\r\n")


@dataclass(slots=True)
class LineEnds:
    """Whether each CR and LF of a content in blocks, split anywhere, is part of a CRLF.

    The decoder that reads text files knows which line ends it has seen. It takes two thirds of the time of taking the CRLFs out and
    searching the rest, and `bytes.count` of one octet takes longer than either.
    """

    ends_with_cr: bool = False  # a bare one, unless an LF follows
    _decoder: IncrementalNewlineDecoder = field(default_factory=partial(IncrementalNewlineDecoder, None, translate=False))

    def take(self, block: bytes) -> None:
        """The next block."""
        if block:
            self._decoder.decode(str(block, "latin-1"))  # an octet is a character; a CR at the very end is held until more follows
            self.ends_with_cr = block.endswith(b"\r")

    @property
    def has_bare(self) -> bool:
        """Of what was taken so far, but for a CR at the very end."""
        return self._decoder.newlines not in CRLF_ONLY

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
