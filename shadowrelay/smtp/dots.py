"""Content on its way to a next hop: dot-stuffed, otherwise byte for byte. Source: RFC 5321 4.5.2."""

from shadowrelay.model.errors import PermanentDeliveryError
from shadowrelay.model.replies import Reply

BARE_LINE_END = Reply(554, "5.6.0", "The content has a CR or LF that is not a line end")


def stuffed_with_end(data: bytes, server: str) -> bytes:
    """The whole content, stuffed, and the final dot. Raises PermanentDeliveryError for a bare CR or LF."""
    line_ends = data.count(b"\r\n")
    # A bare CR or LF could end the message elsewhere than here (smuggling). Never passed on.
    if data.count(b"\n") != line_ends or data.count(b"\r") != line_ends:
        raise PermanentDeliveryError(BARE_LINE_END, server)
    end = b".\r\n" if not data or data.endswith(b"\r\n") else b"\r\n.\r\n"
    if b"\n." in data:
        data = data.replace(b"\r\n.", b"\r\n..")
    return b"." + data + end if data.startswith(b".") else data + end


class DotStuffer:
    """The same for content that comes in blocks, split anywhere. One of them a message."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._held = b"\r\n"  # the line end before the first line; it is not sent again
        self._is_first = True

    def feed(self, block: bytes) -> bytes:
        """What can be sent now; a line end at the very end waits for what follows."""
        data = self._held + block
        held = 2 if data.endswith(b"\r\n") else 1 if data.endswith(b"\r") else 0
        line_ends = data.count(b"\r\n")
        if data.count(b"\n") != line_ends or data.count(b"\r") != line_ends + (held == 1):
            raise PermanentDeliveryError(BARE_LINE_END, self._server)
        if b"\n." in data:
            data = data.replace(b"\r\n.", b"\r\n..")
        self._held = data[len(data) - held :]
        start = 2 if self._is_first and len(data) > held else 0
        if len(data) > held:
            self._is_first = False
        return data[start : len(data) - held]

    def end(self) -> bytes:
        """The end of the last line if it has none, and the final dot."""
        if self._held == b"\r":
            raise PermanentDeliveryError(BARE_LINE_END, self._server)
        return b".\r\n" if self._is_first else self._held + b".\r\n" if self._held else b"\r\n.\r\n"
