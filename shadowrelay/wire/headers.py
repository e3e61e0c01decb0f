"""The header of a message, cut from its bytes. Strangers wrote them: nothing raises, and the result is bounded."""

HEADER_BLOCK_OCTETS_MAX = 256 * 1024  # MaxHeaderSize of Exchange; 100 hops of Received at 1 kB are 100 kB


def header_block(content: bytes) -> bytes:
    """Everything before the first empty line, with the CRLF of its last line.

    Shapes: empty when the content begins with an empty line; at most 256 KiB, cut after a line; `content` may itself be
    only the beginning of a message.
    """
    if content.startswith(b"\r\n"):
        return b""
    end = content.find(b"\r\n\r\n", 0, HEADER_BLOCK_OCTETS_MAX)
    if end < 0:
        end = content.rfind(b"\r\n", 0, HEADER_BLOCK_OCTETS_MAX)
    return content[: end + 2] if end >= 0 else b""
