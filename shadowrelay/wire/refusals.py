"""The replies that the parsers give, in one place, so that `docs/protocol.md` and the tests can name them.

A reply never repeats what the other side wrote: that would carry control characters and secrets into logs and bounces.
"""

from shadowrelay.model.errors import WireError
from shadowrelay.model.replies import Reply

TRACK_NOT_OFFERED = Reply(504, "5.5.4", "XSHADOW=TRACK is not offered here")
BAD_SENDER = Reply(501, "5.1.7", "Bad sender address syntax")  # RFC 3463 X.1.7
BAD_RECIPIENT = Reply(501, "5.1.3", "Bad recipient address syntax")  # RFC 3463 X.1.3
SMTPUTF8_NEEDED = Reply(553, "5.6.7", "Non-ASCII addresses need the SMTPUTF8 parameter")  # RFC 6531 3.5, RFC 6532
GARBLED_REPLY = Reply(451, "4.5.0", "The peer's reply is out of grammar")  # never sent: for logs and callers


def bad_argument(what: str) -> WireError:
    """501 5.5.4, with our own words for what is wrong."""
    return WireError(Reply(501, "5.5.4", what))


def garbled_reply() -> WireError:
    """A peer's *reply* cannot be read: nobody is told, the session is to be dropped and tried again."""
    return WireError(GARBLED_REPLY)
