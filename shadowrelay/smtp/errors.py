"""What went wrong outside, said once in the program's own words.

Nothing above this package knows a class of aiosmtplib, ssl, socket or dns. `OUTSIDE` is the one table; a test walks the
libraries' trees, so that a new class fails the test instead of falling through. Unknown means transient (CONTRIBUTING.md "Errors").
"""

import re
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

import aiosmtplib

from shadowrelay.model.errors import DeliveryError, PermanentDeliveryError, ShadowrelayError, TransientDeliveryError
from shadowrelay.model.replies import Reply

TEXT_CHARACTERS_MAX = 1000  # what of a foreign reply is kept for logs, rows and DSNs
ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:[ \t]+|$)")  # RFC 2034
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]+")

CONNECTION_FAILED = Reply(451, "4.4.1", "Could not connect to the server")  # RFC 3463 X.4.1
CONNECTION_LOST = Reply(451, "4.4.2", "Connection lost")  # RFC 3463 X.4.2
TIMED_OUT = Reply(451, "4.4.2", "Timed out waiting for the server")
TLS_FAILED = Reply(451, "4.7.5", "TLS could not be negotiated")  # RFC 3463 X.7.5
BROKEN_REPLY = Reply(451, "4.5.0", "The server's reply broke the protocol")  # RFC 3463 X.5.0
UNSUPPORTED = Reply(451, "4.5.1", "The server does not know the command")

# The first class that matches says it: the special ones stand before their bases.
OUTSIDE: Final[tuple[tuple[type[Exception], Reply], ...]] = (
    (aiosmtplib.SMTPConnectTimeoutError, CONNECTION_FAILED),
    (aiosmtplib.SMTPReadTimeoutError, TIMED_OUT),
    (aiosmtplib.SMTPTimeoutError, TIMED_OUT),
    (aiosmtplib.SMTPConnectResponseError, BROKEN_REPLY),
    (aiosmtplib.SMTPConnectError, CONNECTION_FAILED),
    (aiosmtplib.SMTPServerDisconnected, CONNECTION_LOST),
    (aiosmtplib.SMTPHeloError, BROKEN_REPLY),
    (aiosmtplib.SMTPDataError, BROKEN_REPLY),
    (aiosmtplib.SMTPAuthenticationError, BROKEN_REPLY),
    (aiosmtplib.SMTPSenderRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPRecipientRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPRecipientsRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPResponseException, BROKEN_REPLY),
    (aiosmtplib.SMTPNotSupported, UNSUPPORTED),
    (aiosmtplib.SMTPException, BROKEN_REPLY),
    (ssl.SSLError, TLS_FAILED),
    (TimeoutError, TIMED_OUT),
    (ConnectionRefusedError, CONNECTION_FAILED),
    (ConnectionError, CONNECTION_LOST),
    (OSError, CONNECTION_FAILED),
    (ValueError, BROKEN_REPLY),  # an argument that the library will not send, a name that is none
)


class SessionBroken(ShadowrelayError):
    """This session can not go on; never leaves this package.

    `reply` is what the server said (a 421), or what is said on its behalf. `is_refusal`: the server did say it.
    """

    def __init__(self, reply: Reply, *, is_refusal: bool = False) -> None:
        super().__init__(str(reply))
        self.reply = reply
        self.is_refusal = is_refusal


class Breakage(NamedTuple):
    """Why a session broke, to be remembered: an exception is made of it for each who hears of it.

    An exception object that is kept and raised again grows a traceback with every raise, and the traceback keeps the frames
    of everybody who ever met it, with the contents they held.
    """

    reply: Reply
    is_refusal: bool = False

    def error(self) -> SessionBroken:
        """A new exception each time."""
        return SessionBroken(self.reply, is_refusal=self.is_refusal)


def reply_from(code: int, lines: Sequence[str]) -> Reply:
    """A reply as the program keeps it: one line of text, its enhanced code apart, no control characters, bounded.

    Shapes: `lines` without their codes, at least one.
    """
    first = ENHANCED.match(lines[0])
    if len(lines) == 1 and first is not None:  # the common case
        return Reply(code, first[1], UNPRINTABLE.sub(" ", lines[0][first.end() :])[:TEXT_CHARACTERS_MAX])
    texts = [ENHANCED.sub("", line, count=1) if ENHANCED.match(line) else line for line in lines]
    text = UNPRINTABLE.sub(" ", " ".join(texts)).strip()
    return Reply(code, first[1] if first is not None else "", text[:TEXT_CHARACTERS_MAX])


def on_behalf(error: Exception) -> SessionBroken:
    """What `error`, of a library or the system, means for the session in which it happened."""
    if isinstance(error, SessionBroken):
        return error
    if isinstance(error, aiosmtplib.SMTPResponseException) and 400 <= error.code < 600:
        return SessionBroken(reply_from(error.code, error.message.split("\n")), is_refusal=True)
    generic = next((reply for kind, reply in OUTSIDE if isinstance(error, kind)), CONNECTION_LOST)
    detail = UNPRINTABLE.sub(" ", str(error) or type(error).__name__)[:200]
    return SessionBroken(Reply(generic.code, generic.enhanced, f"{generic.text}: {detail}"))


def failure(reply: Reply, server: str, *, is_connection: bool = False, dot_sent_unanswered: bool = False) -> DeliveryError:
    """The delivery error that a negative reply is: only a 5xx is permanent."""
    kind = PermanentDeliveryError if reply.is_permanent else TransientDeliveryError
    return kind(reply, server, is_connection=is_connection, dot_sent_unanswered=dot_sent_unanswered)
